"""The data path in C against the same in Python: what is refused and why, what is written where, who hears of it.

All but the last tests receive without a thread: what comes when is decided here. Run once more under sanitizers by
`test_native_sanitizers.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP

from hostagent.native.library import structure
from hostagent.transport.base import ChunkPlace
from kvchunk.ids import ChunkKey
from kvproto.ids import Address, parse_address
from kvproto.wire.data import ChunkFraming, Fabric
from kvproto.wire.icrc import icrc_seed
from tests.reference_datagrams import decode_batch, icrc
from tests.unit.hostagent.datapath_bench import (
    DEADLINE_S,
    DSCP,
    FABRIC,
    KEY,
    NUMBERED,
    OTHER,
    OWN,
    POOL_BYTES,
    SEGMENT,
    SEGMENTS,
    SIZE,
    SOURCE,
    Bench,
    bench,
    body,
    icrc_of_scapy,
)
from tests.unit.kvproto.datagrams import decode_datagram

# ---------------------------------------------------------------------- refusing


MUTATIONS = st.lists(
    st.tuples(
        st.integers(0, SEGMENTS - 1),
        st.sampled_from(["as it is", "flipped", "header", "cut", "longer", "noise"]),
        st.integers(0, 51),
        st.integers(0, 4 * SEGMENT),
        st.integers(1, 255),
        st.booleans(),
        st.sampled_from([0, DSCP, 3]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def mutated(
    datagram: bytes, how: str, at: int, size: int, bits: int, resealed: bool, source: Address, port: int
) -> bytes:
    """A datagram with something wrong, `resealed`: with an ICRC that fits again."""
    changed = bytearray(datagram)
    if how == "flipped":
        changed[size % len(changed)] ^= bits
    elif how == "header":
        changed[at] ^= bits
    elif how == "cut":
        del changed[size % len(changed) :]
    elif how == "longer":
        changed += bytes(1 + size)
    elif how == "noise":
        changed[:] = random.Random(size).randbytes(len(changed))
    if resealed and len(changed) == FABRIC.datagram_bytes:
        seed = icrc_seed(source, FABRIC.group, port, len(changed))
        changed[-4:] = icrc(seed, changed[:-4]).to_bytes(4, "little")
    return bytes(changed)


@settings(deadline=None, max_examples=150)
@given(MUTATIONS)
def test_every_datagram_is_judged_as_python_judges_it(mutations: list[tuple[Any, ...]]) -> None:
    with bench() as made:
        datagrams: list[tuple[bytes, bool, int]] = []
        framings = {own: made.framing_of(KEY, body(), made.own_peer if own else made.peer) for own in (False, True)}
        for segment, how, at, size, bits, own, dscp, resealed in mutations:
            peer = made.own_peer if own else made.peer
            address, port = peer.getsockname()
            source = parse_address(address)
            datagram = mutated(framings[own].datagram(segment), how, at, size, bits, resealed, source, port)
            made.send(datagram, peer, dscp)
            datagrams.append((datagram, own, dscp))
        made.intake.drain_receive()
        groups, dropped = judged_by_python(datagrams, made)
    assert made.counters.dropped == dropped
    assert [(one.key, one.source, one.segments.tolist(), one.from_switch) for one in made.sink.unexpected] == groups
    assert made.counters.cast_packets_received == sum(len(segments) for _, _, segments, _ in groups)


@settings(deadline=None, max_examples=100)
@given(MUTATIONS, st.sampled_from([FABRIC.datagram_bytes, FABRIC.datagram_bytes - 1, 400, 1200]))
def test_datagrams_that_come_joined_are_judged_one_by_one(mutations: list[tuple[Any, ...]], piece_bytes: int) -> None:
    """Whoever may send can have any bytes joined, of any length."""
    with bench() as made:
        address, port = made.peer.getsockname()
        joined = b"".join(
            mutated(made.framing.datagram(segment), how, at, size, bits, resealed, parse_address(address), port)
            for segment, how, at, size, bits, _, _, resealed in mutations
        )
        pieces = [joined[at : at + piece_bytes] for at in range(0, len(joined), piece_bytes)]
        if len(pieces) > 1:
            made.send_joined(pieces)
        else:
            made.send(joined)
            pieces = [joined]
        made.intake.drain_receive()
        groups, dropped = judged_by_python([(piece, False, 0) for piece in pieces], made)
    assert made.counters.dropped == dropped
    assert [(one.key, one.source, one.segments.tolist(), one.from_switch) for one in made.sink.unexpected] == groups


def test_joined_datagrams_come_to_their_places_in_order_however_they_are_numbered() -> None:
    """More than one look takes, so that it ends within a buffer."""
    with bench() as made:
        segments = 200
        content = body(segments * SEGMENT)
        made.expect(size_bytes=len(content))
        framing = made.framing_of(KEY, content, fabric=NUMBERED)
        port = made.peer.getsockname()[1]
        order = list(range(segments))
        random.Random(4).shuffle(order)
        for start in range(0, segments, 40):
            part = [framing.datagram(segment) for segment in order[start : start + 40]]
            part = [one[:-4] + icrc_of_scapy(one, port, 0xFFF0 + at & 0xFFFF) for at, one in enumerate(part)]
            made.send_joined(part, dscp=DSCP)
        made.intake.drain_receive()
        assert made.at(size_bytes=len(content)) == content
        assert made.sink.segments() == order
        assert made.counters.cast_packets_from_switch == segments
        assert not made.counters.dropped


def judged_by_python(
    datagrams: list[tuple[bytes, bool, int]], made: Bench
) -> tuple[list[tuple[ChunkKey, Address, list[int], int]], dict[str, int]]:
    """Groups, and what was dropped, as `decode_batch` finds them."""
    heard = [(datagram, own, dscp) for datagram, own, dscp in datagrams if not own or dscp == DSCP]
    dropped = {"own_cast": len(datagrams) - len(heard)} if len(heard) < len(datagrams) else {}
    row_bytes = -(-(FABRIC.datagram_bytes + 1) // 64) * 64
    rows = np.zeros((len(heard), row_bytes), np.uint8)
    for row, (datagram, _, _) in zip(rows, heard, strict=True):
        row[: min(len(datagram), row_bytes)] = np.frombuffer(datagram[:row_bytes], np.uint8)
    names = [(made.own_peer if own else made.peer).getsockname() for _, own, _ in heard]
    batch = decode_batch(
        rows,
        np.array([len(one) for one, _, _ in heard], np.int64),
        np.array([parse_address(address) for address, _ in names], np.uint32),
        np.array([port for _, port in names], np.int64),
        FABRIC,
        np.array([dscp == DSCP for _, _, dscp in heard], np.bool_),
    )
    dropped |= {f"cast_{reason.name.lower()}": count for reason, count in batch.dropped.items() if count}
    groups = [(one.key, one.source, one.segments.tolist(), one.from_switch) for one in batch.groups]
    return groups, dropped


def test_an_rdma_nic_may_number_its_ip_packets() -> None:
    """Its source QPN is not the sockets', and what it puts into the IP identification is its own business."""
    with bench() as made:
        address, port = made.peer.getsockname()
        nic = Fabric(segment_bytes=SEGMENT, source_qpn=0x77)
        framing = ChunkFraming(KEY, memoryview(body()), nic, parse_address(address), port)
        datagram = framing.datagram(0)
        packet = IP(src=SOURCE, dst="239.75.86.1", flags="DF", id=0x4711) / UDP(sport=port, dport=4791, chksum=0)
        packet = IP(bytes(packet / BTH(datagram)))
        icrc = packet[BTH].compute_icrc(bytes(packet[UDP])[8:-4])
        assert icrc != datagram[-4:]
        made.send(datagram[:-4] + icrc)
        made.send(made.framing.datagram(1)[:-4] + icrc)
        made.intake.drain_receive()
        assert [one.segments.tolist() for one in made.sink.unexpected] == [[0]]
        assert made.counters.dropped == {"cast_icrc": 1}


# ---------------------------------------------------------------------- placing


def test_segments_come_to_their_places_and_are_told_by_chunk_and_source() -> None:
    with bench() as made:
        made.expect()
        other = made.framing_of(OTHER, body(3 * SEGMENT, 2), made.own_peer)
        made.expect(OTHER, 3 * SEGMENT, offset=65536)
        order = list(range(SEGMENTS))
        random.Random(3).shuffle(order)
        for place, segment in enumerate(order):
            made.send(made.framing.datagram(segment))
            if place % 7 == 0:
                made.send(other.datagram(place // 7), made.own_peer, DSCP)
        made.intake.drain_receive()
        assert made.at() == body()
        assert made.at(65536, 3 * SEGMENT) == body(3 * SEGMENT, 2)
        told = {one.key: (one.segments.tolist(), one.source, one.from_switch) for one in made.sink.placed}
        assert told == {
            KEY: (order, parse_address(SOURCE), 0),
            OTHER: ([0, 1, 2], parse_address(OWN), 3),
        }
        assert made.counters.cast_packets_from_switch == 3
        assert made.counters.dropped == {}


def test_only_what_is_missing_is_written_and_all_is_told() -> None:
    with bench() as made:
        missing = made.expect()
        missing[3] = False
        for segment in (2, 3, 2):
            made.send(made.framing.datagram(segment))
        made.intake.drain_receive()
        missing[2] = False
        made.memory.view(4096, SIZE)[:] = bytes(SIZE)
        made.send(made.framing.datagram(2))
        made.intake.drain_receive()
        assert made.at() == bytes(SIZE)
        assert made.sink.segments() == [2, 3, 2, 2]
        assert made.counters.cast_packets_duplicate == 3


def test_a_last_short_segment_leaves_what_follows_the_chunk_alone() -> None:
    with bench() as made:
        made.memory.view(0, 65536)[:] = b"\xee" * 65536
        made.expect()
        made.send(made.framing.datagram(SEGMENTS - 1))
        made.intake.drain_receive()
        assert made.at(4096 + SIZE - 17, 17) == body()[-17:]
        assert made.at(4096 + SIZE, 4096) == b"\xee" * 4096
        assert made.at(4096, SIZE - 17) == b"\xee" * (SIZE - 17)


def test_a_chunk_that_says_another_size_is_refused() -> None:
    with bench() as made:
        made.expect()
        made.send(made.framing_of(KEY, body(5 * SEGMENT)).datagram(1))
        made.intake.drain_receive()
        assert made.sink.placed == made.sink.unexpected == []
        assert made.counters.dropped == {"cast_other_size": 1}
        assert made.at() == bytes(SIZE)


def test_what_is_forgotten_is_not_written_and_what_had_come_of_it_is_not_told() -> None:
    with bench() as made:
        made.expect()
        made.send(made.framing.datagram(0))
        made.library.dp_receiver_drain_intake(made.library.receiver)
        made.intake.forget(KEY)
        made.intake.forget(KEY)
        made.expect(offset=65536)
        made.send(made.framing.datagram(1))
        made.intake.drain_receive()
        assert made.sink.segments() == [1], "segment 0 came to the place that the chunk had before"
        assert made.at(65536 + SEGMENT, SEGMENT) == body()[SEGMENT : 2 * SEGMENT]
        made.intake.forget(KEY)
        made.send(made.framing.datagram(2))
        made.intake.drain_receive()
        assert [one.segments.tolist() for one in made.sink.unexpected] == [[2]]


def test_misuse_is_refused() -> None:
    with bench() as made:
        with pytest.raises(ValueError, match="leaves the pool"):
            made.intake.expect(ChunkPlace(KEY, POOL_BYTES - SEGMENT, 2 * SEGMENT), np.ones(2, np.bool_))
        with pytest.raises(ValueError, match="3 segments are not those of 512 bytes"):
            made.intake.expect(ChunkPlace(KEY, 0, 2 * SEGMENT), np.ones(3, np.bool_))
        with pytest.raises(ValueError, match="segments are not those"):
            made.intake.expect(ChunkPlace(KEY, 0, 2 * SEGMENT), np.ones(4, np.bool_)[::2])


def test_strangers_with_many_chunks_fill_no_memory_and_stop_nobody() -> None:
    """More chunks than one drain tells of: the rest waits in the socket until the next."""
    with bench() as made:
        keys = [ChunkKey(index.to_bytes(16, "big")) for index in range(700)]
        for key in keys:
            made.send(made.framing_of(key, body(SEGMENT)).datagram(0))
        while len(made.sink.unexpected) < len(keys):
            before = len(made.sink.unexpected)
            made.intake.drain_receive()
            assert len(made.sink.unexpected) > before
        assert [one.key for one in made.sink.unexpected] == keys


def test_what_the_kernel_drops_is_counted() -> None:
    with bench() as made:
        made.receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(200):
            made.send(made.framing.datagram(0))
        made.intake.drain_receive()
        made.send(made.framing.datagram(0))
        made.intake.drain_receive()
        counters = made.counters
        assert counters.cast_receive_overflows == 201 - counters.cast_packets_received > 0


# ---------------------------------------------------------------------- with its thread


def play(scenario: Callable[[Bench], Awaitable[None]], fabric: Fabric = FABRIC) -> None:
    async def main() -> None:
        made = Bench(asyncio.get_running_loop(), threaded=True, fabric=fabric)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await scenario(made)
        finally:
            made.close()

    asyncio.run(main())


def test_the_event_loop_hears_of_a_whole_chunk_at_once_whatever_its_patience() -> None:
    async def scenario(made: Bench) -> None:
        made.sink.patience = (3600.0, 1 << 20)
        made.send(made.framing.datagram(0))
        while not made.sink.unexpected:
            await asyncio.sleep(0)
        made.expect(here=[5])
        for segment in (one for one in range(SEGMENTS) if one != 5):
            made.send(made.framing.datagram(segment))
        while len(made.sink.segments()) < SEGMENTS - 1:
            await asyncio.sleep(0)

    play(scenario)


@pytest.mark.parametrize("cause", ["expect", "drain_receive"])
def test_who_begins_to_ask_is_no_longer_patient(cause: str) -> None:
    """An announcement expects casts once more, and a timer has looked at what came before it made the reader ask."""
    with bench() as made:
        made.sink.patience = (12.0, 1024)
        made.expect()
        made.loop.run_until_complete(asyncio.sleep(0))
        assert made.library.patience == (12 * 10**9, 1024)
        made.expect() if cause == "expect" else made.intake.drain_receive()
        made.sink.patience = (4.0, 32)
        made.loop.run_until_complete(asyncio.sleep(0))
        assert made.library.patience == (4 * 10**9, 32)


def test_what_is_refused_is_counted_though_nothing_good_comes() -> None:
    async def scenario(made: Bench) -> None:
        made.send(b"noise")
        while not made.counters.dropped:
            await asyncio.sleep(0)
        assert made.counters.dropped == {"cast_truncated": 1}

    play(scenario)


def test_nothing_is_written_late() -> None:
    """Chunks are wanted and forgotten in the middle of a flood; once forgotten, their memory stays as it is."""

    async def scenario(made: Bench) -> None:
        datagrams = [made.framing.datagram(segment) for segment in range(SEGMENTS)]
        view = made.memory.view(4096, SIZE)
        written = 0
        for turn in range(300):
            made.expect()
            for datagram in datagrams[turn % 5 :]:
                made.send(datagram)
            made.intake.forget(KEY)
            written += any(view)
            view[:] = bytes(SIZE)
            for datagram in datagrams[:5]:
                made.send(datagram)
            made.intake.drain_receive()
            assert not any(view)
        assert written, "the thread never got anywhere"

    play(scenario)


def test_decoded_one_by_one_it_is_the_same() -> None:
    """What `decode_datagram`, the tools' and tests' decoder, reads is what is placed."""
    with bench() as made:
        address, port = made.peer.getsockname()
        one = decode_datagram(made.framing.datagram(20), parse_address(address), port, FABRIC)
        made.expect()
        made.send(made.framing.datagram(20))
        made.intake.drain_receive()
        assert made.at(4096 + 20 * SEGMENT, 17) == one.payload


def test_whoever_looks_in_the_middle_of_a_batch_hears_of_the_rest_of_it() -> None:
    fabric = replace(FABRIC, segment_bytes=4096)
    size_bytes = 15 * fabric.segment_bytes

    async def scenario(made: Bench) -> None:
        framing = made.framing_of(KEY, body(size_bytes), fabric=fabric)
        buffer = [framing.datagram(segment) for segment in range(14)]
        drain, receiver = made.library.dp_receiver_drain, made.library.receiver
        for _ in range(2000):
            made.sink.placed.clear()
            # More is missing than comes: the end of a chunk would be told, too.
            made.intake.expect(ChunkPlace(KEY, 4096, size_bytes), np.ones(15, np.bool_))
            made.send_joined(buffer)
            drained = structure("drained")()
            while not drained.reports_count:
                drain(receiver, ctypes.byref(drained))
            while drained.segments_count + len(made.sink.segments()) < len(buffer):
                await asyncio.sleep(0)
            made.intake.forget(KEY)

    play(scenario, fabric)
