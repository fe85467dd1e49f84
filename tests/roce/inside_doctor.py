"""Runs inside a guest (see test_transport.py): `kvcast doctor rdma` beside a NIC."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bmv2_testbed.guests.pair import ADDRESSES


def test_doctor_tells_what_the_port_can(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"node: n1\ndata: {{address: {ADDRESSES[0]}, segment_bytes: 3840}}\npool: {{size: 1MiB}}\n")
    argv = [sys.executable, "-m", "kvcast.cli", "doctor", "rdma", "--json", "--config", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found = {one["check"]: one for one in json.loads(done.stdout)}
    for check in ("RDMA devices", "RDMA port", "multicast of rxe0 port 1", "RDMA MTU of rxe0 port 1"):
        assert found[check]["level"] == "ok", found
    assert found["counters of losses of rxe0 port 1"]["found"] == "completer_retry_err"
    assert done.returncode == 0
