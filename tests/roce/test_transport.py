"""The transport's contract, and what only RDMA has, in a guest with two nodes: pytest there, on this very tree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bmv2_testbed.guests import pair
from bmv2_testbed.guests.machine import Guest
from bmv2_testbed.processes import child_environment

pytestmark = pytest.mark.roce

ROOT = Path(__file__).resolve().parents[2]

TIMEOUT_S = 1200.0
"""About 100 s on a machine with nothing else to do."""

STATE_SCRIPT = """
dmesg | tail -n 20
grep -E 'CPU|TASKLET|NET_' /proc/softirqs
rdma resource show
for device in rxe0 rxe1; do
    grep -H . /sys/class/infiniband/$device/ports/1/hw_counters/* | sed 's|.*/infiniband/||'
done
ip -s link
"""
"""What soft-RoCE and the cards have come to, for whoever has to find out whether a failure was ours."""


def run_inside(guest: Guest, *words: str) -> None:
    """Run pytest in the guest; what it said becomes this test's failure."""
    environment = child_environment(
        {
            "KVCAST_TEST_RDMA_ADDRESSES": ",".join(pair.ADDRESSES),
            "KVCAST_TEST_DEADLINE_S": "120",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }
    )
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x", "--rootdir", str(ROOT)]
    argv += ["-c", str(ROOT / "pytest.ini"), *words]
    status, out, err = guest.run(argv, environment, TIMEOUT_S)
    print(out[-2000:])
    if status != 0:
        print(guest.shell(STATE_SCRIPT))
    assert status == 0, (out + err)[-8000:]
    assert " passed" in out
    assert [line for line in out.splitlines() if line.startswith("SKIPPED")] == []


def test_contract(two_nodes: Guest) -> None:
    run_inside(two_nodes, str(ROOT / "tests/contracts/transport"), "-k", "verbs")


def test_what_only_rdma_has(two_nodes: Guest) -> None:
    run_inside(two_nodes, *sorted(str(module) for module in Path(__file__).parent.glob("inside_*.py")))
