"""The controller: what agents' streams bring, operators' commands, what the switch reports. Time is virtual."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

from google.protobuf.message import DecodeError

from controlplane.core import parse, views
from controlplane.core.directory import AmbiguousKeyError, UnknownKeyError
from controlplane.core.events import HelloReceived, MessageReceived, Requested, StreamEnded
from controlplane.core.ids import ChunkKey, SwitchPort
from controlplane.core.operations import OperatorError
from controlplane.core.switch.target import HeatReport
from kvpolicy.tiers.cost_question import QuestionError, TooManyQuestionsError
from kvproto.rpc import control_pb2 as rpc
from tests.digests import digest
from tests.fuzz.protobufs import Maker
from tests.fuzz.target import Case, check
from tests.unit.controlplane.helpers import CHUNK, Scene, hello, key, record
from tests.unit.controlplane.test_core_switch import assert_consistent

_KEYS: list[Any] = [key(name) for name in "abcdef"]
_HEX = [one.hex() for one in _KEYS]
_SESSIONS = 5
_POOLS: dict[str, list[Any]] = {
    "key": _KEYS,
    "keys": _KEYS,
    "parent": [b"", *_KEYS],
    "removed": _KEYS,
    "removed_from_disk": _KEYS,
    "failed_keys": _KEYS,
    "next_victims": _KEYS,
    "withdrawn": _KEYS,
    "switch_pins": _KEYS,
    "key_hex": [*_HEX, "", "ab", _HEX[0][:4]],
    "prefix": [*_HEX, ""],
    "node": ["n1", "n2", "n9", "", 0, 1, 2],
    "nodes": ["n1", "n2", "n9"],
    "drained": ["n1", "n9"],
    "size_bytes": [CHUNK, 4096, 1, 1 << 32, (1 << 32) - 1],
    "digest": [digest(97), digest(98), digest(99), b"", bytes(33)],
    "integrities": [0, 1, 2, 3],
    "position": [0, 1, 2, 3],
    "data_ip": [bytes((10, 75, 0, one)) for one in (1, 2, 3)],
    "data_mac": [bytes((2, 0x4B, 0x56, 0, 0, one)) for one in (1, 2, 3)],
    "incarnation": [1, 2],
    "switch_port": [0, 1, 2, 511, 512],
    "control_port": [4793, 0, 65536],
    "segment_bytes": [4096, 256],
    "read_endpoint": ["10.75.0.1:4790", "", "x"],
    "version": ["0.1.0", "", "9.9.9"],
    "protocol": [0, 1, 2],
    "holder": [0, 1, 2, 9],
    "task": list(range(1, 12)),
    "bytes": [1, CHUNK],
    "eta_ms": [0, 1, 60_000],
    "age_ms": [0, 1, 1 << 31],
    "namespaces": ["m", ""],
    "namespace_index": [0, 1],
    "revision": [0, 1, 2, 1 << 40],
    "wait_ms": [0],
    "limit": [0, 1, 10],
    "recompute_s": [0.0, 1.0, float("nan")],
    "attention_share": [0.0, 0.5, 2.0],
    "queue_s": [0.0, -1.0],
    "drops": [1, 2],
}


class Controller:
    """A step: what happens (its first byte), who does it (its second), and a message of protobuf."""

    name: ClassVar[str] = "controller"
    checks: ClassVar[str] = "what is malformed is refused by itself; pool, switch and directory agree; it comes to rest"
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = (*_KEYS[:3], b"n1", b"n2", *(struct.pack("!BB", op, 1) for op in range(8)))

    def fresh(self, random: Random) -> Case:
        return [self._step(random) for _ in range(random.choice((3, 10, 30)))]

    def _step(self, random: Random) -> bytes:
        who = random.randrange(1, _SESSIONS)
        maker = Maker(random, _POOLS, fill=random.choice((0.3, 0.7, 1.0)))
        pick = random.random()
        if pick < 0.2:
            names = "abcdef"
            records = [
                record(name, names[at - 1] if at else None, at) for at, name in enumerate(names[: random.randrange(7)])
            ]
            announce = rpc.Announce(added=records, snapshot=True, snapshot_end=True)
            return bytes((0, who)) + rpc.FromAgent(announce=announce).SerializeToString()
        if pick < 0.6:
            return bytes((0, who)) + maker.filled(rpc.FromAgent()).SerializeToString()
        if pick < 0.7:
            said = hello(who) if random.random() < 0.6 else maker.filled(rpc.Hello())
            return bytes((1, who)) + said.SerializeToString()
        if pick < 0.9:
            number = random.randrange(len(_ASKED))
            return bytes((2, number)) + maker.filled(_ASKED[number][0]()).SerializeToString()
        return bytes((random.choice((3, 4, 5, 6)), random.randrange(256))) + random.randbytes(2)

    def run(self, case: Case) -> None:
        life = _Life()
        for step in case:
            if len(step) >= 2:
                _TAKERS[step[0] % len(_TAKERS)](life, step[1], step[2:])
        life.end()

    def close(self) -> None:
        """Nothing to let go of."""


class _Life:
    """One controller with its switch, from its start."""

    def __init__(self) -> None:
        self.scene = Scene(16, fill_timeout_ms=3000, transfer_timeout_ms=3000)
        self.attached: set[int] = set()
        self.sessions = 10
        """The last number given to a stream; those of agents that were there from the start are below."""
        self.by_who: dict[int, int] = {}
        for number in (1, 2, 3):
            self.scene.attach(number)
            self.by_who[number] = number
        self.scene.up()

    def message(self, who: int, content: bytes) -> None:
        session = self.by_who.get(who % _SESSIONS)
        if session is None or session in self.scene.closed:
            return
        try:
            said = rpc.FromAgent.FromString(content)
        except DecodeError:
            return  # gRPC ends such a stream.
        self.scene.handle(MessageReceived(session, said))
        self.scene.advance()

    def hello(self, who: int, content: bytes) -> None:
        try:
            said = rpc.Hello.FromString(content)
        except DecodeError:
            return
        self.sessions += 1
        self.by_who[who % _SESSIONS] = self.sessions
        self.scene.sent[self.sessions] = []
        self.scene.handle(HelloReceived(self.sessions, said, said.node))
        self.scene.advance()

    def asked(self, number: int, content: bytes) -> None:
        kind, ask = _ASKED[number % len(_ASKED)]
        try:
            request = kind.FromString(content)
        except DecodeError:
            return
        try:
            ask(self.scene, request)
        except (OperatorError, UnknownKeyError, AmbiguousKeyError, QuestionError, TooManyQuestionsError) as error:
            check(len(str(error)) < 2000, f"a refusal of {len(str(error))} characters")
        self.scene.advance()

    def heat(self, which: int, content: bytes) -> None:
        chunk = ChunkKey(_KEYS[which % len(_KEYS)])
        self.scene.handle(HeatReport(chunk, int.from_bytes(content[:2], "big"), 0))
        self.scene.advance()

    def time(self, ticks: int, _content: bytes) -> None:
        self.scene.wait(ticks / 64)

    def leave(self, who: int, _content: bytes) -> None:
        session = self.by_who.pop(who % _SESSIONS, None)
        if session is not None:
            self.scene.handle(StreamEnded(session))
            self.scene.advance()

    def move(self, who: int, content: bytes) -> None:
        self.scene.cabled[f"n{who % _SESSIONS}"] = SwitchPort(1 + (content[0] if content else 0) % 8)
        self.scene.wait(0.1)

    def end(self) -> None:
        """Once everything is calm, all pictures agree; whoever looks gets an answer."""
        self.scene.wait(8.0)
        assert_consistent(self.scene)
        for session, messages in self.scene.sent.items():
            closing = self.scene.closed.get(session)
            check(closing is None or len(closing.reason) < 1000, "a stream ends with a text that nobody reads")
            check(closing is not None or messages or session > 3, "a stream is neither answered nor ended")
            self.scene.replica(session)
        views.status(self.scene.core, "p4switch", "", self.scene.now)
        list(views.list_chunks(self.scene.core, rpc.ListRequest(), self.scene.now))


def _pin(scene: Scene, request: rpc.PinRequest) -> None:
    scene.ask(Requested("pin", request))


def _cost(scene: Scene, request: rpc.CostRequest) -> None:
    views.cost_reply(scene.core.quotes.of(parse.cost_question(request), scene.now))


_ASKED: tuple[tuple[Any, Callable[[Scene, Any], object]], ...] = (
    (rpc.PinRequest, _pin),
    (rpc.PinRequest, lambda scene, request: scene.ask(Requested("unpin", request))),
    (rpc.EvictRequest, lambda scene, request: scene.ask(Requested("evict", request))),
    (rpc.WarmRequest, lambda scene, request: scene.ask(Requested("warm", request))),
    (rpc.DrainRequest, lambda scene, request: scene.ask(Requested("drain", request))),
    (rpc.ListRequest, lambda scene, request: list(views.list_chunks(scene.core, request, scene.now))),
    (rpc.TopRequest, lambda scene, request: views.top(scene.core, request.limit, scene.now)),
    (rpc.CostRequest, _cost),
)
_TAKERS = (_Life.message, _Life.hello, _Life.asked, _Life.heat, _Life.time, _Life.leave, _Life.move)
