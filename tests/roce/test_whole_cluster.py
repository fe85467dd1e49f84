"""Three agents in guests behind kvcast-switch: RDMA and sockets mixed, casts, the switch's cache, faults, a reboot."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import GUEST_AGENT_SOCKET
from bmv2_testbed.content import Prefix
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import NO_FAULTS, Faults, host_name
from kvproto.limits import JOINED_MAX

pytestmark = pytest.mark.roce

CHUNK_BYTES = 256 * 1024
FETCH_DEADLINE_S = 120.0
PROCESS_DEADLINE_S = 240.0
VERBS, OTHER_VERBS, SOCKETS = 0, 1, 2
GO = itertools.count()
"""Numbers of the files that start readers."""
CASTS_RECEIVED = 'cast_packets_total{direction="received"}'
COUNTED = re.compile(r"kvcast_agent_(cast|read|rdma|dropped|control)\w*_total")


def words(prefix: Prefix) -> list[str]:
    return ["--seed", str(prefix.seed), "--size", str(prefix.size_bytes), "--chunk", str(prefix.chunk_bytes)]


def put(testbed: Testbed, host: int, prefix: Prefix) -> None:
    argv = python_module("bmv2_testbed.bench.holder", "put", "--address", GUEST_AGENT_SOCKET, *words(prefix))
    testbed.run("put", host_name(host), argv)
    testbed.finish("put", PROCESS_DEADLINE_S)


def fetch(testbed: Testbed, wanted: Mapping[int, Prefix]) -> dict[int, dict[str, Any]]:
    """Fetch at all these hosts at once, each a prefix; their reports by host, every byte verified."""
    go = testbed.directory / f"go-{next(GO)}"
    names = {host: f"fetch{host}" for host in wanted}
    for host, prefix in wanted.items():
        argv = python_module("bmv2_testbed.bench.once", "--agent", GUEST_AGENT_SOCKET, "--go", str(go))
        argv += ["--deadline", str(FETCH_DEADLINE_S), *words(prefix)]
        testbed.run(names[host], host_name(host), argv)
    for name in names.values():
        testbed.await_ready(name)
    go.touch()
    reports = {host: json.loads(testbed.finish(name, PROCESS_DEADLINE_S).stdout) for host, name in names.items()}
    assert all(report["verified"] for report in reports.values()), reports
    return reports


def restart(testbed: Testbed, host: int) -> None:
    """Kill an agent and start it again, empty."""
    name = f"agent{host}"
    testbed.kill(name)
    testbed.restart(name)
    testbed.await_ready(name)
    testbed.await_cluster()


def metric(testbed: Testbed, host: int, name: str) -> float:
    found = re.search(rf"^kvcast_agent_{re.escape(name)} (\S+)$", testbed.agent_metrics(host), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


class Reads:
    """What one node has got by reliable reads since this was made."""

    def __init__(self, testbed: Testbed, host: int) -> None:
        self._testbed, self._host = testbed, host
        self._before = self._totals()

    def _totals(self) -> tuple[float, float]:
        names = "rdma_read_bytes_total", 'read_bytes_total{direction="received"}'
        rdma, every = (metric(self._testbed, self._host, name) for name in names)
        return rdma, every - rdma

    @property
    def bytes_by(self) -> tuple[float, float]:
        """One-sided, and over TCP."""
        now = self._totals()
        return now[0] - self._before[0], now[1] - self._before[1]


def dropped(testbed: Testbed, host: int) -> list[str]:
    """What an agent has counted, for whoever has to find out why a test failed."""
    return [line for line in testbed.agent_metrics(host).splitlines() if COUNTED.match(line)]


@pytest.mark.parametrize(("holder", "readers"), [(VERBS, (OTHER_VERBS, SOCKETS)), (SOCKETS, (VERBS, OTHER_VERBS))])
def test_one_casts_to_two_whatever_they_use(testbed: Testbed, holder: int, readers: tuple[int, int]) -> None:
    """So long a prefix that who begins seconds later, or misses the switch's answers for a while, still meets the
    other one: it takes 1.7 s at least, and no more than JOINED_MAX chunks of it are begun at a time."""
    prefix = Prefix(100 + holder, 4 << 20, CHUNK_BYTES // 8)
    assert prefix.chunks >= 2 * JOINED_MAX
    put(testbed, holder, prefix)
    before = [metric(testbed, host, CASTS_RECEIVED) for host in readers]
    reports = fetch(testbed, dict.fromkeys(readers, prefix))
    origins = {host: report["origins"] for host, report in reports.items()}
    assert all(found.get("cast", 0) >= 1 for found in origins.values()), origins
    for host, count in zip(readers, before, strict=True):
        assert metric(testbed, host, CASTS_RECEIVED) > count
        print(host_name(host), dropped(testbed, host))
    print(host_name(holder), dropped(testbed, holder))


def test_a_lone_reader_reads_one_sided(testbed: Testbed) -> None:
    prefix = Prefix(200, CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, VERBS, prefix)
    reads = Reads(testbed, OTHER_VERBS)
    report = fetch(testbed, {OTHER_VERBS: prefix})[OTHER_VERBS]
    assert report["origins"] == {"holder": 1}
    one_sided, tcp = reads.bytes_by
    assert one_sided > prefix.size_bytes / 2, "most of it: a few segments that are missing may be asked for by GET"
    assert tcp == 0


@pytest.mark.parametrize(("holder", "reader"), [(VERBS, SOCKETS), (SOCKETS, VERBS)])
def test_where_one_end_has_no_rdma_reads_go_over_tcp(testbed: Testbed, holder: int, reader: int) -> None:
    prefix = Prefix(210 + holder, CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, holder, prefix)
    reads = Reads(testbed, reader)
    report = fetch(testbed, {reader: prefix})[reader]
    assert report["origins"] == {"holder": 1}
    one_sided, tcp = reads.bytes_by
    assert one_sided == 0
    assert tcp > prefix.size_bytes / 2


@pytest.mark.parametrize("holder", [VERBS, SOCKETS])
def test_the_switch_serves_both_from_its_cache(testbed: Testbed, holder: int) -> None:
    """The holder forgets, and each reader takes another prefix (who has read one has a copy for the others): nobody
    but the switch has what is asked for."""
    readers = sorted({VERBS, OTHER_VERBS, SOCKETS} - {holder})
    wanted = {reader: Prefix(300 + 10 * holder + reader, CHUNK_BYTES, CHUNK_BYTES) for reader in readers}
    for prefix in wanted.values():
        put(testbed, holder, prefix)
        testbed.serve_from_switch(prefix.chunk_keys()[-1], prefix.chunks)
    restart(testbed, holder)
    # Who has heard of something that the holder put after its restart has heard that it lost everything before.
    later = Prefix(390 + holder, CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, holder, later)
    fetch(testbed, dict.fromkeys(readers, later))
    reads = {reader: Reads(testbed, reader) for reader in readers}
    origins = {host: report["origins"] for host, report in fetch(testbed, wanted).items()}
    assert all(found == {"switch": 1} for found in origins.values()), origins
    assert all(reads[reader].bytes_by == (0, 0) for reader in readers)


def test_lost_and_repeated_packets_cost_time_only(testbed: Testbed) -> None:
    prefix = Prefix(400, 2 * CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, VERBS, prefix)
    testbed.set_faults(Faults(loss=0.01, duplicate=0.02, reorder=0.02))
    try:
        fetch(testbed, dict.fromkeys((OTHER_VERBS, SOCKETS), prefix))
    finally:
        testbed.set_faults(NO_FAULTS)


def test_a_peer_that_was_rebooted_is_read_from_again(testbed: Testbed) -> None:
    prefix, after = Prefix(500, CHUNK_BYTES, CHUNK_BYTES), Prefix(501, CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, OTHER_VERBS, prefix)
    fetch(testbed, {VERBS: prefix})
    testbed.reboot(OTHER_VERBS)
    testbed.await_ready(f"agent{OTHER_VERBS}")
    testbed.await_cluster()
    put(testbed, OTHER_VERBS, after)
    reads = Reads(testbed, VERBS)
    report = fetch(testbed, {VERBS: after})[VERBS]
    assert report["origins"] == {"holder": 1}
    assert reads.bytes_by[0] > 0, "one-sided again"
