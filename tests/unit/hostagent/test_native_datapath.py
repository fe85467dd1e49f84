"""The data path in C against the same in Python: what leaves, what is refused and why, what is written where.

All but the last tests receive without a thread: what comes when is decided here. Run once more under sanitizers by
`test_native_sanitizers.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import random
import socket
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP

from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import Drained, datapath
from hostagent.transport import socket_options
from hostagent.transport.base import ChunkPlace, TransportCounters
from hostagent.transport.host import Host
from hostagent.transport.native_receiver import NativeIntake
from hostagent.transport.native_sender import NativeSender, SegmentRun
from hostagent.transport.sockets import casting_threads
from kvchunk.ids import ChunkKey
from kvproto.events import SegmentsReceived
from kvproto.ids import Address, parse_address
from kvproto.wire.control import Control, Flag, Op
from kvproto.wire.data import QPN_NUMBERED, ChunkFraming, Fabric
from kvproto.wire.icrc import icrc_seed
from tests.reference_datagrams import decode_batch, icrc
from tests.unit.kvproto.datagrams import decode_datagram

KEY = ChunkKey(b"k" * 16)
OTHER = ChunkKey(b"o" * 16)
SEGMENT = 256
DSCP = 0x15
FABRIC = Fabric(segment_bytes=SEGMENT, from_switch_dscp=DSCP)
NUMBERED = replace(FABRIC, source_qpn=QPN_NUMBERED)
"""As datagrams have it that left by one buffer."""
OWN, SOURCE, TARGET = "127.91.0.1", "127.91.0.2", "127.91.0.3"
POOL_BYTES = 1 << 20
SIZE = 20 * SEGMENT + 17
SEGMENTS = 21
DEADLINE_S = 20
FAST_BYTES_S = 10**9
SO_NO_CHECK = 11
UDP_SEGMENT = 103


def body(size_bytes: int = SIZE, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def udp_socket(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.bind((address, 0))
    return sock


class Sink:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.placed: list[SegmentsReceived] = []
        self.unexpected: list[SegmentsReceived] = []
        self.patience = (0.001, 16)

    def casts_placed(self, arrivals: Sequence[SegmentsReceived]) -> None:
        self.placed += arrivals

    def casts_unexpected(self, arrivals: Sequence[SegmentsReceived]) -> None:
        self.unexpected += arrivals

    def cast_patience_s(self) -> float:
        return self.patience[0]

    def cast_patience_segments(self) -> int:
        return self.patience[1]

    def segments(self, key: ChunkKey = KEY) -> list[int]:
        return [segment for one in self.placed if one.key == key for segment in one.segments.tolist()]


class WatchedLibrary:
    """The data path; shows the receiver that an intake makes with it, and the patience that it is told."""

    def __init__(self, real: ctypes.CDLL) -> None:
        self.receiver: int | None = None
        self.patience: tuple[int, int] | None = None
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def dp_receiver_new(self, config: object, queue: object) -> int | None:
        self.receiver = self._real.dp_receiver_new(config, queue)
        return self.receiver

    def dp_receiver_set_patience(self, receiver: int, patience_ns: int, segments: int) -> None:
        self.patience = patience_ns, segments
        self._real.dp_receiver_set_patience(receiver, patience_ns, segments)


def host_of(
    address: str,
    loop: asyncio.AbstractEventLoop,
    memory: PoolMemory,
    sink: Sink,
    counters: TransportCounters,
    native: Any,
) -> Host:
    return Host(
        config=DataConfig(address=address),
        memory=memory,
        loop=loop,
        sink=sink,  # type: ignore[arg-type]
        counters=counters,
        address=address,
        own=parse_address(address),
        native=native,
    )


def sender_of(
    sock: socket.socket, memory: PoolMemory, rate_bytes_s: int = FAST_BYTES_S, threads: int = 1
) -> NativeSender:
    host = host_of(SOURCE, asyncio.get_running_loop(), memory, Sink(), TransportCounters(), datapath())
    return NativeSender(host, sock, rate_bytes_s, threads)


class Bench:
    """A socket of somebody else, and an intake with its socket and pool."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threaded: bool = False, fabric: Fabric = FABRIC) -> None:
        self.loop, self.fabric = loop, fabric
        self.sink, self.counters = Sink(), TransportCounters()
        self.memory = PoolMemory(POOL_BYTES, prefault=False)
        self.peer, self.own_peer, self.receiver = udp_socket(SOURCE), udp_socket(OWN), udp_socket(TARGET)
        socket_options.ask_buffer(self.receiver, receive_bytes=4 << 20)
        self.receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self.receiver.setsockopt(socket.SOL_SOCKET, socket_options.SO_RXQ_OVFL, 1)
        socket_options.take_buffers(self.receiver)
        self.library = WatchedLibrary(datapath())
        host = host_of(OWN, loop, self.memory, self.sink, self.counters, self.library)
        self.intake = NativeIntake(host, self.receiver, fabric, threaded=threaded)
        self.framing = self.framing_of(KEY, body())

    def framing_of(
        self, key: ChunkKey, content: bytes, peer: socket.socket | None = None, fabric: Fabric | None = None
    ) -> ChunkFraming:
        address, port = (peer or self.peer).getsockname()
        return ChunkFraming(key, memoryview(content), fabric or self.fabric, parse_address(address), port)

    def send(self, datagram: bytes, peer: socket.socket | None = None, dscp: int = 0) -> None:
        sock = peer or self.peer
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        sock.sendto(datagram, self.receiver.getsockname())

    def send_joined(self, datagrams: Sequence[bytes], peer: socket.socket | None = None, dscp: int = 0) -> None:
        """By one buffer. All but the last have one length, and the last has no more."""
        sock = peer or self.peer
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        size = (socket.IPPROTO_UDP, UDP_SEGMENT, len(datagrams[0]).to_bytes(2, "little"))
        sock.sendmsg(datagrams, [size], 0, self.receiver.getsockname())

    def expect(
        self, key: ChunkKey = KEY, size_bytes: int = SIZE, offset: int = 4096, here: Sequence[int] = ()
    ) -> npt.NDArray[np.bool_]:
        missing = np.ones(-(-size_bytes // SEGMENT), np.bool_)
        missing[list(here)] = False
        self.intake.expect(ChunkPlace(key, offset, size_bytes), missing)
        return missing

    def at(self, offset: int = 4096, size_bytes: int = SIZE) -> bytes:
        return bytes(self.memory.view(offset, size_bytes))

    def close(self) -> None:
        self.intake.close()
        self.memory.close()
        for sock in (self.peer, self.own_peer, self.receiver):
            sock.close()


@contextlib.contextmanager
def bench(**options: Any) -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    made = Bench(loop, **options)
    try:
        yield made
    finally:
        made.close()
        loop.close()


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
            to = parse_address(TARGET), target.getsockname()[1]
            sender.send(run, to, lambda key, count: sent.update({key: count}), lambda _key, _count: pytest.fail("sent"))
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


def icrc_of_scapy(datagram: bytes, port: int, identification: int) -> bytes:
    group = ".".join(map(str, FABRIC.group.to_bytes(4, "big")))
    packet = IP(src=SOURCE, dst=group, flags="DF", id=identification) / UDP(sport=port, dport=4791, chksum=0)
    packet = IP(bytes(packet / BTH(datagram)))
    icrc: bytes = packet[BTH].compute_icrc(bytes(packet[UDP])[8:-4])
    return icrc


def test_where_the_kernel_cuts_no_buffers_segments_leave_one_by_one_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        memory, sent = PoolMemory(POOL_BYTES, prefault=False), Counter[ChunkKey]()
        with udp_socket(SOURCE) as sock, udp_socket(TARGET) as target:
            sock.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
            socket_options.take_buffers(target)
            sender = sender_of(sock, memory)
            to = parse_address(TARGET), target.getsockname()[1]
            for _ in range(2):
                run = SegmentRun(ChunkPlace(KEY, 0, SIZE), FABRIC, 0, SEGMENTS)
                sender.send(run, to, lambda key, count: sent.update({key: count}), lambda *_: pytest.fail("sent"))
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
            to = parse_address(TARGET), target.getsockname()[1]
            chunk = ChunkPlace(KEY, 0, 512 * SEGMENT)
            with pytest.raises(ValueError, match="segments 511\\+2 of 512"):
                sender.send(SegmentRun(chunk, FABRIC, 511, 2), to, lambda *_: None, lambda *_: None)
            for _ in range(8):
                run = SegmentRun(chunk, FABRIC, 0, 512)
                sender.send(run, to, lambda _, n: told.update(sent=n), lambda _, n: told.update(failed=n))
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
            to = parse_address(TARGET), target.getsockname()[1]
            for key, segments in ((KEY, 700), (OTHER, 300)):
                for first, count in runs_of(segments):
                    fill = Flag.NONE if count % 5 == 0 else None
                    sender.send(
                        SegmentRun(places[key], FABRIC, first, count, fill),
                        to,
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
            to = parse_address(TARGET), target.getsockname()[1]
            run = SegmentRun(ChunkPlace(KEY, 0, 512 * SEGMENT), FABRIC, 0, 512)
            sender.send(run, to, lambda _, n: told.append(n), lambda *_: None)
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
                sender.send(run, (parse_address("192.0.2.1"), 9), lambda *_: None, lambda k, n: failed.update({k: n}))
            async with asyncio.timeout(DEADLINE_S):
                while failed[KEY] < 2 * SEGMENTS:
                    await asyncio.sleep(0)
            sender.close()
        memory.close()

    asyncio.run(scenario())


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
            drained = Drained()
            while not drained.reports_count:
                drain(receiver, ctypes.byref(drained))
            while drained.segments_count + len(made.sink.segments()) < len(buffer):
                await asyncio.sleep(0)
            made.intake.forget(KEY)

    play(scenario, fabric)
