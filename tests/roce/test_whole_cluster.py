"""Three agents in guests behind kvcast-switch: RDMA and sockets mixed, casts, the switch's cache, faults, a reboot."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import GUEST_AGENT_SOCKET
from bmv2_testbed.content import Prefix
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import NO_FAULTS, Faults, host_name

pytestmark = pytest.mark.roce

CHUNK_BYTES = 256 * 1024
FETCH_DEADLINE_S = 120.0
PROCESS_DEADLINE_S = 240.0
VERBS, OTHER_VERBS, SOCKETS = 0, 1, 2
CASTS_RECEIVED = 'cast_packets_total{direction="received"}'
COUNTED = re.compile(r"kvcast_agent_(cast|read|rdma|dropped|control)\w*_total")


def words(prefix: Prefix) -> list[str]:
    return ["--seed", str(prefix.seed), "--size", str(prefix.size_bytes), "--chunk", str(prefix.chunk_bytes)]


def put(testbed: Testbed, host: int, prefix: Prefix) -> None:
    argv = python_module("bmv2_testbed.bench.holder", "put", "--address", GUEST_AGENT_SOCKET, *words(prefix))
    testbed.run("put", host_name(host), argv)
    testbed.finish("put", PROCESS_DEADLINE_S)


def fetch(testbed: Testbed, hosts: Sequence[int], prefix: Prefix) -> list[dict[str, Any]]:
    """Fetch at all these hosts at once; their reports, every byte verified."""
    go = testbed.directory / f"go-{prefix.seed}"
    names = [f"fetch{host}" for host in hosts]
    for host, name in zip(hosts, names, strict=True):
        argv = python_module("bmv2_testbed.bench.once", "--agent", GUEST_AGENT_SOCKET, "--go", str(go))
        argv += ["--deadline", str(FETCH_DEADLINE_S), *words(prefix)]
        testbed.run(name, host_name(host), argv)
    for name in names:
        testbed.await_ready(name)
    go.touch()
    reports = [json.loads(testbed.finish(name, PROCESS_DEADLINE_S).stdout) for name in names]
    assert all(report["verified"] for report in reports), reports
    return reports


def metric(testbed: Testbed, host: int, name: str) -> float:
    found = re.search(rf"^kvcast_agent_{re.escape(name)} (\S+)$", testbed.agent_metrics(host), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def dropped(testbed: Testbed, host: int) -> list[str]:
    """What an agent has counted, for whoever has to find out why a test failed."""
    return [line for line in testbed.agent_metrics(host).splitlines() if COUNTED.match(line)]


@pytest.mark.parametrize(("holder", "readers"), [(VERBS, (OTHER_VERBS, SOCKETS)), (SOCKETS, (VERBS, OTHER_VERBS))])
def test_one_casts_to_two_whatever_they_use(testbed: Testbed, holder: int, readers: tuple[int, int]) -> None:
    prefix = Prefix(100 + holder, 4 * CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, holder, prefix)
    before = [metric(testbed, host, CASTS_RECEIVED) for host in readers]
    reports = fetch(testbed, readers, prefix)
    assert all(report["origins"].get("cast", 0) >= 1 for report in reports), reports
    for host, count in zip(readers, before, strict=True):
        assert metric(testbed, host, CASTS_RECEIVED) > count
        print(host_name(host), dropped(testbed, host))
    print(host_name(holder), dropped(testbed, holder))


def test_a_lone_reader_reads_one_sided(testbed: Testbed) -> None:
    prefix = Prefix(200, CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, VERBS, prefix)
    before = metric(testbed, OTHER_VERBS, "rdma_read_bytes_total")
    (report,) = fetch(testbed, (OTHER_VERBS,), prefix)
    assert report["origins"] == {"holder": 1}
    assert metric(testbed, OTHER_VERBS, "rdma_read_bytes_total") - before == prefix.size_bytes


@pytest.mark.parametrize(("holder", "reader"), [(VERBS, SOCKETS), (SOCKETS, VERBS)])
def test_where_one_end_has_no_rdma_reads_go_over_tcp(testbed: Testbed, holder: int, reader: int) -> None:
    prefix = Prefix(210 + holder, CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, holder, prefix)
    before = metric(testbed, reader, "rdma_read_bytes_total")
    (report,) = fetch(testbed, (reader,), prefix)
    assert report["origins"] == {"holder": 1}
    assert metric(testbed, reader, "rdma_read_bytes_total") == before


@pytest.mark.parametrize("holder", [VERBS, SOCKETS])
def test_the_switch_serves_both_from_its_cache(testbed: Testbed, holder: int) -> None:
    prefix = Prefix(300 + holder, CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, holder, prefix)
    testbed.serve_from_switch(prefix.chunk_keys()[-1], prefix.chunks)
    readers = tuple({VERBS, OTHER_VERBS, SOCKETS} - {holder})
    reports = fetch(testbed, readers, prefix)
    assert all(report["origins"] == {"switch": 1} for report in reports), reports


def test_lost_and_repeated_packets_cost_time_only(testbed: Testbed) -> None:
    prefix = Prefix(400, 2 * CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, VERBS, prefix)
    testbed.set_faults(Faults(loss=0.01, duplicate=0.02, reorder=0.02))
    try:
        fetch(testbed, (OTHER_VERBS, SOCKETS), prefix)
    finally:
        testbed.set_faults(NO_FAULTS)


def test_a_peer_that_was_rebooted_is_read_from_again(testbed: Testbed) -> None:
    prefix, after = Prefix(500, CHUNK_BYTES, CHUNK_BYTES), Prefix(501, CHUNK_BYTES, CHUNK_BYTES)
    put(testbed, OTHER_VERBS, prefix)
    fetch(testbed, (VERBS,), prefix)
    testbed.reboot(OTHER_VERBS)
    testbed.await_ready(f"agent{OTHER_VERBS}")
    testbed.await_cluster()
    put(testbed, OTHER_VERBS, after)
    (report,) = fetch(testbed, (VERBS,), after)
    assert report["origins"] == {"holder": 1}
