"""Whatever an engine sends: what the agent takes of it, the controller takes of the agent, and other agents take of the
controller. Frames go in at one end, through the real connection, both cores and both conversions."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.events import MessageReceived
from hostagent.api.connection import EngineConnection, Service, TurnTaker
from hostagent.api.tenancy import Pace
from hostagent.controller import convert
from hostagent.controller.refusals import Refusals
from hostagent.core import effects, events
from hostagent.core.events import EngineId
from kvchunk.ids import ChunkKey
from kvclient import messages
from kvclient.messages import FETCH, HINT, LOCK, NO_KEY, NO_POSITION, RESERVE, WARM, Kind, Status
from kvproto.limits import CHUNK_BYTES_MAX, PREFIX_CHUNKS_MAX
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import Fabric
from tests.digests import hashed
from tests.unit.controlplane.helpers import Scene as ControllerScene
from tests.unit.hostagent.core_harness import PAGE
from tests.unit.hostagent.core_harness import Scene as AgentScene

ENGINE = EngineId(1)
U64 = 2**64 - 1
keys = st.integers(0, 5).map(lambda number: ChunkKey(number.to_bytes(16, "big")))
lists = st.lists(keys, max_size=4)
sizes = st.sampled_from([0, 1, PAGE, 3 * PAGE, 65 * PAGE, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, U64])
positions = st.sampled_from([0, 1, 7, PREFIX_CHUNKS_MAX - 1, PREFIX_CHUNKS_MAX, NO_POSITION - 1, NO_POSITION])
times = st.sampled_from([0, 1, 1_000_000, 10**12, U64])
namespaces = st.one_of(st.just(b""), st.binary(max_size=4), st.text(max_size=300).map(str.encode))
words = st.integers(0, 2**32 - 1)
Sent = tuple[Kind, bytes, int]


def _reserve(parts: tuple[bytes, bytes, int, int, bytes]) -> Sent:
    *head, namespace = parts
    return Kind.RESERVE, RESERVE.pack(*head) + namespace, 0


def _claim(parts: tuple[int, list[ChunkKey], int]) -> Sent:
    size_bytes, of, time_us = parts
    body = struct.pack("!Q", size_bytes) + b"".join(of) + struct.pack(f"!{len(of)}Q", *[time_us] * len(of))
    return Kind.CLAIM, body, len(of)


def _with_keys(kind: Kind, head: bytes, of: list[ChunkKey]) -> Sent:
    return kind, head + b"".join(of), len(of)


frames = st.one_of(
    st.tuples(keys, st.one_of(keys, st.just(NO_KEY)), sizes, positions, namespaces).map(_reserve),
    st.tuples(keys, st.one_of(keys, st.just(NO_KEY)), st.just(PAGE), positions, st.just(b"")).map(_reserve),
    st.tuples(sizes, lists, times).map(_claim),
    st.builds(_with_keys, st.sampled_from([Kind.DISCLAIM, Kind.DROP, Kind.PIN, Kind.CONTAINS]), st.just(b""), lists),
    st.builds(_with_keys, st.just(Kind.HINT), st.builds(HINT.pack, st.sampled_from([1, 2]), words), lists),
    st.builds(_with_keys, st.just(Kind.LOCK), times.map(LOCK.pack), lists),
    st.builds(_with_keys, st.just(Kind.FETCH), st.just(FETCH.pack(1000, U64, 0, 0.0, 0, 0)), lists),
    st.tuples(st.builds(WARM.pack, times, words, words), namespaces).map(lambda both: (Kind.WARM, b"".join(both), 0)),
    st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=60), st.integers(0, 5)),
)


class Wire(asyncio.Transport):
    """The engine's end, which keeps nothing."""

    is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


def connection(
    handle: Callable[[events.EngineEvent], None], turns: TurnTaker, wire: Wire, number: int = ENGINE
) -> EngineConnection:
    """Of an engine at the other end of a wire."""
    service = Service(handle, dict, None, turns)
    with socket.socket() as sock:  # which a connection only shuts down
        made = EngineConnection(sock, EngineId(number), service, lambda _: None, Pace(0))
    made.connection_made(wire)
    return made


class World:
    """An engine, its agent, the controller and another node's agent, joined by functions."""

    def __init__(self) -> None:
        self.agent = AgentScene()
        self.controller = ControllerScene()
        for number in (1, 2):
            self.controller.attach(number, pool_bytes=64 * PAGE)
        self.heard = len(self.controller.sent[2])
        self.agent.say(events.EngineConnected(ENGINE, "tenant"))
        self.agent.say(events.Welcomed(7, 0, None, PAGE, None, 0, 1.0))
        self.turns = TurnTaker(asyncio.get_running_loop())
        self.connect()
        self.taken = 0

    def connect(self) -> None:
        self.wire = Wire()
        self.connection = connection(self.agent.say, self.turns, self.wire)

    def send(self, sent: Sent) -> None:
        kind, body, count = sent
        if self.wire.is_aborted:  # what breaks the protocol ends its engine's connection: the next one goes on
            self.connect()
        self.connection.data_received(messages.pack(kind, 9, body, count=count))
        for answer in self.agent.take(effects.ReserveAnswered):
            if answer.status is Status.OK:
                self.taken += 1
                self.agent.say(events.CommitRequested(ENGINE, 10, answer.lease))
        for asked in self.agent.take(effects.ComputeDigest):
            self.agent.say(
                events.DigestComputed(asked.chunk, hashed(int.from_bytes(asked.chunk.key, "big")), asked.use)
            )
        self.agent.pass_ms(400)
        self.tell()

    def tell(self) -> None:
        """What the agent says goes to the controller; what that says of it to the other agent."""
        made, self.agent.made = self.agent.made, []
        for effect in made:
            if isinstance(effect, effects.BeatHeart):
                self.controller.handle(MessageReceived(1, convert.heartbeat_of(effect)))
            elif type(effect).__name__.startswith(("Announce", "Report")):
                self.controller.handle(MessageReceived(1, convert.message_of(effect)))  # type: ignore[arg-type]
        self.controller.now = max(self.controller.now, self.agent.now_ns)
        self.controller.advance()
        for message in self.controller.sent[2][self.heard :]:
            refused = Refusals()
            convert.events_of(message, Fabric(), refused)
            assert not refused.counts
        self.heard = len(self.controller.sent[2])


def refusals(scene: ControllerScene) -> list[rpc.Refusal]:
    return [one for one in scene.refusals(1) if one.reason != "its parents lead back to it"]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.lists(frames, min_size=1, max_size=12))
def test_what_the_agent_takes_of_an_engine_the_controller_takes_of_the_agent(sent: list[Sent]) -> None:
    async def steps() -> None:
        world = World()
        for one in sent:
            world.send(one)
        assert not world.controller.closed
        assert refusals(world.controller) == []

    asyncio.run(steps())


def test_the_frames_of_this_test_reach_the_directory() -> None:
    async def steps() -> None:
        world = World()
        world.send((Kind.RESERVE, RESERVE.pack(bytes(15) + b"\1", NO_KEY, PAGE, NO_POSITION) + b"model", 0))
        world.send((Kind.RESERVE, RESERVE.pack(bytes(15) + b"\2", bytes(15) + b"\2", PAGE, 1), 0))
        assert world.taken == 1
        assert set(world.controller.replica(2)) == {bytes(15) + b"\1"}

    asyncio.run(steps())
