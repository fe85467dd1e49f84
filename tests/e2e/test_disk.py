"""The disk tier across kill -9 of an agent: the warm part is there again, for its own engines and for everybody."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from bmv2_testbed import client
from bmv2_testbed.bench.figures import ReaderReport
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.spec import TestbedSpec

pytestmark = pytest.mark.root

DEADLINE_S = 20.0
PREFIX = Prefix(seed=21, size_bytes=3 * 2**20, chunk_bytes=256 * 1024)
_METRIC = re.compile(r"^(kvcast_agent_\S+) (\S+)$", re.MULTILINE)


@pytest.fixture
def testbed() -> Iterator[Testbed]:
    spec = TestbedSpec(
        hosts=4,
        rate_bit_s=30_000_000,
        pool_bytes=16 * 2**20,
        disk_bytes=8 * 2**20,
        slots=256,
        controller_settings={"policy": {"admission": False}},
        agent_settings={"disk": {"promote": False}},
    )
    with client.running(spec) as running:
        yield running


def metrics(testbed: Testbed, host: int) -> dict[str, float]:
    return {name: float(value) for name, value in _METRIC.findall(testbed.agent_metrics(host))}


def until(testbed: Testbed, host: int, name: str, value: float) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while metrics(testbed, host)[f"kvcast_agent_{name}"] != value:
        assert time.monotonic() < deadline_s, f"{name} of host {host} is not {value}: {testbed.agent_metrics(host)}"


def read(testbed: Testbed, *hosts: int) -> list[ReaderReport]:
    with ReaderGroup(testbed, PREFIX, hosts, deadline_s=DEADLINE_S) as readers:
        readers.start()
        reports = readers.reports()
    found = [report for report in reports if report is not None]
    assert len(found) == len(hosts)
    for report in found:
        assert report.verified, report.reason
    return found


def restart(testbed: Testbed, host: int) -> None:
    name = f"agent{host}"
    testbed.kill(name)
    testbed.restart(name)
    testbed.await_ready(name)
    testbed.await_cluster()


def test_kill_9_of_an_agent_leaves_its_warm_part(testbed: Testbed) -> None:
    put_prefix(testbed, PREFIX)
    until(testbed, 0, "disk_chunks", PREFIX.chunks)
    restart(testbed, 0)
    found = metrics(testbed, 0)
    assert found["kvcast_agent_disk_restored_chunks"] == PREFIX.chunks
    assert found["kvcast_agent_pool_chunks"] == 0
    # Everybody at once wants what lies on that disk only: one cast serves them, once it is in the holder's DRAM.
    before = testbed.counters()["h0"]
    read(testbed, 1, 2, 3)
    sent_bytes = testbed.counters()["h0"].since(before).tx_bytes
    assert sent_bytes < 2.9 * PREFIX.size_bytes, "three readers, and not three times the bytes"
    assert metrics(testbed, 0)["kvcast_agent_disk_read_bytes_total"] == PREFIX.size_bytes
    # And its own engine, after another life.
    restart(testbed, 0)
    (own,) = read(testbed, 0)
    assert own.origins == {"disk": PREFIX.chunks}
