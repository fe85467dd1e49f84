"""Datagrams of members and strangers at an agent: the codec, one at a time and in batches, and the data path in C."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import ClassVar

import numpy as np

from hostagent.limits import CAST_BUFFER_BYTES_MAX, CAST_BUFFER_SEGMENTS_MAX
from kvchunk.ids import ChunkKey
from kvproto.errors import WireError
from kvproto.ids import Address, parse_address
from kvproto.wire.control import Control, Flag, Op, decode_control
from kvproto.wire.data import DATA_HEADER_BYTES, ChunkFraming, Fabric
from tests.fuzz.target import Case, check
from tests.reference_datagrams import decode_batch, decode_messages
from tests.unit.hostagent.datapath_bench import DSCP, FABRIC, KEY, OTHER, SEGMENTS, SIZE, Bench, body
from tests.unit.kvproto.datagrams import DataDatagram, decode_datagram

_PORT = 4791
_FOREIGN = Fabric(segment_bytes=256, qkey=0x22222222)
_PLACE = 4096
_AROUND = 512
"""Bytes before and behind the chunk's place that nobody may write."""


def control_datagram(random: Random) -> bytes:
    """A control datagram; its numbers may be impossible."""
    segments = random.choice((1, SEGMENTS, 65535))
    message = Control(
        random.choice(list(Op)),
        random.choice((KEY, OTHER, ChunkKey(bytes(16)))),
        segments,
        random.choice((0, 1, segments - 1)),
        random.choice((0, 1, segments)),
        random.choice((0, 1, 0x8000, 0x4000, 0xFFFF)),
        Flag(random.randrange(64)),
        random.randrange(9),
        random.choice((0, 1, 6, 255)),
    )
    return message.encode()


class Datagrams:
    """A step: a byte that says who sends (0 the holder, 1 a stranger, 2 this node; 4 more: with the switch's mark), and
    a datagram."""

    name: ClassVar[str] = "datagrams"
    checks: ClassVar[str] = "a reason or a value; one by one, in batches and in C alike; no byte beside its place"
    limit_s: ClassVar[float] = 5.0
    words: ClassVar[tuple[bytes, ...]] = (
        KEY,
        OTHER,
        b"\x64\x40\xff\xff",
        b"\x00\xff\xff\xff",
        b"\x11\x11\x11\x11",
        bytes(16),
    )

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._bench = Bench(self._loop)
        self._content = body()
        self._framings = {
            "holder": self._bench.framing,
            "own": self._bench.framing_of(KEY, self._content, self._bench.own_peer),
            "other": self._bench.framing_of(OTHER, self._content),
        }
        address, port = self._bench.peer.getsockname()
        self._foreign = ChunkFraming(KEY, memoryview(self._content), _FOREIGN, parse_address(address), port)

    def fresh(self, random: Random) -> Case:
        steps = []
        for _ in range(random.choice((1, 4, 12, 30))):
            who = random.choice((0, 0, 0, 1, 2)) + random.choice((0, 4))
            if random.random() < 0.3:
                datagram = control_datagram(random)
            else:
                framing = random.choice((*self._framings.values(), self._foreign))
                datagram = framing.datagram(random.randrange(SEGMENTS))
            steps.append(bytes((who,)) + datagram)
        return steps

    def run(self, case: Case) -> None:
        case = [step for step in case if step]
        if not case:
            return
        for step in case:
            _check_control(step[1:])
        accepted = self._check_batch(case)
        for joined in (False, True):
            self._check_native(case, accepted, joined=joined)

    def close(self) -> None:
        self._bench.close()
        self._loop.close()

    def _sender(self, step: bytes) -> tuple[str, int]:
        sock = self._bench.own_peer if step[0] % 4 == 2 else self._bench.peer
        address, port = sock.getsockname()
        return address, port

    def _check_batch(self, case: Case) -> list[DataDatagram | None]:
        """Each datagram alone says the same as all of them together; what each is."""
        alone: list[DataDatagram | None] = []
        reasons: Counter[object] = Counter()
        senders = [self._sender(step) for step in case]
        for step, (address, port) in zip(case, senders, strict=True):
            try:
                alone.append(decode_datagram(step[1:], parse_address(address), port, FABRIC))
            except WireError as error:
                alone.append(None)
                reasons[error.reason] += 1
        rows = np.zeros((len(case), max(FABRIC.datagram_bytes, *map(len, case))), np.uint8)
        for row, step in zip(rows, case, strict=True):
            row[: len(step) - 1] = np.frombuffer(step[1:], np.uint8)
        lengths = np.array([len(step) - 1 for step in case])
        sources = np.array([parse_address(address) for address, _ in senders], np.uint32)
        batch = decode_batch(rows.copy(), lengths, sources, np.array([port for _, port in senders]), FABRIC)
        check(batch.dropped == reasons, f"a batch drops {batch.dropped}, one by one {reasons}")
        found = {
            int(row): (group.key, int(segment), group.segments_in_chunk)
            for group in batch.groups
            for row, segment in zip(group.rows, group.segments, strict=True)
        }
        wanted = {at: (one.key, one.segment, one.segments) for at, one in enumerate(alone) if one is not None}
        check(found == wanted, "a batch takes others than one by one")
        decode_messages(rows, lengths, sources, FABRIC)
        return alone

    def _check_native(self, case: Case, accepted: list[DataDatagram | None], *, joined: bool) -> None:
        """The data path in C takes what Python takes, and writes nothing else. `joined`: what one sender sends in a row
        comes by one buffer."""
        bench = self._bench
        region = bench.memory.view(_PLACE - _AROUND, SIZE + 2 * _AROUND)
        region[:] = b"\xee" * len(region)
        bench.sink.placed.clear()
        bench.sink.unexpected.clear()
        missing = bench.expect(KEY, SIZE, _PLACE)
        wanted: dict[int, bytes] = {}
        unexpected = 0
        for step, one in zip(case, accepted, strict=True):
            own = step[0] % 4 == 2
            if one is None or (own and not step[0] & 4):
                continue
            if one.key == KEY and one.segments == SEGMENTS and _fits(one):
                wanted.setdefault(one.segment, step[1 + DATA_HEADER_BYTES :][: len(one.payload)])
            else:
                unexpected += 1
        for together in _buffers(case) if joined else ([step] for step in case):
            peer = bench.own_peer if together[0][0] % 4 == 2 else bench.peer
            send = bench.send_joined if len(together) > 1 else lambda one, *rest: bench.send(one[0], *rest)
            send([step[1:] for step in together], peer, DSCP if together[0][0] & 4 else 0)
        bench.intake.drain_receive()
        check(set(bench.sink.segments()) <= set(wanted), "segments are placed that Python refuses")
        check(set(wanted) <= set(bench.sink.segments()), "segments are refused that Python takes")
        expected = bytearray(b"\xee" * len(region))
        for segment, payload in wanted.items():
            at = _AROUND + segment * FABRIC.segment_bytes
            expected[at : at + len(payload)] = payload
        check(bytes(region) == bytes(expected), "other bytes lie in the pool than came")
        check(sum(one.segments.size for one in bench.sink.unexpected) <= unexpected, "more came than was sent")
        bench.intake.forget(KEY)
        check(missing.all(), "the data path wrote to what is the agent's")


def _buffers(case: Case) -> list[list[bytes]]:
    """Steps that can leave by one buffer: of one sender and mark, and of one length, but the last may be shorter."""
    buffers: list[list[bytes]] = []
    for step in case:
        last = buffers[-1] if buffers else []
        alike = last and step[0] == last[0][0] and len(last[-1]) == len(last[0]) >= len(step) > 1
        most = min(CAST_BUFFER_SEGMENTS_MAX, CAST_BUFFER_BYTES_MAX // len(buffers[-1][0])) if last else 0
        if alike and len(last) < most:
            last.append(step)
        else:
            buffers.append([step])
    return buffers


def _fits(one: DataDatagram) -> bool:
    last = one.segment == SEGMENTS - 1
    return len(one.payload) == (SIZE - one.segment * FABRIC.segment_bytes if last else FABRIC.segment_bytes)


def _check_control(datagram: bytes) -> None:
    try:
        message = decode_control(datagram)
    except WireError:
        return
    check(decode_control(message.encode()) == message, "a control datagram does not come back as it was")
    check(Address(0) <= message.members < 1 << 64, "members that no bitmap holds")
