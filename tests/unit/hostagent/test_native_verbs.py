"""The data path in C on a NIC's queues: what it takes, refuses, counts and survives. The NIC exists in this process.

All but the last tests receive without a thread: what comes when is decided here. Run once more under sanitizers by
`test_native_sanitizers.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostagent import limits
from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import ChunkPlace, TransportCounters
from hostagent.transport.host import Host
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.native_casts import NativeCastQueue, NativeCastReceiver
from kvchunk.ids import ChunkKey
from kvproto.ids import parse_address
from kvproto.wire.data import Fabric, chunk_headers
from tests.contracts.transport import fake_nic
from tests.contracts.transport.harness import RecordingSink
from tests.reference_datagrams import decode_messages

KEY = ChunkKey(b"k" * 16)
SEGMENT = 256
DSCP = 0x15
FABRIC = Fabric(segment_bytes=SEGMENT, from_switch_dscp=DSCP)
OWN, SOURCE = "10.75.0.1", "10.75.0.2"
POOL_BYTES = 1 << 20
SIZE = 20 * SEGMENT + 17
SEGMENTS = 21
PLACE = 4096
DEADLINE_S = 20
ROWS = limits.VERBS_RECEIVE_BLOCKS_MIN * limits.VERBS_RECEIVE_BLOCK_ROWS


def body(size_bytes: int = SIZE, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def messages_of(content: bytes, key: ChunkKey = KEY) -> list[bytes]:
    """UD messages of a chunk: header and segment."""
    headers = chunk_headers(key, len(content), FABRIC)
    padded = content.ljust(len(headers) * SEGMENT, b"\0")
    return [bytes(head) + padded[at * SEGMENT : (at + 1) * SEGMENT] for at, head in enumerate(headers)]


def host_of(loop: asyncio.AbstractEventLoop, memory: PoolMemory, sink: RecordingSink, rows: int = ROWS) -> Host:
    return Host(
        config=DataConfig(address=OWN, receive_buffer_bytes=rows * SEGMENT),
        memory=memory,
        loop=loop,
        sink=sink,
        counters=TransportCounters(),
        address=OWN,
        own=parse_address(OWN),
        read_address=OWN,
        native=datapath(),
    )


class Bench:
    """A NIC, and a receiver with its pool on it; its ring has as few rows as there can be."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threaded: bool = False) -> None:
        self.wire = fake_nic.Wire(loop)
        self.port = fake_nic.open_port(self.wire, OWN)
        self.nic = self.wire.nic(OWN)
        self.sink = RecordingSink()
        self.memory = PoolMemory(POOL_BYTES, prefault=False)
        self.broken: list[str] = []
        host = host_of(loop, self.memory, self.sink)
        self.counters = host.counters
        self.receiver = NativeCastReceiver(
            self.port, FABRIC, host, lambda why: self.broken.append(str(why)), threaded=threaded
        )
        assert self.receiver.waiting_bytes_max == ROWS * SEGMENT

    def expect(self, key: ChunkKey = KEY, size_bytes: int = SIZE, offset: int = PLACE) -> npt.NDArray[np.bool_]:
        missing = np.ones(-(-size_bytes // SEGMENT), np.bool_)
        place = ChunkPlace(key, offset, size_bytes)
        self.sink.expected[key] = place, self.memory, SEGMENT
        self.receiver.intake.expect(place, missing)
        return missing

    def at(self, offset: int = PLACE, size_bytes: int = SIZE) -> bytes:
        return bytes(self.memory.view(offset, size_bytes))

    def close(self) -> None:
        self.receiver.close()
        self.port.close()
        self.memory.close()


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    made = Bench(loop)
    try:
        yield made
    finally:
        made.close()
        loop.close()


def test_segments_come_to_their_places_whatever_their_order() -> None:
    with bench() as made:
        missing = made.expect()
        missing[3] = False
        messages = messages_of(body())
        order = [one for one in range(SEGMENTS) if one != 4]
        random.Random(2).shuffle(order)
        for segment in order:
            made.nic.deliver(messages[segment], SOURCE, dscp=DSCP if segment == 7 else 0)
        made.receiver.intake.drain_receive()
        expected = bytearray(body())
        for segment in (3, 4):
            expected[segment * SEGMENT : (segment + 1) * SEGMENT] = bytes(SEGMENT)
        assert made.at() == expected, "3 is not missing, 4 has not come"
        assert sorted(made.sink.casts[KEY]) == sorted(order)
        assert made.sink.cast_sources == {parse_address(SOURCE)}
        counters = made.counters
        assert (counters.cast_packets_received, counters.cast_packets_from_switch) == (SEGMENTS - 1, 1)
        assert counters.cast_packets_duplicate == 1
        assert counters.dropped == {}


def test_the_ring_goes_round_and_rows_return_to_the_nic_in_chains() -> None:
    with bench() as made:
        made.expect(size_bytes=40 * SEGMENT)
        messages = messages_of(body(40 * SEGMENT))
        before = made.nic.posts
        for turn in range(50):
            for message in messages:
                made.nic.deliver(message, SOURCE)
            made.receiver.intake.drain_receive()
            assert made.counters.cast_packets_received == 40 * (turn + 1)
        assert made.nic.lost == made.counters.cast_receive_overflows == 0
        assert made.nic.posts - before <= 2000 / 32
        assert made.at(size_bytes=40 * SEGMENT) == body(40 * SEGMENT)


def test_a_ring_that_ran_dry_is_counted_and_goes_on() -> None:
    with bench() as made:
        made.expect()
        message = messages_of(body())[0]
        for _ in range(ROWS + 9):
            made.nic.deliver(message, SOURCE)
        made.receiver.intake.drain_receive()
        assert made.nic.lost == 9
        assert made.counters.cast_receive_overflows == 1
        assert made.counters.cast_packets_received == ROWS
        for message in messages_of(body()):
            made.nic.deliver(message, SOURCE)
        made.receiver.intake.drain_receive()
        assert made.at() == body()
        assert made.counters.cast_receive_overflows == 1


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.integers(0, SEGMENTS - 1),
            st.sampled_from(["as it is", "header", "cut", "longer"]),
            st.integers(0, 31),
            st.integers(1, 255),
            st.booleans(),
            st.sampled_from([0, DSCP, 3]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_message_is_judged_as_python_judges_it(mutations: list[tuple[Any, ...]]) -> None:
    with bench() as made:
        heard: list[tuple[bytes, bool]] = []
        own_count = 0
        for segment, how, at, bits, own, dscp in mutations:
            message = bytearray(messages_of(body())[segment])
            if how == "header":
                message[at] ^= bits
            elif how == "cut":
                del message[at:]
            elif how == "longer":
                message += b"!"
            made.nic.deliver(bytes(message), OWN if own else SOURCE, dscp=dscp)
            if own and dscp != DSCP:
                own_count += 1
            else:
                heard.append((bytes(message), own))
        made.receiver.intake.drain_receive()
        rows = np.zeros((len(heard), FABRIC.message_bytes + 1), np.uint8)
        for row, (message_, _) in zip(rows, heard, strict=True):
            row[: len(message_)] = np.frombuffer(message_, np.uint8)
        lengths = np.array([len(message_) for message_, _ in heard], np.int64)
        sources = np.array([parse_address(OWN if own else SOURCE) for _, own in heard], np.uint32)
        batch = decode_messages(rows, lengths, sources, FABRIC)
        dropped = {f"cast_{reason.name.lower()}": count for reason, count in batch.dropped.items() if count}
        if own_count:
            dropped["own_cast"] = own_count
        assert made.counters.dropped == dropped
        told = {key: sorted(segments) for key, segments in made.sink.unexpected.items()}
        wanted: dict[ChunkKey, list[int]] = {}
        for group in batch.groups:
            wanted.setdefault(group.key, []).extend(group.segments.tolist())
        assert told == {key: sorted(segments) for key, segments in wanted.items()}


def test_a_queue_pair_that_broke_is_replaced_and_its_late_completions_are_ignored() -> None:
    with bench() as made:
        made.expect()
        messages = messages_of(body())
        (old,) = made.nic.pairs(receives=True)
        made.nic.deliver(messages[0], SOURCE)
        old.break_()
        made.receiver.intake.drain_receive()
        assert sorted(made.sink.casts[KEY]) == [0], "what came before it broke is good"
        assert made.counters.dropped == {"cast_receive_queue_pair": 1}
        (new,) = made.nic.pairs(receives=True)
        assert (new is not old, len(new.rows)) == (True, ROWS)
        for message in messages[1:]:
            made.nic.deliver(message, SOURCE)
        made.receiver.intake.drain_receive()
        assert made.at() == body()
        assert made.counters.dropped == {"cast_receive_queue_pair": 1}
        assert not made.broken


def test_where_no_other_queue_pair_can_be_had_the_end_is_told() -> None:
    with bench() as made:
        (pair,) = made.nic.pairs(receives=True)
        made.nic.refuses_pairs = True
        pair.break_()
        made.receiver.intake.drain_receive()
        assert made.broken == ["ibv_create_qp failed: Cannot allocate memory"]


def test_a_completion_queue_that_broke_is_told() -> None:
    with bench() as made:
        (pair,) = made.nic.pairs(receives=True)
        pair.receives.broken = True
        made.receiver.intake.drain_receive()
        assert made.broken == ["the completion queue of casts is broken"]


# ---------------------------------------------------------------------- with its thread


def play(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        made = Bench(asyncio.get_running_loop(), threaded=True)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await scenario(made)
        finally:
            made.close()

    asyncio.run(main())


def test_the_thread_sleeps_until_something_comes_and_loses_no_wake_up() -> None:
    async def scenario(made: Bench) -> None:
        made.expect()
        for segment, message in enumerate(messages_of(body())):
            made.nic.deliver(message, SOURCE)
            await made.sink.until(lambda segment=segment: segment in made.sink.casts.get(KEY, {}))
        assert made.at() == body()

    play(scenario)


def test_the_thread_goes_on_with_a_fresh_queue_pair() -> None:
    async def scenario(made: Bench) -> None:
        made.expect()
        messages = messages_of(body())
        for turn in range(1, 4):
            (pair,) = made.nic.pairs(receives=True)
            with made.wire.lock:
                pair.break_()
                pair.receives.ring()
            while made.counters.dropped != {"cast_receive_queue_pair": turn}:
                await asyncio.sleep(0)
            made.nic.deliver(messages[turn], SOURCE)
            await made.sink.until(lambda turn=turn: turn in made.sink.casts.get(KEY, {}))

    play(scenario)


def test_nothing_is_written_late() -> None:
    """Chunks are wanted and forgotten in the middle of a flood; once forgotten, their memory stays as it is."""

    async def scenario(made: Bench) -> None:
        messages = messages_of(body())
        view = made.memory.view(PLACE, SIZE)
        for turn in range(100):
            made.expect()
            for message in messages[turn % 5 :]:
                made.nic.deliver(message, SOURCE)
            made.receiver.intake.forget(KEY)
            view[:] = bytes(SIZE)
            for message in messages[:5]:
                made.nic.deliver(message, SOURCE)
            made.receiver.intake.drain_receive()
            assert not any(view)

    play(scenario)


# ---------------------------------------------------------------------- sending

LONG = limits.VERBS_CAST_QUEUE_SEGMENTS + 4 * limits.VERBS_CAST_CHAIN_SEGMENTS
"""Segments of a chunk that does not fit the queue."""


class Sending:
    """A NIC, and a queue of casts with its pool on it."""

    def __init__(self) -> None:
        self.wire = fake_nic.Wire(asyncio.get_running_loop())
        self.port = fake_nic.open_port(self.wire, OWN)
        self.nic = self.wire.nic(OWN)
        self.sink = RecordingSink()
        self.memory = PoolMemory(POOL_BYTES, prefault=False)
        self.pool = self.port.register(self.memory.bytes_.ctypes.data, POOL_BYTES, abi.ACCESS_LOCAL_WRITE, "the pool")
        self.broken: list[str] = []
        host = host_of(asyncio.get_running_loop(), self.memory, self.sink)
        self.counters = host.counters
        self.queue = NativeCastQueue(self.port, self.pool, host, datapath(), lambda why: self.broken.append(str(why)))
        self.queue.use_fabric(FABRIC)
        self.chunk = ChunkPlace(KEY, 0, LONG * SEGMENT)

    def add(self, chunk: ChunkPlace, first: int, count: int) -> None:
        self.queue.add(chunk, first, count, [FABRIC.group])

    async def until_held(self, count: int) -> None:
        while self.nic.held_count != count:
            await asyncio.sleep(0)

    def close(self) -> None:
        self.queue.close()
        self.pool.close()
        self.port.close()
        self.memory.close()


def send(scenario: Callable[[Sending], Awaitable[None]]) -> None:
    async def main() -> None:
        made = Sending()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await scenario(made)
        finally:
            made.close()

    asyncio.run(main())


def test_no_more_is_posted_than_fits_and_what_left_is_told_in_order() -> None:
    async def scenario(made: Sending) -> None:
        depth, step = limits.VERBS_CAST_QUEUE_SEGMENTS, limits.VERBS_CAST_CHAIN_SEGMENTS
        made.nic.holds_sends = True
        made.add(made.chunk, 0, LONG)
        made.add(ChunkPlace(ChunkKey(b"o" * 16), 0, SEGMENT), 0, 1)
        await made.until_held(depth)
        assert made.sink.sent == {}, "the NIC has confirmed nothing"
        for told in range(step, LONG - depth + 1, step):
            made.nic.release(step)
            await made.sink.until(lambda told=told: made.sink.sent.get(KEY) == told)
            await made.until_held(depth)
        made.nic.release(depth)
        await made.until_held(1)
        made.nic.release(1)
        await made.sink.until(lambda: made.sink.sent == {KEY: LONG, ChunkKey(b"o" * 16): 1})

    send(scenario)


def test_what_was_in_the_queue_of_a_pair_that_broke_has_failed_and_the_rest_leaves() -> None:
    async def scenario(made: Sending) -> None:
        depth, step = limits.VERBS_CAST_QUEUE_SEGMENTS, limits.VERBS_CAST_CHAIN_SEGMENTS
        made.nic.holds_sends = True
        made.add(made.chunk, 0, LONG)
        await made.until_held(depth)
        made.nic.holds_sends = False
        made.nic.release(2 * step, status=1)
        await made.sink.until(lambda: made.sink.sent.get(KEY, 0) + made.sink.failed.get(KEY, 0) == LONG)
        failed = made.sink.failed[KEY]
        # What followed the first run may have been posted when the second was found broken.
        assert depth - step <= failed <= depth
        assert failed % step == 0
        assert made.counters.dropped == {"cast_send_local_length_error": 1}
        assert not made.broken

    send(scenario)


def test_a_post_that_is_refused_fails_its_run_alone() -> None:
    async def scenario(made: Sending) -> None:
        made.nic.refuses_posts = True
        made.add(made.chunk, 0, LONG)
        await made.sink.until(lambda: made.sink.failed == {KEY: LONG})
        made.nic.refuses_posts = False
        made.add(made.chunk, 5, 7)
        await made.sink.until(lambda: made.sink.sent == {KEY: 7})
        assert made.counters.dropped == {"cast_post": 1}

    send(scenario)


@pytest.mark.parametrize(("completions", "says"), [(True, "is broken"), (False, "Cannot allocate memory")])
def test_where_nothing_more_can_be_sent_that_is_told(completions: bool, says: str) -> None:
    async def scenario(made: Sending) -> None:
        made.nic.holds_sends = made.nic.refuses_pairs = True
        made.add(made.chunk, 0, 3)
        await made.until_held(3)
        (pair,) = made.nic.pairs()
        with made.wire.lock:
            pair.sends.broken = completions
            made.nic.release(3, status=1)
        await made.sink.until(lambda: made.sink.failed == {KEY: 3})
        while not made.broken:
            await asyncio.sleep(0)
        assert says in made.broken[0]
        assert made.sink.sent == {}

    send(scenario)


def test_what_is_given_up_is_told_once_and_not_inside_the_call() -> None:
    async def scenario(made: Sending) -> None:
        made.nic.holds_sends = True
        made.add(made.chunk, 0, LONG)
        await made.until_held(limits.VERBS_CAST_QUEUE_SEGMENTS)
        made.queue.give_up()
        made.queue.close()
        assert made.sink.failed == {}
        await made.sink.until(lambda: made.sink.failed == {KEY: LONG})
        assert made.sink.sent == {}

    send(scenario)


def test_segments_that_no_chunk_has_are_misuse() -> None:
    async def scenario(made: Sending) -> None:
        with pytest.raises(ValueError, match=f"segments {LONG - 1}\\+2 of {LONG}"):
            made.add(made.chunk, LONG - 1, 2)

    send(scenario)
