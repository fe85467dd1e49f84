"""Things die mid-fetch. The result is the right bytes or a typed miss before the deadline, and nothing hangs."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from bmv2_testbed import client
from bmv2_testbed.bench.figures import ReaderReport
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import CONTROLLER_PORT
from bmv2_testbed.content import Prefix
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import CONTROLLER_MANAGEMENT_IP, NO_FAULTS, Faults, TestbedSpec, agent_name
from tests.e2e.traffic import await_traffic
from tests.leftovers import leftovers

pytestmark = pytest.mark.root

HOSTS = 5
READERS = (1, 2, 3, 4)
DEADLINE_S = 15.0
LONG_DEADLINE_S = 90.0
ANSWER_SPARE_S = 10.0
"""What a loaded machine may take from a fetch's deadline to the reader's report; what hangs takes for ever."""
LEADS = re.compile(r"^kvcast_agent_led_chunks (\S+)$", re.MULTILINE)
SEEDS = itertools.count(11)
SIZE_BYTES, CHUNK_BYTES = 4 * 2**20, 512 * 1024

Midway = Callable[[Testbed, Prefix, int], Callable[[float], None]]


class Shared:
    """The testbed of these tests: what survives one fault has to bear the next, too. After a test that failed there is
    a new one."""

    def __init__(self) -> None:
        # Five hosts on links of 20 Mbit/s: a prefix takes 1.7 s, time enough for things to happen. Only tests decide
        # what lies where, and the pools have room for the prefixes of all of them.
        self._spec = TestbedSpec(
            hosts=HOSTS,
            rate_bit_s=20_000_000,
            pool_bytes=128 * 2**20,
            slots=2048,
            controller_settings={"policy": {"admission": False}, "push": {"enabled": False}},
        )
        self._stack = contextlib.ExitStack()
        self._running: Testbed | None = None

    def get(self) -> Testbed:
        if self._running is None:
            self._running = self._stack.enter_context(client.running(self._spec))
        return self._running

    def mend(self, dead: Sequence[int]) -> None:
        """Heal the ports, start the agents that died again, wait until all is well. What the dead leave in the switch
        stays until others overwrite it: its program is loaded again, with nothing in it."""
        testbed = self.get()
        testbed.set_faults(NO_FAULTS)
        for host in dead:
            testbed.restart(agent_name(host))
            testbed.await_ready(agent_name(host))
        if dead:
            testbed.reload_program()
        testbed.await_cluster()

    def discard(self) -> None:
        self._running = None
        self._stack.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    shared = Shared()
    yield shared
    shared.discard()


@pytest.fixture
def testbed(shared: Shared, request: pytest.FixtureRequest) -> Iterator[Testbed]:
    failed = request.session.testsfailed
    testbed = shared.get()
    yield testbed
    if request.session.testsfailed > failed:
        shared.discard()
        return
    # Whatever happened: no pin, no half filled slot, no group, no interest of the living is left.
    dead = [host for host in range(HOSTS) if agent_name(host) not in testbed.status()["pids"]]
    left = leftovers(testbed, dead)
    if left:
        shared.discard()
    else:
        shared.mend(dead)
    assert left == []


@pytest.fixture
def prefix() -> Prefix:
    """One that nobody has yet."""
    return new_prefix()


def new_prefix(size_bytes: int = SIZE_BYTES) -> Prefix:
    return Prefix(seed=next(SEEDS), size_bytes=size_bytes, chunk_bytes=CHUNK_BYTES)


def _all_right(reports: list[ReaderReport | None]) -> None:
    for report in reports:
        assert report is not None
        assert report.verified, report.reason


def _in_time(reports: list[ReaderReport | None]) -> None:
    for report in reports:
        assert report is not None
        assert report.time_s < DEADLINE_S + ANSWER_SPARE_S


def _right_or_missed(reports: list[ReaderReport | None]) -> None:
    """A typed miss is an answer, a wrong byte or a late answer is not."""
    _in_time(reports)
    for report in reports:
        assert report is not None
        assert report.verified or report.reason.startswith("miss ("), report.reason


class Rush:
    """Readers that fetch a prefix while something happens."""

    def __init__(
        self,
        testbed: Testbed,
        prefix: Prefix,
        midway: Midway,
        readers: Sequence[int] = READERS,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._testbed = testbed
        self._prefix = prefix
        self._midway = midway
        self._readers = readers
        self._deadline_s = deadline_s

    def while_fetching(self, *happenings: tuple[float, Callable[[], None]]) -> list[ReaderReport | None]:
        """Each happening comes when this share of the prefix has arrived at the first reader; the reports."""
        with ReaderGroup(self._testbed, self._prefix, self._readers, deadline_s=self._deadline_s) as readers:
            arrived = self._midway(self._testbed, self._prefix, self._readers[0])
            readers.start()
            for share, happens in happenings:
                arrived(share)
                happens()
            return readers.reports()


@pytest.fixture
def rush(testbed: Testbed, prefix: Prefix, midway: Midway) -> Rush:
    put_prefix(testbed, prefix)
    return Rush(testbed, prefix, midway)


def _fetch(testbed: Testbed, prefix: Prefix, *hosts: int) -> list[ReaderReport | None]:
    """An undisturbed fetch."""
    with ReaderGroup(testbed, prefix, hosts, deadline_s=DEADLINE_S) as readers:
        readers.start()
        return readers.reports()


def test_the_audit_sees_what_is_under_way(testbed: Testbed, midway: Midway) -> None:
    """What the fixture asks at every test's end is no empty question. A prefix that takes longer than many looks."""
    prefix = new_prefix(4 * SIZE_BYTES)
    put_prefix(testbed, prefix)
    missing = {"being filled", "interest sets"}  # pins and leading come and go from one chunk to the next

    def look() -> None:
        if missing:  # a look is a process, and on a busy machine slower than the fetch
            found = "\n".join(leftovers(testbed, patience_s=0))
            missing.difference_update([what for what in missing if what in found])

    shares = [percent / 100 for percent in range(10, 90, 10)]
    _all_right(Rush(testbed, prefix, midway, deadline_s=LONG_DEADLINE_S).while_fetching(*((at, look) for at in shares)))
    assert not missing


@pytest.mark.parametrize(
    "faults",
    [Faults(loss=0.01), Faults(duplicate=0.05), Faults(reorder=0.05), Faults(corrupt=0.01)],
    ids=["loss", "duplication", "reordering", "corruption"],
)
def test_hurt_ports_never_hurt_bytes(testbed: Testbed, rush: Rush, faults: Faults) -> None:
    testbed.set_faults(faults)
    before = testbed.counters()["h0"]
    _all_right(rush.while_fetching())
    # Less than if each reader had taken everything from the holder.
    assert testbed.counters()["h0"].since(before).tx_bytes < len(READERS) * SIZE_BYTES


def test_controller_dies_and_comes_back(testbed: Testbed, rush: Rush) -> None:
    dies = (0.2, lambda: testbed.kill("controller"))
    comes_back = (0.4, lambda: testbed.restart("controller"))
    _all_right(rush.while_fetching(dies, comes_back))
    testbed.await_cluster()
    # The controller knows everything again: somebody who has nothing finds the prefix.
    other = new_prefix(2**20)
    put_prefix(testbed, other, host=2)
    _all_right(_fetch(testbed, other, 3, 4))


def test_switch_program_is_reloaded(testbed: Testbed, rush: Rush) -> None:
    _all_right(rush.while_fetching((0.3, testbed.reload_program)))


def test_switch_process_is_restarted(testbed: Testbed, prefix: Prefix, rush: Rush) -> None:
    def restart() -> None:
        testbed.kill("switch")
        testbed.restart("switch")

    # For a while there is no network at all.
    _right_or_missed(rush.while_fetching((0.3, restart)))
    testbed.await_cluster()
    _all_right(_fetch(testbed, prefix, *READERS))


def test_holder_dies_and_another_has_it(testbed: Testbed, prefix: Prefix, midway: Midway) -> None:
    put_prefix(testbed, prefix, host=0)
    put_prefix(testbed, prefix, host=4)
    rush = Rush(testbed, prefix, midway, readers=(1, 2, 3))
    _all_right(rush.while_fetching((0.3, lambda: testbed.kill("agent0"))))


def test_the_only_holder_dies(testbed: Testbed, rush: Rush) -> None:
    """What had arrived whole is delivered, the rest is a miss, before the deadline."""
    reports = rush.while_fetching((0.1, lambda: testbed.kill("agent0")))
    _right_or_missed(reports)
    assert not any(report is None or report.verified for report in reports)


def _leader(testbed: Testbed) -> int:
    """The host that pulls for the others at this moment."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        for host in READERS:
            leads = LEADS.search(testbed.agent_metrics(host))
            if leads is not None and float(leads[1]):
                return host
        assert time.monotonic() < deadline_s, "nobody ever led"


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_reader_dies(testbed: Testbed, rush: Rush, role: str) -> None:
    """The others get everything, whoever it was that died."""
    victims: list[int] = []

    def kill() -> None:
        leader = _leader(testbed)
        victims.append(leader if role == "leader" else next(host for host in READERS if host != leader))
        testbed.kill(f"agent{victims[0]}")

    reports = rush.while_fetching((0.1, kill))
    others = [report for host, report in zip(READERS, reports, strict=True) if host not in victims]
    assert len(others) == len(READERS) - 1
    _all_right(others)
    _in_time(others)


def test_the_holder_dies_while_it_fills_the_switch(testbed: Testbed, prefix: Prefix) -> None:
    """The switch does not keep half a chunk, the controller gives its slots to others."""
    put_prefix(testbed, prefix)
    before = testbed.counters()["h0"].tx_bytes
    controller = f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_PORT}"
    words = ("pin", prefix.chunk_keys()[-1].hex(), "--switch", "--controller", controller)
    testbed.run("kvcast", "switch", python_module("kvcast.cli", *words))
    testbed.finish("kvcast", DEADLINE_S)
    await_traffic(testbed, "h0", sent_bytes=before + prefix.size_bytes // 8, timeout_s=DEADLINE_S)
    testbed.kill("agent0")
    other = new_prefix(2**20)
    put_prefix(testbed, other, host=1)
    testbed.serve_from_switch(other.chunk_keys()[-1], other.chunks)


def test_the_holders_link_is_cut_and_mended(testbed: Testbed, rush: Rush) -> None:
    def cut_and_mend() -> None:
        testbed.set_link("h0", up=False)
        testbed.set_link("h0", up=True)

    _right_or_missed(rush.while_fetching((0.3, cut_and_mend)))
