"""What leaves by the data path in C, against the same in Python and by others' code: how, when, and what is told.

Run once more under sanitizers by `test_native_sanitizers.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import random
import socket
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport import socket_options
from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import group_socket
from hostagent.transport.native_sender import SegmentRun
from hostagent.transport.sockets import casting_threads
from kvchunk.ids import ChunkKey
from kvproto.fanout import Fanout
from kvproto.ids import format_address, parse_address
from kvproto.wire.control import Control, Flag, Op
from kvproto.wire.data import ChunkFraming
from kvproto.wire.icrc import destination_difference
from tests.unit.hostagent.datapath_bench import (
    DEADLINE_S,
    FABRIC,
    FAST_BYTES_S,
    KEY,
    NUMBERED,
    OTHER,
    POOL_BYTES,
    SEGMENT,
    SEGMENTS,
    SIZE,
    SO_NO_CHECK,
    SOURCE,
    TARGET,
    body,
    icrc_of_scapy,
    sender_of,
    udp_socket,
)
from tests.unit.kvproto.datagrams import decode_datagram

# ---------------------------------------------------------------------- CRC, framing


@settings(deadline=None)
@given(st.binary(max_size=1500), st.integers(0, 0xFFFF_FFFF), st.sampled_from((0, 1, 2)))
def test_crc_is_that_of_zlib(content: bytes, start: int, level: int) -> None:
    """With the instructions of each level (kvcodec/src/cpu.h), as far as this processor has them."""
    datapath().dp_use_level(level)
    assert datapath().dp_crc(start, content, len(content)) == zlib.crc32(content, start)


@pytest.mark.parametrize("rate_bytes_s", [1, FAST_BYTES_S], ids=["slow link", "fast link"])
@pytest.mark.parametrize("fill", [None, Flag.NONE, Flag.CAST_TOO], ids=["cast", "fill", "fill that is cast"])
def test_what_leaves_is_what_python_makes_and_scapy_checks(fill: Flag | None, rate_bytes_s: int) -> None:
    """Casts leave by one buffer where that is little time of the link, and the kernel numbers their IP packets then."""

    async def scenario() -> None:
        memory, content = PoolMemory(POOL_BYTES, prefault=False), body()
        memory.view(8192, SIZE)[:] = content
        sent: Counter[ChunkKey] = Counter()
        with udp_socket(SOURCE) as sock, udp_socket(TARGET) as target:
            socket_options.take_buffers(target)
            sender = sender_of(sock, memory, rate_bytes_s)
            run = SegmentRun(ChunkPlace(KEY, 8192, SIZE), FABRIC, 1, SEGMENTS - 1, fill=fill)
            to = [(parse_address(TARGET), 0)], target.getsockname()[1]
            sender.send(
                run, *to, lambda key, count: sent.update({key: count}), lambda _key, _count: pytest.fail("sent")
            )
            async with asyncio.timeout(DEADLINE_S):
                while sent[KEY] < run.count:
                    await asyncio.sleep(0)
            port = sock.getsockname()[1]
            by_one_buffer = fill is None and rate_bytes_s == FAST_BYTES_S
            fabric = NUMBERED if by_one_buffer else FABRIC
            framing = ChunkFraming(KEY, memoryview(content), fabric, parse_address(SOURCE), port)
            datagrams = received(target)
            assert {of for _, of in datagrams} == {SEGMENTS - 1 if by_one_buffer else 1}
            for segment, (datagram, _) in enumerate(datagrams, 1):
                if fill is not None:
                    assert datagram[:40] == Control(Op.FILL, KEY, SEGMENTS, segment=segment, flags=fill).encode()
                    datagram = datagram[40:]
                identification = segment - 1 if by_one_buffer else 0
                assert datagram[:-4] == framing.datagram(segment)[:-4]
                assert datagram[-4:] == icrc_of_scapy(datagram, port, identification)
            sender.close()
        memory.close()

    asyncio.run(scenario())


def received(sock: socket.socket) -> list[tuple[bytes, int]]:
    """All datagrams that wait at a socket that takes buffers, each with how many came by the same one."""
    found: list[tuple[bytes, int]] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            joined, controls, _, _ = sock.recvmsg(65536, socket.CMSG_SPACE(4))
            sizes = [int.from_bytes(value, "little") for _, _, value in controls] or [len(joined)]
            pieces = [joined[at : at + sizes[0]] for at in range(0, len(joined), sizes[0])]
            found += [(piece, len(pieces)) for piece in pieces]
    return found


def test_where_the_kernel_cuts_no_buffers_segments_leave_one_by_one_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        memory, sent = PoolMemory(POOL_BYTES, prefault=False), Counter[ChunkKey]()
        with udp_socket(SOURCE) as sock, udp_socket(TARGET) as target:
            sock.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
            socket_options.take_buffers(target)
            sender = sender_of(sock, memory)
            to = [(parse_address(TARGET), 0)], target.getsockname()[1]
            for _ in range(2):
                run = SegmentRun(ChunkPlace(KEY, 0, SIZE), FABRIC, 0, SEGMENTS)
                sender.send(run, *to, lambda key, count: sent.update({key: count}), lambda *_: pytest.fail("sent"))
            async with asyncio.timeout(DEADLINE_S):
                while sent[KEY] < 2 * SEGMENTS:
                    await asyncio.sleep(0)
            port = sock.getsockname()[1]
            framing = ChunkFraming(KEY, memoryview(bytes(SIZE)), FABRIC, parse_address(SOURCE), port)
            assert received(target) == [(framing.datagram(segment), 1) for segment in range(SEGMENTS)] * 2
            sender.close()
        memory.close()

    caplog.set_level("INFO", "hostagent.transport.native_sender")
    asyncio.run(scenario())
    (line,) = caplog.messages
    assert "one datagram at a time" in line and "EINVAL" in line


@pytest.mark.parametrize(
    ("known_bytes_s", "moments", "segments"),
    [
        (10**7 // 8, [], 1),
        (10**9 // 8, [], 9),
        (10**10 // 8, [], 15),
        (10**10 // 8, [(0, 0), (10, 125_000), (20, 125_000), (30, 125_000), (40, 125_000)], 6),
        (10**7 // 8, [(0, 0), (10, 12_500_000)], 15),
        (10**9 // 8, [(0, 0), (0.5, 10), (10, 1_250_000)], 9),
    ],
    ids=["10 Mbit/s", "1 Gbit/s", "10 Gbit/s", "it carries less", "it carries more", "two looks at one moment"],
)
def test_a_buffer_is_little_time_of_the_link(
    known_bytes_s: int, moments: list[tuple[float, int]], segments: int
) -> None:
    """`moments`: when the socket was full, in ms, and how many bytes it had taken since the last."""
    at_ns = (ctypes.c_int64 * len(moments))(*(int(1e9 + 1e6 * at_ms) for at_ms, _ in moments))
    taken = (ctypes.c_uint64 * len(moments))(*(count for _, count in moments))
    assert datapath().dp_pace(known_bytes_s, at_ns, taken, len(moments), 4152) == segments


@pytest.mark.parametrize("threads", [1, 3])
def test_segments_that_no_chunk_has_are_misuse_and_what_is_given_up_is_told(threads: int) -> None:
    async def scenario() -> None:
        memory = PoolMemory(POOL_BYTES, prefault=False)
        told: Counter[str] = Counter()
        with udp_socket(SOURCE) as sock, udp_socket(TARGET) as target:
            # A full socket buffer: nothing takes what is sent to a port without anybody but the kernel, so a tiny one.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            sender = sender_of(sock, memory, threads=threads)
            to = [(parse_address(TARGET), 0)], target.getsockname()[1]
            chunk = ChunkPlace(KEY, 0, 512 * SEGMENT)
            with pytest.raises(ValueError, match="segments 511\\+2 of 512"):
                sender.send(SegmentRun(chunk, FABRIC, 511, 2), *to, lambda *_: None, lambda *_: None)
            for _ in range(8):
                run = SegmentRun(chunk, FABRIC, 0, 512)
                sender.send(run, *to, lambda _, n: told.update(sent=n), lambda _, n: told.update(failed=n))
            sender.give_up()
            sender.close()
            assert not told, "never inside the call"
            await asyncio.sleep(0)
            assert told.total() == 8 * 512
        memory.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("cut", [True, False], ids=["by buffers", "one by one"])
def test_every_segment_of_many_jobs_leaves_once_whoever_sends_it(threads: int, cut: bool) -> None:
    """More than the socket takes at once; casts of two chunks and fills, in runs of all lengths."""

    async def scenario() -> None:
        memory, told = PoolMemory(POOL_BYTES, prefault=False), Counter[tuple[ChunkKey, str]]()
        contents = {KEY: body(700 * SEGMENT, 7), OTHER: body(300 * SEGMENT - 9, 8)}
        places = {key: ChunkPlace(key, at, len(contents[key])) for at, key in ((0, KEY), (1 << 19, OTHER))}
        for key, place in places.items():
            memory.view(place.offset, place.size_bytes)[:] = contents[key]
        heard: list[bytes] = []
        with udp_socket(SOURCE) as sock, udp_socket(TARGET) as target:
            socket_options.take_buffers(target)
            socket_options.ask_buffer(target, receive_bytes=8 << 20)
            sock.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, not cut)
            sender = sender_of(sock, memory, threads=threads)
            to = [(parse_address(TARGET), 0)], target.getsockname()[1]
            for key, segments in ((KEY, 700), (OTHER, 300)):
                for first, count in runs_of(segments):
                    fill = Flag.NONE if count % 5 == 0 else None
                    sender.send(
                        SegmentRun(places[key], FABRIC, first, count, fill),
                        *to,
                        lambda key, n: told.update({(key, "sent"): n}),
                        lambda key, n: told.update({(key, "failed"): n}),
                    )
            async with asyncio.timeout(DEADLINE_S):
                while told.total() < 1000:
                    await asyncio.sleep(0)
                    heard += [datagram for datagram, _ in received(target)]
            heard += [datagram for datagram, _ in received(target)]
            port = sock.getsockname()[1]
            sender.close()
        memory.close()
        assert told == {(KEY, "sent"): 700, (OTHER, "sent"): 300}
        found = [decode_datagram(one[-FABRIC.datagram_bytes :], parse_address(SOURCE), port, FABRIC) for one in heard]
        for key, segments in ((KEY, 700), (OTHER, 300)):
            mine = {one.segment: one.payload for one in found if one.key == key}
            assert b"".join(mine[segment] for segment in range(segments)) == contents[key]
        assert len(found) == 1000

    asyncio.run(scenario())


def runs_of(segments: int) -> Iterator[tuple[int, int]]:
    """All of a chunk, in runs of different lengths."""
    choice, first = random.Random(segments), 0
    while first < segments:
        count = min(choice.randrange(1, 130), segments - first)
        yield first, count
        first += count


@pytest.mark.parametrize(
    ("gbit_s", "cores", "threads"), [(10, 128, 1), (100, 128, 4), (100, 16, 2), (100, 2, 1), (25, 64, 2)]
)
def test_as_many_threads_cast_as_the_link_wants_and_cores_allow(gbit_s: int, cores: int, threads: int) -> None:
    assert casting_threads(gbit_s * 10**9 // 8, cores) == threads


def test_outcomes_are_told_when_half_is_done_and_half_of_the_rest() -> None:
    async def scenario() -> None:
        memory = PoolMemory(POOL_BYTES, prefault=False)
        told: list[int] = []
        with udp_socket(SOURCE) as sock, udp_socket(TARGET) as target:
            sender = sender_of(sock, memory)
            to = [(parse_address(TARGET), 0)], target.getsockname()[1]
            run = SegmentRun(ChunkPlace(KEY, 0, 512 * SEGMENT), FABRIC, 0, 512)
            sender.send(run, *to, lambda _, n: told.append(n), lambda *_: None)
            async with asyncio.timeout(DEADLINE_S):
                while sum(told) < 512:
                    await asyncio.sleep(0)
            sender.close()
        memory.close()
        assert told[0] >= 256
        assert len(told) <= 5, "256, 128, 64, 32 and 32, or fewer and more"

    asyncio.run(scenario())


def test_where_nothing_can_be_sent_all_fails() -> None:
    async def scenario() -> None:
        memory = PoolMemory(POOL_BYTES, prefault=False)
        failed: Counter[ChunkKey] = Counter()
        with udp_socket(SOURCE) as sock:
            sender = sender_of(sock, memory)
            # A source on loopback cannot reach anything else.
            run = SegmentRun(ChunkPlace(KEY, 0, SIZE), FABRIC, 0, SEGMENTS)
            for _ in range(2):
                sender.send(
                    run, [(parse_address("192.0.2.1"), 0)], 9, lambda *_: None, lambda k, n: failed.update({k: n})
                )
            async with asyncio.timeout(DEADLINE_S):
                while failed[KEY] < 2 * SEGMENTS:
                    await asyncio.sleep(0)
            sender.close()
        memory.close()

    asyncio.run(scenario())


def test_what_leaves_to_several_groups_is_whole_for_each_and_has_its_outcome_when_the_last_has_it() -> None:
    """Through a socket that is full all the time, so that batches end in the middle."""

    async def scenario() -> None:
        memory, told, content = PoolMemory(POOL_BYTES, prefault=False), Counter[str](), body()
        memory.view(0, SIZE)[:] = content
        blocks, port = (1, 5, 64), 4791
        with udp_socket(SOURCE) as sock, contextlib.ExitStack() as ends:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 3 * SEGMENT)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(SOURCE))
            fabric = replace(FABRIC, fanout=Fanout.MULTICAST)
            groups = [fabric.group_of(block) for block in blocks]
            ears = [group_socket(SOURCE, (format_address(group),), port) for group in groups]
            for ear in ears:
                ends.enter_context(ear)
                socket_options.ask_buffer(ear, receive_bytes=8 * SIZE)
            sender = sender_of(sock, memory, 1)
            size = fabric.datagram_bytes
            to = [(group, destination_difference(group ^ fabric.group, size)) for group in groups]
            run = SegmentRun(ChunkPlace(KEY, 0, SIZE), fabric, 0, SEGMENTS)
            sender.send(run, to, port, lambda _, n: told.update(sent=n), lambda *_: pytest.fail("sent"))
            async with asyncio.timeout(DEADLINE_S):
                while told["sent"] < SEGMENTS:
                    await asyncio.sleep(0)
            source_port = sock.getsockname()[1]
            for ear, group in zip(ears, groups, strict=True):
                as_its_own = replace(fabric, group=group)
                framing = ChunkFraming(KEY, memoryview(content), as_its_own, parse_address(SOURCE), source_port)
                assert [datagram for datagram, _ in received(ear)] == list(map(framing.datagram, range(SEGMENTS)))
            sender.close()
        memory.close()

    asyncio.run(scenario())
