"""Requests of many keys are worked in slices: one answer each, in order, and others' requests in between."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostagent.api.server import HANDLERS, TurnTaker
from hostagent.api.slices import Slices, is_sliced
from hostagent.core import effects, events
from hostagent.core.events import EngineEvent, EngineId
from hostagent.limits import SLICE_KEYS
from kvchunk.ids import ChunkKey
from kvclient import messages
from kvclient.messages import (
    CLAIM,
    HINT,
    KEYS_MAX,
    LOCK,
    NO_KEY,
    NO_POSITION,
    RESERVE,
    Frame,
    FrameReader,
    Hint,
    Kind,
    MalformedFrameError,
)
from tests.unit.hostagent.core_harness import PAGE, Scene, key
from tests.unit.hostagent.test_what_engines_send import Wire, connection

SLICED = [kind for kind in Kind if is_sliced(Frame(kind, 0, KEYS_MAX, 0, b""))]
ENGINE = EngineId(1)


class Answers(Wire):
    """An engine's end, which keeps what comes."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = FrameReader()
        self.frames: list[Frame] = []
        self.takes_requests = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.frames += self._reader.feed(bytes(data))

    def pause_reading(self) -> None:
        self.takes_requests = False

    def resume_reading(self) -> None:
        self.takes_requests = True


class Agent:
    """A core with one engine's connection, whose answers go back to it."""

    def __init__(self, pool_pages: int = 128) -> None:
        self.scene = Scene(pool_pages=pool_pages)
        self.handled: list[EngineEvent] = []
        self.turns = TurnTaker(asyncio.get_running_loop())
        self.wire = Answers()
        self.connection = connection(self.handle, self.turns, self.wire)
        self.scene.say(events.EngineConnected(ENGINE, "tenant"))
        for number in range(0, 80, 2):
            self.scene.put(number)
        self.scene.made.clear()

    def handle(self, event: EngineEvent) -> None:
        self.handled.append(event)
        self.scene.say(event)
        for answer in self.scene.take(effects.KeysAnswered):
            self.connection.answer(answer)

    async def ask(self, sent: bytes) -> list[Frame]:
        """What is answered to frames until all of them are worked."""
        before = len(self.wire.frames)
        self.connection.data_received(sent)
        while self.turns.is_busy:
            await asyncio.sleep(0)
        return self.wire.frames[before:]


def request(kind: Kind, numbers: list[int], request: int = 7) -> bytes:
    heads = {Kind.LOCK: LOCK.pack(60_000_000), Kind.HINT: HINT.pack(Hint.EXPECTED, 1000), Kind.CLAIM: CLAIM.pack(PAGE)}
    tails = {Kind.CLAIM: struct.pack(f"!{len(numbers)}Q", *(1_000_000 + number for number in numbers))}
    body = heads.get(kind, b"") + b"".join(map(key, numbers)) + tails.get(kind, b"")
    return messages.pack(kind, request, body, count=len(numbers))


def state(scene: Scene) -> object:
    """What these requests change."""
    core = scene.core
    chunks = {number: chunk.holds for number in range(97) if (chunk := core.pool.find(key(number))) is not None}
    return chunks, core.engines.locks.count, core.engines.locks.locked_bytes, core.claims.claims_count


@settings(max_examples=20, derandomize=True, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(SLICED), st.integers(1, 3 * SLICE_KEYS), st.integers(1, 9)), min_size=1, max_size=5
    )
)
def test_in_slices_requests_do_what_they_do_as_a_whole(asked: list[tuple[Kind, int, int]]) -> None:
    async def steps() -> None:
        sliced, whole = Agent(), Agent()
        for kind, count, step in asked:
            sent = request(kind, [place * step % 97 for place in range(count)])
            answers = await sliced.ask(sent)
            (frame,) = FrameReader().feed(sent)
            expected = answer_to_the_whole(whole, frame)
            assert [(one.kind, one.request, one.count, one.body) for one in answers] == expected
            assert state(sliced.scene) == state(whole.scene)

    asyncio.run(steps())


def answer_to_the_whole(agent: Agent, frame: Frame) -> list[tuple[int, int, int, bytes]]:
    """As an agent answers that works a request in one go."""
    events_made: list[EngineEvent] = []
    alone = connection(events_made.append, agent.turns, Wire())
    HANDLERS[frame.kind](alone, frame)
    agent.scene.say(events_made[0])
    answers = agent.scene.take(effects.KeysAnswered)
    return [(one.kind, one.request, len(one.values), one.values) for one in answers]


@pytest.mark.parametrize("kind", SLICED)
def test_between_two_slices_others_are_answered(kind: Kind) -> None:
    async def steps() -> None:
        handled: list[EngineEvent] = []
        turns = TurnTaker(asyncio.get_running_loop())
        dear = connection(handled.append, turns, Wire(), 1)
        other = connection(handled.append, turns, Wire(), 2)
        dear.data_received(request(kind, list(range(KEYS_MAX))))
        slices, puts = 0, 0
        while turns.is_busy:
            other.data_received(messages.pack(Kind.RESERVE, 2, RESERVE.pack(key(1), NO_KEY, PAGE, NO_POSITION)))
            before, puts = len(handled), puts + 1
            while len(handled) == before:
                await asyncio.sleep(0)
            put, *behind = handled[before:]
            assert isinstance(put, events.ReserveRequested)
            assert len(behind) <= 1, "a turn of the loop ends with one slice"
            slices += len(behind)
        assert slices == KEYS_MAX // SLICE_KEYS
        assert puts >= slices
        keys = [one for event in handled for one in getattr(event, "keys", ())]
        assert sorted(keys) == [key(number) for number in range(KEYS_MAX)]

    asyncio.run(steps())


def test_requests_of_one_connection_are_worked_and_answered_in_order() -> None:
    async def steps() -> None:
        agent = Agent()
        many = list(range(KEYS_MAX))
        asked = [(Kind.LOCK, many), (Kind.CONTAINS, [0]), (Kind.UNLOCK, many), (Kind.PIN, [2]), (Kind.DROP, many)]
        sent = b"".join(request(kind, numbers, place) for place, (kind, numbers) in enumerate(asked))
        answers = await agent.ask(sent)
        assert [(one.kind, one.request, one.count) for one in answers] == [
            (kind, place, len(numbers)) for place, (kind, numbers) in enumerate(asked)
        ]
        assert answers[0].body == answers[2].body == bytes(n % 2 == 0 and n < 80 for n in many)
        assert answers[4].body == bytes(n % 2 == 0 and n < 80 and n != 2 for n in many), "a pinned chunk stays"
        dropped = [one for event in agent.handled if isinstance(event, events.DropRequested) for one in event.keys]
        assert dropped[0] == key(KEYS_MAX - SLICE_KEYS), "a prefix is dropped from its end"
        assert agent.wire.takes_requests

    asyncio.run(steps())


def test_claims_are_answered_only_where_some_are_refused() -> None:
    async def steps() -> None:
        agent = Agent(1024)
        few = list(range(1000, 1000 + 2 * SLICE_KEYS))
        assert await agent.ask(request(Kind.CLAIM, few)) == []
        many = list(range(2000, 2000 + KEYS_MAX))
        (answer,) = await agent.ask(request(Kind.CLAIM, many))
        taken = sum(answer.body)
        assert 0 < taken < KEYS_MAX
        assert answer.body == b"\1" * taken + bytes(KEYS_MAX - taken)
        assert agent.scene.core.claims.claims_count == len(few) + taken

    asyncio.run(steps())


def test_who_goes_in_the_middle_of_a_request_is_gone() -> None:
    async def steps() -> None:
        agent = Agent()
        agent.connection.data_received(request(Kind.LOCK, list(range(KEYS_MAX))))
        while not agent.handled:
            await asyncio.sleep(0)
        agent.connection.end()
        agent.scene.say(events.EngineDisconnected(ENGINE))
        while agent.turns.is_busy:
            await asyncio.sleep(0)
        assert len(agent.handled) == 1
        assert agent.scene.core.engines.locks.count == 0

    asyncio.run(steps())


@pytest.mark.parametrize("kind", SLICED)
def test_a_body_that_is_not_what_its_count_says_is_refused_before_any_of_it_is_worked(kind: Kind) -> None:
    (frame,) = FrameReader().feed(request(kind, list(range(2 * SLICE_KEYS))))
    for body in (frame.body[:-1], frame.body + b"\0", frame.body[:3]):
        with pytest.raises(MalformedFrameError, match="keys announced"):
            Slices(replace(frame, body=body))


def test_the_end_of_a_session_looks_through_the_pool_once() -> None:
    async def steps() -> None:
        agent = Agent()
        body = HINT.pack(Hint.SESSION_ENDED, 0) + b"".join(map(key, range(KEYS_MAX)))
        await agent.ask(messages.pack(Kind.HINT, 1, body, count=KEYS_MAX))
        (event,) = agent.handled
        assert isinstance(event, events.HintGiven)
        assert len(event.keys) == KEYS_MAX

    asyncio.run(steps())


def test_slices_have_all_keys_once() -> None:
    for count in (SLICE_KEYS + 1, 2 * SLICE_KEYS, KEYS_MAX):
        for kind in SLICED:
            (frame,) = FrameReader().feed(request(kind, list(range(count))))
            slices, seen = Slices(frame), list[ChunkKey]()
            while not slices.is_over:
                part = slices.take()
                assert 0 < part.count <= SLICE_KEYS
                if kind is Kind.CLAIM:
                    _, keys, times_s = messages.unpack_claim(part)
                    assert [int((time_s - 1) * 1e6 + 0.5) for time_s in times_s] == [
                        int.from_bytes(one, "big") for one in keys
                    ]
                else:
                    keys = messages.unpack_keys(part.body, part.count, len(part.body) - 16 * part.count)
                seen += map(ChunkKey, keys)
            assert sorted(seen) == [key(number) for number in range(count)]
