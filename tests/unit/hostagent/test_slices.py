"""Requests of many keys are worked in slices: one answer each, in order, and others' requests in between."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostagent.api.connection import HANDLERS, Answer, TurnTaker
from hostagent.api.slices import Slices, is_sliced
from hostagent.core import effects, events
from hostagent.core.events import EngineEvent, EngineId
from hostagent.limits import FETCH_SLICE_KEYS, SLICE_KEYS
from kvchunk.ids import ChunkKey
from kvclient import messages
from kvclient.messages import (
    CLAIM,
    FETCH,
    FETCH_EACH,
    HINT,
    KEYS_MAX,
    LEASE,
    LOCK,
    NO_KEY,
    NO_POSITION,
    NO_RECOMPUTE,
    RESERVE,
    Frame,
    FrameReader,
    Hint,
    Kind,
    MalformedFrameError,
    Status,
)
from tests.unit.hostagent.core_harness import PAGE, Scene, key
from tests.unit.hostagent.test_what_engines_send import Wire, connection

FETCHES = [Kind.FETCH, Kind.FETCH_STREAM, Kind.FETCH_EACH]
LONG = list(range(2 * SLICE_KEYS + 1))
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

    def __init__(self, pool_pages: int = 128, chunks: Sequence[int] = range(0, 80, 2)) -> None:
        self.scene = Scene(pool_pages=pool_pages)
        self.handled: list[EngineEvent] = []
        self.turns = TurnTaker(asyncio.get_running_loop())
        self.wire = Answers()
        self.connection = connection(self.handle, self.turns, self.wire)
        self.scene.say(events.EngineConnected(ENGINE, "tenant"))
        for number in chunks:
            self.scene.put(number)
        self.scene.made.clear()

    def handle(self, event: EngineEvent) -> None:
        self.handled.append(event)
        self.scene.say(event)
        for answer in self.scene.take(Answer):
            if answer.engine == ENGINE:
                self.connection.answer(answer)

    async def ask(self, sent: bytes) -> list[Frame]:
        """What is answered to frames until all of them are worked."""
        before = len(self.wire.frames)
        self.connection.data_received(sent)
        while self.turns.is_busy:
            await asyncio.sleep(0)
        return self.wire.frames[before:]


def request(kind: Kind, numbers: list[int], request: int = 7) -> bytes:
    prefix = FETCH.pack(60_000_000, NO_RECOMPUTE, 0, 0.0, 0, 0)
    heads = {
        Kind.LOCK: LOCK.pack(60_000_000),
        Kind.HINT: HINT.pack(Hint.EXPECTED, 1000),
        Kind.CLAIM: CLAIM.pack(PAGE),
        Kind.FETCH: prefix,
        Kind.FETCH_STREAM: prefix,
        Kind.FETCH_EACH: FETCH_EACH.pack(60_000_000),
    }
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
        dropped = [one for event in agent.handled if getattr(event, "kind", None) is Kind.DROP for one in event.keys]
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


# ------------------------------------------------------------------ fetches


RESERVED = messages.pack(Kind.RESERVE, 2, RESERVE.pack(key(9999), NO_KEY, PAGE, NO_POSITION))


@pytest.mark.parametrize("kind", FETCHES)
def test_between_two_slices_of_a_fetch_others_are_answered(kind: Kind) -> None:
    async def steps() -> None:
        agent = Agent(2 * len(LONG), LONG)
        other = connection(agent.handle, agent.turns, Wire(), 2)

        async def beside() -> list[list[EngineEvent]]:
            """What of the request is worked for each request of somebody else."""
            found = []
            while agent.turns.is_busy:
                before = len(agent.handled)
                other.data_received(RESERVED)
                while len(agent.handled) == before:
                    await asyncio.sleep(0)
                put, *behind = agent.handled[before:]
                assert isinstance(put, events.ReserveRequested)
                found.append(behind)
            return found

        agent.connection.data_received(request(kind, LONG))
        worked = await beside()
        assert max(map(len, worked)) == 1, "a turn of the loop ends with one slice"
        named = [one for one in agent.handled if isinstance(one, events.ChunksNamed)]
        assert [(one.first, len(one.keys)) for one in named] == [
            (first, min(FETCH_SLICE_KEYS, len(LONG) - first)) for first in range(0, len(LONG), FETCH_SLICE_KEYS)
        ]
        (answer,) = agent.wire.frames
        assert (answer.kind, answer.status, answer.count) == (
            Kind.FETCH_EACH if kind is Kind.FETCH_EACH else Kind.FETCH,
            Status.OK,
            len(LONG),
        )
        assert agent.scene.core.pool.pins_count == len(LONG)
        assert agent.wire.takes_requests

    asyncio.run(steps())


def test_in_the_middle_of_a_lease_that_ends_others_are_answered() -> None:
    async def steps() -> None:
        many = list(range(4 * SLICE_KEYS))
        agent = Agent(2 * len(many), many)
        (answer,) = await agent.ask(request(Kind.FETCH, many))
        agent.handled.clear()
        other = connection(agent.handle, agent.turns, Wire(), 2)
        agent.connection.data_received(messages.pack(Kind.RELEASE, 0, answer.body[: LEASE.size]))
        other.data_received(RESERVED)
        while agent.turns.is_busy:
            await asyncio.sleep(0)
        kinds = [type(one) for one in agent.handled]
        assert kinds.index(events.ReserveRequested) <= 2
        assert kinds.count(events.LeaseReleased) == 4
        assert agent.scene.core.pool.pins_count == 0
        assert agent.wire.takes_requests

    asyncio.run(steps())


def test_what_follows_the_end_of_a_lease_finds_the_room_that_it_leaves() -> None:
    async def steps() -> None:
        agent = Agent(2 * len(LONG), LONG)
        (answer,) = await agent.ask(request(Kind.FETCH, LONG))
        reserve = RESERVE.pack(key(9999), NO_KEY, (len(LONG) + 9) * PAGE, NO_POSITION)
        (refused,) = await agent.ask(messages.pack(Kind.RESERVE, 2, reserve))
        assert refused.status == Status.POOL_FULL
        released = messages.pack(Kind.RELEASE, 0, answer.body[: LEASE.size])
        (taken,) = await agent.ask(released + messages.pack(Kind.RESERVE, 3, reserve))
        assert taken.status == Status.OK

    asyncio.run(steps())


def test_no_more_of_a_fetch_is_named_than_is_here() -> None:
    async def steps() -> None:
        agent = Agent(2 * len(LONG), LONG[:130])
        (answer,) = await agent.ask(request(Kind.FETCH, LONG))
        assert (answer.status, answer.count) == (Status.NOT_FOUND, 130)
        assert [type(one) for one in agent.handled] == [events.ChunksNamed] * 3 + [events.ChunksRequested]
        agent.handled.clear()
        (answer,) = await agent.ask(request(Kind.FETCH, LONG[1:]))
        assert answer.count == 129

    asyncio.run(steps())


def test_a_fetch_of_a_slice_or_less_is_requested_at_once() -> None:
    async def steps() -> None:
        agent = Agent(2 * len(LONG), LONG)
        for kind in FETCHES:
            await agent.ask(request(kind, LONG[:SLICE_KEYS]))
        assert [type(one) for one in agent.handled] == [events.ChunksRequested] * 3

    asyncio.run(steps())


def test_who_goes_in_the_middle_of_a_fetch_leaves_no_pin() -> None:
    async def steps() -> None:
        agent = Agent(2 * len(LONG), LONG)
        agent.connection.data_received(request(Kind.FETCH, LONG))
        while not agent.handled:
            await asyncio.sleep(0)
        assert agent.scene.core.pool.pins_count == FETCH_SLICE_KEYS
        agent.connection.end()
        agent.scene.say(events.EngineDisconnected(ENGINE))
        while agent.turns.is_busy:
            await asyncio.sleep(0)
        assert len(agent.handled) == 1
        assert agent.scene.core.pool.pins_count == 0

    asyncio.run(steps())


def test_requests_behind_a_long_fetch_wait_for_its_answer() -> None:
    async def steps() -> None:
        agent = Agent(2 * len(LONG), LONG)
        sent = request(Kind.FETCH, LONG, 1) + request(Kind.CONTAINS, [0], 2) + request(Kind.FETCH_EACH, LONG, 3)
        assert [one.request for one in await agent.ask(sent)] == [1, 2, 3]

    asyncio.run(steps())
