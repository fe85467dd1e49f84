"""Three agents in guests behind kvcast-switch: RDMA and sockets mixed, casts, the switch's cache, faults, a reboot."""

from __future__ import annotations

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.spec import NO_FAULTS, Faults, host_name
from kvproto.limits import JOINED_MAX
from tests.roce.helpers import Reads, dropped, fetch, metric, put, restart

pytestmark = pytest.mark.roce

CHUNK_BYTES = 256 * 1024
VERBS, OTHER_VERBS, SOCKETS = 0, 1, 2
CASTS_RECEIVED = 'cast_received_segments_total{source="holder"}'


@pytest.mark.parametrize(("holder", "readers"), [(VERBS, (OTHER_VERBS, SOCKETS)), (SOCKETS, (VERBS, OTHER_VERBS))])
def test_one_casts_to_two_whatever_they_use(testbed: Testbed, holder: int, readers: tuple[int, int]) -> None:
    """So long a prefix that who begins seconds later, or misses the switch's answers for a while, still meets the
    other one: it takes 1.7 s at least, and no more than JOINED_MAX chunks of it are begun at a time."""
    prefix = Prefix(100 + holder, 4 << 20, CHUNK_BYTES // 16)
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
