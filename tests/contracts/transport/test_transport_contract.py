"""What every transport must do: one suite, run on each implementation."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hostagent.native import library
from hostagent.transport import socket_options
from hostagent.transport.base import ReadOutcome, ReadRequest, TransportError
from hostagent.transport.host import bound_udp
from kvchunk.ids import ChunkKey
from kvcodec.shipped import FOLDER_VARIABLE, NotShippedError
from kvproto.fanout import Fanout
from kvproto.ids import Address, Member, parse_address
from kvproto.limits import MEMBERS_MAX
from kvproto.wire.control import Control, Op
from kvproto.wire.data import ChunkFraming, Fabric
from tests.contracts.transport import harness

KEY = ChunkKey(bytes(range(16)))
OTHER = ChunkKey(bytes(range(1, 17)))
SEGMENT = 1024


Scenario = Callable[..., Awaitable[None]]


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(params=sorted(harness.NETWORKS))
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario on a fresh network of two nodes, and closes it."""
    return lambda scenario, count=2: run(request.param, scenario, count)


@pytest.fixture(params=sorted(harness.READING_NETWORKS))
def play_reads(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """The same for scenarios of reads alone, which go over IPv6, too."""
    return lambda scenario, count=2: run(request.param, scenario, count)


def run(kind: str, scenario: Scenario, count: int) -> None:
    async def main() -> None:
        network = await harness.READING_NETWORKS[kind](Fabric(segment_bytes=SEGMENT), count)
        try:
            await scenario(*network.nodes)
        finally:
            await network.close()

    asyncio.run(main())


def test_control_reaches_the_addressee_with_its_source(play: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        message = Control(Op.GET, KEY, segments=9, segment=2, count=3, tag=77)
        one.transport.send_control(message, two.facts.address)
        await two.sink.until(lambda: two.sink.controls)
        assert two.sink.controls == [(message, one.facts.address, 0)]
        assert one.sink.controls == []
        assert one.transport.counters.control_sent == 1
        assert two.transport.counters.control_received == 1

    play(scenario)


@pytest.mark.parametrize("size", [1, SEGMENT, 40 * SEGMENT, 40 * SEGMENT + 17])
def test_cast_segments_arrive_whole_and_are_reported_sent(play: Callable[..., None], size: int) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(size)
        segments = -(-size // SEGMENT)
        place = one.hold(KEY, chunk, offset=8192)
        two.expect(KEY, size, SEGMENT, offset=1 << 20)
        one.transport.casts.cast(place, 0, segments)
        assert one.sink.sent == {}, "never reported inside the call"
        await one.sink.until(lambda: one.sink.sent.get(KEY) == segments)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == segments)
        got = b"".join(two.sink.casts[KEY][index] for index in range(segments))
        assert got[:size] == chunk
        assert got[size:] == bytes(len(got) - size)
        assert two.sink.cast_sources == {one.facts.address}
        assert one.sink.casts == {}, "a node never hears its own casts"
        assert two.transport.counters.cast_packets_received == segments

    play(scenario)


def test_casts_of_a_part_carry_that_part_only(play: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        place = one.hold(KEY, content(50 * SEGMENT))
        two.expect(KEY, 50 * SEGMENT, SEGMENT)
        one.transport.casts.cast(place, 7, 3)
        one.transport.casts.cast(place, 20, 1)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 4)
        assert sorted(two.sink.casts[KEY]) == [7, 8, 9, 20]

    play(scenario)


def test_a_long_cast_reaches_every_reader_whole_and_each_segment_is_reported_once(play: Callable[..., None]) -> None:
    """It leaves by many buffers where a transport has such; the last one is not full, nor is the last segment."""

    async def scenario(one, *others) -> None:  # type: ignore[no-untyped-def]
        chunk = content(777 * SEGMENT + 3)
        place = one.hold(KEY, chunk)
        for other in others:
            other.expect(KEY, len(chunk), SEGMENT, offset=4096)
        for first in range(0, 778, 100):
            one.transport.casts.cast(place, first, min(100, 778 - first))
        await one.sink.until(lambda: one.sink.sent.get(KEY) == 778)
        for other in others:
            await other.sink.until(lambda other=other: len(other.sink.casts.get(KEY, {})) == 778)
            assert bytes(other.memory.view(4096, len(chunk))) == chunk
            counters = other.transport.counters
            assert (counters.cast_packets_received, counters.cast_packets_duplicate) == (778, 0)
            assert counters.dropped == {}
        assert one.sink.failed == {}
        assert one.transport.counters.cast_packets_sent == 778

    play(scenario, 3)


def test_segments_outside_the_chunk_are_misuse(play: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        place = one.hold(KEY, content(4 * SEGMENT))
        with pytest.raises(ValueError, match="segments"):
            one.transport.casts.cast(place, 3, 2)

    play(scenario)


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (0, 4096), (5, 1000), (0, 5 << 20), ((5 << 20) - 1, 1)])
def test_reliable_read_brings_the_range(play_reads: Callable[..., None], offset: int, size: int) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(5 << 20)
        one.hold(KEY, chunk, offset=4096)
        assert await two.read(one, KEY, offset, size, 1 << 20) is ReadOutcome.DONE
        assert bytes(two.memory.view(1 << 20, size)) == chunk[offset : offset + size]
        assert bytes(two.memory.view((1 << 20) + size, 1)) == b"\0"
        await one.sink.until(lambda: one.sink.in_use == 0)
        assert two.transport.counters.read_bytes_received == size

    play_reads(scenario)


def test_the_leaves_of_a_tree_come_by_the_same_way_and_leave_the_pool_alone(play_reads: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(5 << 20), offset=4096)
        one.sink.trees[KEY] = content(80 * 32)
        assert await two.read_leaves(one, KEY, 80 * 32) == (ReadOutcome.DONE, content(80 * 32))
        assert (await two.read_leaves(one, ChunkKey(b"\x08" * 16), 32))[0] is ReadOutcome.ABSENT
        assert not any(two.memory.view(0, 1 << 20))

    play_reads(scenario)


@pytest.mark.parametrize("delivers", [True, False])
def test_leaves_wait_for_a_chunk_that_comes_from_disk(play_reads: Callable[..., None], delivers: bool) -> None:
    """A holder that has a chunk on its disk only can judge another's copy, too."""

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.sink.on_disk.add(KEY)
        asking = asyncio.create_task(two.read_leaves(one, KEY, 32))
        await one.sink.until(lambda: KEY in one.sink.asked_of_disk)
        if delivers:
            one.sink.trees[KEY] = content(32)
        one.sink.on_disk.clear()
        one.sink.asked_of_disk[KEY]()
        outcome, leaves = await asking
        assert (outcome, leaves) == ((ReadOutcome.DONE, content(32)) if delivers else (ReadOutcome.ABSENT, bytes(32)))

    play_reads(scenario)


@pytest.mark.parametrize("delivers", [True, False])
def test_a_read_waits_for_a_chunk_that_comes_from_disk(play_reads: Callable[..., None], delivers: bool) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk, behind = content(40 * SEGMENT), ChunkKey(b"\x07" * 16)
        one.sink.on_disk.add(KEY)
        one.hold(behind, chunk, offset=1 << 20)
        reads = [
            asyncio.ensure_future(two.read(one, key, 0, len(chunk), to)) for key, to in ((KEY, 0), (behind, 1 << 20))
        ]
        await one.sink.until(lambda: KEY in one.sink.asked_of_disk)
        assert not reads[0].done()
        if delivers:
            one.hold(KEY, chunk, offset=4096)
        one.sink.on_disk.clear()
        one.sink.asked_of_disk[KEY]()
        assert await reads[0] is (ReadOutcome.DONE if delivers else ReadOutcome.ABSENT)
        assert await reads[1] is ReadOutcome.DONE
        assert bytes(two.memory.view(0, len(chunk))) == (chunk if delivers else bytes(len(chunk)))
        assert bytes(two.memory.view(1 << 20, len(chunk))) == chunk
        await one.sink.until(lambda: one.sink.in_use == 0)

    play_reads(scenario)


def test_many_reads_at_once_all_end_right(play_reads: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(4 << 20)
        one.hold(KEY, chunk)
        size = 37_000
        offsets = list(range(0, (4 << 20) - size, size))
        outcomes = await asyncio.gather(*(two.read(one, KEY, offset, size, offset) for offset in offsets))
        assert set(outcomes) == {ReadOutcome.DONE}
        assert bytes(two.memory.view(0, offsets[-1] + size)) == chunk[: offsets[-1] + size]

    play_reads(scenario)


def test_absent_chunk_and_range_beyond_the_end_are_absent(play: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(1000))
        assert await two.read(one, OTHER, 0, 10, 0) is ReadOutcome.ABSENT
        assert await two.read(one, KEY, 990, 11, 0) is ReadOutcome.ABSENT
        assert await two.read(one, KEY, 990, 10, 0) is ReadOutcome.DONE
        assert bytes(two.memory.view(0, 10)) == content(1000)[990:]

    play(scenario)


def test_read_from_nobody_fails(play_reads: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        endpoint = one.facts.read_endpoint
        await one.transport.close()
        done: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        two.transport.reads.read(ReadRequest(endpoint, KEY, 0, 10, 0, done.set_result))
        assert not done.done(), "never inside the call"
        async with asyncio.timeout(harness.DEADLINE_S):
            assert await done is ReadOutcome.FAILED

    play_reads(scenario)


def test_reads_under_way_fail_when_the_peer_goes_away_and_work_again_when_it_is_back(
    play_reads: Callable[..., None],
) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(8 << 20))
        # So many that a thread has not taken in all of them when this coroutine runs again, on a busy machine, too.
        reads = [asyncio.ensure_future(two.read(one, KEY, 0, 8 << 20, 0)) for _ in range(30)]
        await reads[0]
        await one.transport.close()
        outcomes = await asyncio.gather(*reads)
        assert ReadOutcome.FAILED in outcomes
        assert one.sink.in_use == 0
        one.facts = await one.transport.start(one.sink, Fabric(segment_bytes=SEGMENT))
        assert await two.read(one, KEY, 0, 8 << 20, 0) is ReadOutcome.DONE

    play_reads(scenario)


def test_cancelled_read_tells_nothing_and_touches_nothing_any_more(play_reads: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, b"\xff" * (8 << 20))
        handle, outcomes = await a_read_under_way(one, two)
        behind = asyncio.ensure_future(two.read(one, KEY, 0, 100, 12 << 20))
        handle.cancel()
        handle.cancel()
        two.memory.view(0, 8 << 20)[:] = bytes(8 << 20)
        assert await behind is ReadOutcome.DONE
        assert bytes(two.memory.view(0, 8 << 20)) == bytes(8 << 20)
        assert outcomes == []
        assert bytes(two.memory.view(12 << 20, 100)) == b"\xff" * 100

    play_reads(scenario)


async def a_read_under_way(one, two):  # type: ignore[no-untyped-def]
    """A read of 8 MiB of which some bytes are here, and the list that its outcome goes to.

    A thread takes the bytes in: on a busy machine all of them may be here before this coroutine runs again, so a read
    that has ended is followed by another.
    """
    while True:
        before = two.transport.counters.read_bytes_received
        outcomes: list[ReadOutcome] = []
        handle = two.transport.reads.read(ReadRequest(one.facts.read_endpoint, KEY, 0, 8 << 20, 0, outcomes.append))
        while two.transport.counters.read_bytes_received == before and not outcomes:
            await asyncio.sleep(0)
        if not outcomes:
            return handle, outcomes


def test_change_of_fabric_applies_to_both_directions(play: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        place = one.hold(KEY, content(8 * SEGMENT))
        other = Fabric(segment_bytes=2 * SEGMENT, qkey=0x2222)
        one.transport.use_fabric(other)
        two.transport.use_fabric(other)
        two.expect(KEY, 8 * SEGMENT, 2 * SEGMENT)
        one.transport.casts.cast(place, 0, 4)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 4)
        assert two.sink.casts[KEY][3] == content(8 * SEGMENT)[6 * SEGMENT :]
        # Somebody of another fabric is not listened to.
        one.transport.use_fabric(Fabric(segment_bytes=2 * SEGMENT, qkey=0x3333))
        one.transport.casts.cast(place, 0, 1)
        one.transport.use_fabric(other)
        one.transport.casts.cast(place, 1, 1)
        await two.sink.until(lambda: 1 in two.sink.casts[KEY] and two.transport.counters.cast_packets_received == 5)
        two.read_counters()
        assert two.transport.counters.dropped == {"cast_qkey": 1}

    play(scenario)


def test_a_fill_that_is_cast_too_is_reported_as_a_cast(play: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        place = one.hold(KEY, content(9 * SEGMENT))
        one.transport.casts.fill(place, 2, 5, two.facts.address, cast_too=True)
        assert one.sink.sent == {}, "never reported inside the call"
        await one.sink.until(lambda: one.sink.sent.get(KEY) == 5)
        assert one.sink.filled == {}
        counters = one.transport.counters
        assert counters.fill_packets_sent == counters.fill_packets_failed == 0
        assert counters.fill_packets_cast + counters.cast_packets_sent == 5

    play(scenario)


def test_fill_is_reported_apart_from_casts_even_if_nobody_answers(play: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        place = one.hold(KEY, content(9 * SEGMENT))
        one.transport.casts.fill(place, 2, 5, two.facts.address)
        assert one.sink.filled == {}, "never reported inside the call"
        await one.sink.until(lambda: one.sink.filled.get(KEY) == 5)
        assert one.sink.sent == {}
        assert one.transport.counters.fill_packets_sent == 5
        assert one.transport.counters.fill_packets_failed == 0

    play(scenario)


def test_a_fill_that_the_network_does_not_take_is_counted() -> None:
    async def main() -> None:
        nodes = await harness.sockets_network(Fabric(segment_bytes=SEGMENT))
        try:
            one = nodes.nodes[0]
            place = one.hold(KEY, content(9 * SEGMENT))
            one.transport.casts.fill(place, 2, 5, Address(0xFFFF_FFFF))
            await one.sink.until(lambda: one.sink.filled.get(KEY) == 5)
            assert one.transport.counters.fill_packets_failed == 5
            assert one.transport.counters.fill_packets_sent == 0
        finally:
            await nodes.close()

    asyncio.run(main())


def test_a_group_that_cannot_be_joined_is_told_and_can_be_left_behind() -> None:
    """Of sockets only: nobody else has a kernel that refuses."""

    async def scenario() -> None:
        network = await harness.sockets_network(Fabric(segment_bytes=SEGMENT))
        one, two = network.nodes
        place = one.hold(KEY, content(2 * SEGMENT))
        unicast = Fabric(group=parse_address("127.0.0.1"), segment_bytes=SEGMENT)
        for _ in range(2):
            with pytest.raises(TransportError, match="cannot join group 127"):
                two.transport.use_fabric(unicast)
        two.transport.use_fabric(Fabric(segment_bytes=SEGMENT))
        two.expect(KEY, 2 * SEGMENT, SEGMENT)
        one.transport.casts.cast(place, 0, 2)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 2)
        await network.close()

    asyncio.run(scenario())


def test_a_data_path_that_is_missing_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    library.datapath.cache_clear()
    try:
        with pytest.raises(NotShippedError, match="is missing: install kvcast's wheel for "):
            asyncio.run(harness.sockets_network(Fabric(segment_bytes=SEGMENT)))
        (tmp_path / "datapath.so").write_bytes(b"\x7fELF of another machine")
        with pytest.raises(NotShippedError, match=r"does not load here .*: install kvcast's wheel for "):
            asyncio.run(harness.sockets_network(Fabric(segment_bytes=SEGMENT)))
    finally:
        monkeypatch.undo()
        library.datapath.cache_clear()


def test_a_place_is_kept_through_a_change_of_fabric_and_given_up_with_another_segment_size() -> None:
    async def scenario() -> None:
        network = await harness.sockets_network(Fabric(segment_bytes=SEGMENT))
        one, two = network.nodes
        place = one.hold(KEY, content(4 * SEGMENT))
        two.expect(KEY, 4 * SEGMENT, SEGMENT)
        for fabric in (Fabric(segment_bytes=SEGMENT, qkey=0x2222), Fabric(segment_bytes=2 * SEGMENT, qkey=0x2222)):
            one.transport.use_fabric(fabric)
            two.transport.use_fabric(fabric)
            one.transport.casts.cast(place, 0, 2)
            await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 2)
            if fabric.segment_bytes == 2 * SEGMENT:
                await two.sink.until(lambda: len(two.sink.unexpected.get(KEY, [])) == 2)
        assert bytes(two.memory.view(0, 4 * SEGMENT)) == content(4 * SEGMENT)[: 2 * SEGMENT] + bytes(2 * SEGMENT)
        await network.close()

    asyncio.run(scenario())


def test_a_cast_to_several_groups_comes_once_and_is_reported_once(play: Callable[..., None]) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        fabric = Fabric(segment_bytes=SEGMENT, fanout=Fanout.MULTICAST)
        for number, node in enumerate((one, two)):
            node.transport.use_fabric(replace(fabric, member=Member(number)))
        chunk = content(90 * SEGMENT + 5)
        place = one.hold(KEY, chunk)
        two.expect(KEY, len(chunk), SEGMENT)
        # Of the first two groups it is in neither: members 6 and 7, and 4.
        one.transport.casts.cast(place, 0, 91, (MEMBERS_MAX // 2 + 3, MEMBERS_MAX + 4, MEMBERS_MAX + 1))
        await one.sink.until(lambda: one.sink.sent.get(KEY) == 91)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 91)
        assert bytes(two.memory.view(0, len(chunk))) == chunk
        assert one.transport.counters.cast_packets_sent == 3 * 91
        assert two.transport.counters.cast_packets_received == 91
        # The last group tells how all ended, whoever is in it.
        one.transport.casts.cast(place, 0, 91, (MEMBERS_MAX + 1, MEMBERS_MAX + 4))
        await one.sink.until(lambda: one.sink.sent.get(KEY) == 2 * 91)
        await two.sink.until(lambda: two.transport.counters.cast_packets_received == 2 * 91)
        assert one.sink.failed == {}

    play(scenario)


def test_a_cast_to_blocks_reaches_their_members_and_what_nobody_expects_is_not_looked_at() -> None:
    """Of sockets: several groups come to one port of a node, which knows each datagram's by IP_PKTINFO."""

    async def scenario() -> None:
        network = await harness.sockets_network(Fabric(segment_bytes=SEGMENT), 4)
        nodes = network.nodes
        for number, node in enumerate(nodes):
            node.transport.use_fabric(Fabric(segment_bytes=SEGMENT, fanout=Fanout.MULTICAST, member=Member(number)))
        holder, near, far, other = nodes
        chunk = content(300 * SEGMENT + 5)
        place = holder.hold(KEY, chunk)
        for reader in (near, far):
            reader.expect(KEY, len(chunk), SEGMENT)
        holder.transport.casts.cast(place, 0, 301, (MEMBERS_MAX + 1, MEMBERS_MAX // 2 + 1))
        await holder.sink.until(lambda: holder.sink.sent.get(KEY) == 301)
        for reader in (near, far):
            await reader.sink.until(lambda reader=reader: len(reader.sink.casts.get(KEY, {})) == 301)
            assert bytes(reader.memory.view(0, len(chunk))) == chunk
            assert "cast_icrc" not in reader.transport.counters.dropped
        holder.transport.casts.cast(place, 0, 301, (MEMBERS_MAX + 3,))
        await other.sink.until(lambda: other.transport.counters.dropped.get("cast_unasked", 0) >= 301)
        assert 1 <= len(other.sink.unexpected[KEY]) < 30, "some are told, for LEAVEs that were lost"
        assert near.transport.counters.cast_packets_received == 301, "one group, once"
        port = near.transport.casts.data_socket().getsockname()[1]  # type: ignore[union-attr]
        with bound_udp("127.77.0.9", 0, "") as stray:  # the socket of the groups has its port at every address
            stray.setsockopt(socket.IPPROTO_IP, socket_options.IP_MTU_DISCOVER, socket_options.IP_PMTUDISC_DO)
            to = Fabric(segment_bytes=SEGMENT, group=parse_address("127.77.9.9"))
            framing = ChunkFraming(OTHER, memoryview(bytes(8)), to, parse_address("127.77.0.9"), stray.getsockname()[1])
            stray.sendto(framing.datagram(0), ("127.77.9.9", port))
        nodes_hear = [node.transport.counters for node in nodes]
        await other.sink.until(lambda: any(one.dropped.get("cast_unicast") for one in nodes_hear))
        assert not any(OTHER in node.sink.unexpected for node in nodes), "of another network"
        await network.close()

    asyncio.run(scenario())
