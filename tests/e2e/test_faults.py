"""Things die mid-fetch. The result is the right bytes or a typed miss before the deadline, and nothing hangs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest

from bmv2_testbed import client
from bmv2_testbed.bench.figures import ReaderReport
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.spec import TestbedSpec

pytestmark = pytest.mark.root

HOSTS = 5
READERS = (1, 2, 3, 4)
DEADLINE_S = 15.0
PINS = re.compile(r"^kvcast_agent_pool_pins (\S+)$", re.MULTILINE)
PREFIX = Prefix(seed=11, size_bytes=4 * 2**20, chunk_bytes=512 * 1024)

Midway = Callable[[Testbed, Prefix, int], Callable[[float], None]]


@pytest.fixture
def testbed() -> Iterator[Testbed]:
    """Five hosts on links of 20 Mbit/s: the prefix takes 1.7 s, time enough for things to happen."""
    spec = TestbedSpec(
        hosts=HOSTS,
        rate_bit_s=20_000_000,
        pool_bytes=64 * 2**20,
        slots=2048,
        controller_settings={"policy": {"admission": False}},
    )
    with client.running(spec) as running:
        yield running


def _all_right(reports: list[ReaderReport | None]) -> None:
    for report in reports:
        assert report is not None
        assert report.verified, report.reason


def _no_pins(testbed: Testbed, hosts: tuple[int, ...]) -> None:
    """Whatever happened, agents let go of every chunk once their fetches are over."""
    deadline_s = time.monotonic() + DEADLINE_S
    for host in hosts:
        while any(float(value) for value in PINS.findall(testbed.agent_metrics(host))):
            assert time.monotonic() < deadline_s, f"host {host} still has pins: {testbed.agent_metrics(host)}"


def _in_time(reports: list[ReaderReport | None]) -> None:
    for report in reports:
        assert report is not None
        assert report.time_s < DEADLINE_S + 1


def test_controller_dies_and_comes_back(testbed: Testbed, midway: Midway) -> None:
    put_prefix(testbed, PREFIX)
    with ReaderGroup(testbed, PREFIX, READERS, deadline_s=DEADLINE_S) as readers:
        arrived = midway(testbed, PREFIX, 1)
        readers.start()
        arrived(0.2)
        testbed.kill("controller")
        arrived(0.4)
        testbed.restart("controller")
        _all_right(readers.reports())
    testbed.await_cluster()
    # The controller knows everything again: somebody who has nothing finds the prefix.
    other = Prefix(seed=12, size_bytes=2**20, chunk_bytes=512 * 1024)
    put_prefix(testbed, other, host=2)
    with ReaderGroup(testbed, other, (3, 4), deadline_s=DEADLINE_S) as readers:
        readers.start()
        _all_right(readers.reports())


def test_switch_program_is_reloaded(testbed: Testbed, midway: Midway) -> None:
    put_prefix(testbed, PREFIX)
    with ReaderGroup(testbed, PREFIX, READERS, deadline_s=DEADLINE_S) as readers:
        arrived = midway(testbed, PREFIX, 1)
        readers.start()
        arrived(0.3)
        testbed.reload_program()
        _all_right(readers.reports())
    _no_pins(testbed, (0, *READERS))


def test_switch_process_is_restarted(testbed: Testbed, midway: Midway) -> None:
    put_prefix(testbed, PREFIX)
    with ReaderGroup(testbed, PREFIX, READERS, deadline_s=DEADLINE_S) as readers:
        arrived = midway(testbed, PREFIX, 1)
        readers.start()
        arrived(0.3)
        testbed.kill("switch")
        testbed.restart("switch")
        reports = readers.reports()
    # For a while there was no network at all: a miss is allowed, a wrong byte or a late answer is not.
    _in_time(reports)
    for report in reports:
        assert report is not None
        assert report.verified or report.reason.startswith("miss ("), report.reason
    testbed.await_cluster()
    with ReaderGroup(testbed, PREFIX, READERS, deadline_s=DEADLINE_S) as readers:
        readers.start()
        _all_right(readers.reports())


def test_holder_dies_and_another_has_it(testbed: Testbed, midway: Midway) -> None:
    put_prefix(testbed, PREFIX, host=0)
    put_prefix(testbed, PREFIX, host=4)
    with ReaderGroup(testbed, PREFIX, (1, 2, 3), deadline_s=DEADLINE_S) as readers:
        arrived = midway(testbed, PREFIX, 1)
        readers.start()
        arrived(0.3)
        testbed.kill("agent0")
        _all_right(readers.reports())
    _no_pins(testbed, (1, 2, 3, 4))


def test_the_only_holder_dies(testbed: Testbed, midway: Midway) -> None:
    """What had arrived whole is delivered, the rest is a miss, before the deadline."""
    put_prefix(testbed, PREFIX)
    with ReaderGroup(testbed, PREFIX, READERS, deadline_s=DEADLINE_S) as readers:
        arrived = midway(testbed, PREFIX, 1)
        readers.start()
        arrived(0.3)
        testbed.kill("agent0")
        reports = readers.reports()
    _in_time(reports)
    _no_pins(testbed, READERS)
    for report in reports:
        assert report is not None
        assert not report.verified
        assert report.reason.startswith("miss (")


@pytest.mark.parametrize("reader", [1, 4], ids=["the first", "the last"])
def test_a_reader_dies(testbed: Testbed, midway: Midway, reader: int) -> None:
    """Whoever dies, leading or following: the others get everything."""
    put_prefix(testbed, PREFIX)
    with ReaderGroup(testbed, PREFIX, READERS, deadline_s=DEADLINE_S) as readers:
        arrived = midway(testbed, PREFIX, 2)
        readers.start()
        arrived(0.3)
        testbed.kill(f"agent{reader}")
        reports = readers.reports()
    _all_right([report for host, report in zip(READERS, reports, strict=True) if host != reader])
    _no_pins(testbed, tuple(host for host in (0, *READERS) if host != reader))


def test_the_holders_link_is_cut_and_mended(testbed: Testbed, midway: Midway) -> None:
    put_prefix(testbed, PREFIX)
    with ReaderGroup(testbed, PREFIX, READERS, deadline_s=DEADLINE_S) as readers:
        arrived = midway(testbed, PREFIX, 1)
        readers.start()
        arrived(0.3)
        testbed.set_link("h0", up=False)
        testbed.set_link("h0", up=True)
        reports = readers.reports()
    _in_time(reports)
