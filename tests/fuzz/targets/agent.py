"""An agent's core among peers: datagrams of members and strangers, casts, reads, a controller that says anything.

Time is virtual. The shell around the core is the target's: it places casts, and forgets none of the segments that were
forged, so that a chunk with one of them never has the right digest.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from random import Random
from typing import ClassVar

import numpy as np
from google.protobuf.message import DecodeError

from hostagent.controller.convert import RemoteProtocolError, events_of, fabric_of
from hostagent.controller.refusals import Refusals
from hostagent.core import effects, events
from hostagent.core.directory import SequenceGapError
from hostagent.core.events import LoadOutcome, SaveOutcome
from hostagent.pool.chunks import Chunk
from kvclient.messages import Status
from kvproto.commands import SendControl
from kvproto.errors import WireError
from kvproto.events import (
    ControlReceived,
    ReadDone,
    ReadFailed,
    ReadProgress,
    SegmentsReceived,
    SegmentsSent,
    SendFailed,
)
from kvproto.ids import Address
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.control import Control, Flag, Op, decode_control
from kvproto.wire.data import Fabric
from tests.digests import digest, hashed
from tests.fuzz.protobufs import Maker
from tests.fuzz.target import Case, check
from tests.unit.hostagent.core_harness import MS, PAGE, Scene, entry, key

_SOURCES = (Address(1), Address(2), Address(3), Address(0), Address(0x0A4B_00FF))
"""Three members, this node itself, a stranger."""
_REMOTE = range(1, 7)
"""Chunks of others."""
_HERE = range(20, 23)
_PAGES = 8
_POOL_PAGES = 96
_DEADLINE_MS = 500
_LATE_MS = 5
"""How much later than its deadline a fetch may be answered."""
_AFTER_MS = 6_000
"""When every timer of the protocol has rung."""
_KEYS = [key(number) for number in (*_REMOTE, *_HERE, 99)]
_POOLS = {
    "key": _KEYS,
    "keys": _KEYS,
    "parent": [b"", *_KEYS],
    "chunks_gone": _KEYS,
    "here": [b"", *_KEYS],
    "withdrawn": _KEYS,
    "node": [0, 1, 2, 3, 9],
    "nodes_gone": [1, 2, 3],
    "holders": [0, 1, 2, 3, 9],
    "disk_holders": [0, 1, 2],
    "member": [0, 1, 2, 63, 64, 1 << 31],
    "data_ip": [bytes((0, 0, 0, one)) for one in range(4)],
    "name": ["n1", "n2", "x"],
    "read_endpoint": ["0.0.0.1:1", "", "nowhere"],
    "size_bytes": [_PAGES * PAGE, PAGE, 1, 1 << 32, 1 << 40],
    "sequence": [1, 2, 3, 4, 5],
    "digest": [digest(1), digest(2), digest(3), digest(20), b"", bytes(33)],
    "position": [0, 1, 2],
    "task": [1, 2, 3],
    "segments": [1, _PAGES],
    "timeout_ms": [0, 1, 100],
    "heartbeat_ms": [0, 500, 1000],
    "eta_ms": [0, 1, 1000],
    "group_ip": [b"", bytes((239, 75, 86, 1))],
    "pool_ip": [b"", bytes(4)],
    "segment_bytes": [0, PAGE, 256],
}


class _Shell(Scene):
    """Notes when fetches are answered."""

    def __init__(self) -> None:
        self.answered: dict[int, tuple[effects.FetchAnswered, int]] = {}
        super().__init__(pool_pages=_POOL_PAGES, disk_pages=_POOL_PAGES, promote=True)

    def say(self, event: events.Event) -> None:
        made = self.core.handle(event, self.now_ns)
        for effect in made:
            if isinstance(effect, effects.FetchAnswered):
                check(effect.request not in self.answered, "a fetch is answered twice")
                self.answered[effect.request] = (effect, self.now_ns)
        self.made += made


class Agent:
    """A step: what happens (its first byte), to whom or by whom (its second), and bytes of that."""

    name: ClassVar[str] = "agent"
    checks: ClassVar[str] = "fetches end once, in time, without a forged byte; nothing stays pinned or half filled"
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = (*_KEYS[:4], *(struct.pack("!BB", op, 1) for op in range(12)))

    def fresh(self, random: Random) -> Case:
        makers = (
            self._fetch,
            *(3 * (self._control,)),
            *(2 * (self._segments,)),
            self._time,
            self._reads,
            self._digests,
            self._controller,
            self._disk,
            self._peer,
            self._casts,
        )
        steps = [self._fetch(random)]
        return steps + [random.choice(makers)(random) for _ in range(random.choice((2, 8, 25)))]

    # ------------------------------------------------------------------ steps

    def _fetch(self, random: Random) -> bytes:
        return bytes((2, random.choice((1, 50, 250)))) + bytes(
            random.choices([*_REMOTE, *_HERE], k=random.choice((1, 2, 5)))
        )

    def _control(self, random: Random) -> bytes:
        message = Control(
            random.choice((Op.NOTICE, Op.NOTICE, *Op)),
            random.choice(_KEYS),
            random.choice((_PAGES, _PAGES, 1, 60000)),
            random.choice((0, 0, 1, _PAGES - 1)),
            random.choice((0, 1, 2, _PAGES)),
            random.choice((0, 0x8000, 0x4000, 0x8001, 0xFFFF)),
            Flag(random.choice((0, 1, 2, 4, 8, 16, 32, 9, 63))),
            random.choice((0, 1, 2, 3, 200)),
            random.choice((0, 1, 2, 3, 7, 255, (1 << 32) - 1)),
        )
        return bytes((0, random.randrange(len(_SOURCES)))) + message.encode()

    def _segments(self, random: Random) -> bytes:
        forged = random.random() < 0.3
        return bytes((1, random.randrange(len(_SOURCES)), random.choice((*_REMOTE, 99)), forged)) + random.randbytes(
            random.choice((1, 3, _PAGES))
        )

    def _time(self, random: Random) -> bytes:
        return bytes((3, random.choice((0, 1, 5, 20, 100, 255))))

    def _reads(self, random: Random) -> bytes:
        return bytes((4, random.randrange(4)))

    def _digests(self, _random: Random) -> bytes:
        return bytes((5, 0))

    def _controller(self, random: Random) -> bytes:
        message = Maker(random, _POOLS).filled(rpc.ToAgent())
        return bytes((6, 0)) + message.SerializeToString()

    def _disk(self, random: Random) -> bytes:
        return bytes((7, random.randrange(16)))

    def _peer(self, random: Random) -> bytes:
        return bytes((8, random.choice((*_HERE, *_REMOTE))))

    def _casts(self, random: Random) -> bytes:
        return bytes((9, random.randrange(2)))

    # ------------------------------------------------------------------ running

    def run(self, case: Case) -> None:
        _Life().run(case)

    def close(self) -> None:
        """Nothing to let go of."""


class _Life:
    """One agent, from its start to its end."""

    def __init__(self) -> None:
        self.scene = _Shell()
        self.due_ns: dict[int, int] = {}
        """By request."""
        self.forged: defaultdict[Chunk, set[int]] = defaultdict(set)
        self.scene.directory(*(entry(number, 1, 2, pages=_PAGES) for number in _REMOTE), nodes=4)
        for number in _HERE:
            self.scene.put(number, _PAGES * PAGE)

    def run(self, case: Case) -> None:
        for step in case:
            if len(step) >= 2:
                _TAKERS[step[0] % len(_TAKERS)](self, step[1], step[2:])
                self.tidy()
        self.end()

    def control(self, who: int, content: bytes) -> None:
        try:
            message = decode_control(content)
        except WireError:
            return
        self.scene.say(events.ControlsReceived((ControlReceived(message, _SOURCES[who % len(_SOURCES)]),)))

    def segments(self, who: int, content: bytes) -> None:
        if len(content) < 3:
            return
        source = _SOURCES[who % len(_SOURCES)]
        wanted = self.scene.core.wanted(key(content[0]))
        if wanted is None:
            arrival = SegmentsReceived(
                key(content[0]), np.frombuffer(content[2:], np.uint8).astype(np.uint32), source, 0
            )
            self.scene.say(events.CastsUnexpected((arrival,)))
            return
        indices = np.frombuffer(content[2:], np.uint8).astype(np.uint32) % wanted.segments_count
        if content[1] & 1:
            self.forged[wanted.chunk] |= {one for one in indices.tolist() if wanted.missing[one]}
        arrival = SegmentsReceived(key(content[0]), indices, source, len(indices) if content[1] & 2 else 0)
        self.scene.say(events.CastsPlaced((arrival,)))

    def fetch(self, deadline: int, content: bytes) -> None:
        numbers = list(dict.fromkeys(content))[:8]
        if numbers:
            request = self.scene.fetch(*numbers, deadline_s=deadline / 1000)
            self.due_ns[request] = self.scene.now_ns + deadline * MS

    def time(self, ms: int, _content: bytes) -> None:
        self.pass_ms(ms)

    def reads(self, how: int, _content: bytes) -> None:
        for started in self.scene.take(effects.StartRead):
            match how % 4:
                case 0:
                    self.forged[started.chunk] -= set(range(started.first, started.first + started.count))
                    self.scene.say(ReadDone(started.read))
                case 1:
                    self.scene.say(ReadProgress(started.read, started.count // 2))
                    self.scene.say(ReadFailed(started.read, gone=False))
                case 2:
                    self.scene.say(ReadFailed(started.read, gone=True))
                case _:
                    self.scene.made.append(started)
                    return

    def digests(self, _how: int = 0, _content: bytes = b"") -> None:
        for asked in self.scene.take(effects.ComputeDigest):
            found = int.from_bytes(asked.chunk.key, "big")
            self.scene.say(
                events.DigestComputed(asked.chunk, hashed(found + bool(self.forged.pop(asked.chunk, None))), asked.use)
            )

    def controller(self, _how: int, content: bytes) -> None:
        try:
            message = rpc.ToAgent.FromString(content)
            fabric = Fabric(segment_bytes=PAGE)
            if message.HasField("welcome"):
                fabric = fabric_of(message.welcome.fabric, fabric)
            for event in events_of(message, fabric, Refusals()):
                self.scene.say(event)
        except (DecodeError, RemoteProtocolError, SequenceGapError):
            self.scene.say(events.ControllerLost())

    def disk(self, how: int, _content: bytes) -> None:
        self.scene.load(list(LoadOutcome)[how % len(LoadOutcome)])
        self.scene.save(list(SaveOutcome)[how // 4 % len(SaveOutcome)])

    def peer(self, number: int, _content: bytes) -> None:
        lent = self.scene.core.lend(key(number), self.scene.now_ns)
        if lent is not None:
            self.scene.say(events.PeerReadEnded(lent))
        elif self.scene.core.can_load_for_peer(key(number)):
            self.scene.say(events.PeerLoadRequested(key(number)))

    def casts(self, how: int, _content: bytes) -> None:
        for cast in self.scene.take(effects.CastSegments):
            done = SendFailed if how & 1 else SegmentsSent
            self.scene.say(done(cast.chunk.key, cast.count))
        for fill in self.scene.take(effects.FillSegments):
            self.scene.say(events.FillSent(fill.chunk.key, fill.count))

    # ------------------------------------------------------------------ what holds

    def pass_ms(self, ms: float) -> None:
        """Time passes; whoever hashes is quick."""
        self.digests()
        self.scene.pass_ms(ms)
        self.digests()

    def tidy(self) -> None:
        """Look at what fetches got, and carry out what asks for no answer."""
        for effect in self.scene.take(effects.PeerLoadEnded):
            if effect.chunk is not None:
                self.scene.say(events.PeerReadEnded(effect.chunk))
        self.scene.take(SendControl)
        for request, (answer, at_ns) in self.scene.answered.items():
            due_ns = self.due_ns.get(request)
            check(due_ns is None or at_ns <= due_ns + _LATE_MS * MS, "a fetch is answered late")
            if answer.status is Status.OK:
                self.due_ns.pop(request, None)
        for chunk in self.scene.core.pool.ready_chunks():
            check(not self.forged.get(chunk), "a forged segment is in the pool")

    def end(self) -> None:
        for _ in range(3):
            self.reads(1, b"")
            self.casts(0, b"")
            self.disk(0, b"")
            self.pass_ms(_AFTER_MS / 3)
            self.tidy()
        while any(
            isinstance(one, effects.SaveChunk | effects.LoadChunk | effects.ComputeDigest) for one in self.scene.made
        ):
            self.disk(0, b"")
            self.digests()
        for request in self.due_ns:
            check(request in self.scene.answered, "a fetch is never answered")
        self.scene.close()


_TAKERS = (
    _Life.control,
    _Life.segments,
    _Life.fetch,
    _Life.time,
    _Life.reads,
    _Life.digests,
    _Life.controller,
    _Life.disk,
    _Life.peer,
    _Life.casts,
)
