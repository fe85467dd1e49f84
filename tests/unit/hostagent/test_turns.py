"""Fairness among engines by what requests cost: whoever asks for little waits for the one slice of a
dear request that is being handled, however many wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hostagent.api.connection import TurnTaker
from hostagent.api.turns import AT_ONCE_US, COSTS_US, Turns
from hostagent.core import events
from hostagent.core.events import EngineEvent
from hostagent.limits import SLICE_KEYS
from kvclient import messages
from kvclient.messages import HINT, KEYS_MAX, LOCK, NO_KEY, NO_POSITION, RESERVE, Hint, Kind
from tests.unit.hostagent.test_what_engines_send import Wire, connection


@dataclass(eq=False)
class Asker:
    costs_us: list[int]
    paid_us: int = 0
    served_us: int = 0
    is_at_work = False

    @property
    def next_us(self) -> int | None:
        return self.costs_us[0] if self.costs_us else None


def serve(turns: Turns[Asker]) -> Asker | None:
    if (turn := turns.take()) is None:
        return None
    asker, cost_us = turn
    assert asker.costs_us.pop(0) == cost_us
    asker.served_us += cost_us
    return asker


DEAREST_US = 50_000
COSTS = st.lists(st.integers(1, DEAREST_US), max_size=20)


@given(st.lists(COSTS, max_size=8))
def test_everybody_is_served_and_nobody_gets_ahead_by_more_than_its_dearest_request(all_costs: list[list[int]]) -> None:
    turns: Turns[Asker] = Turns()
    askers = [Asker(list(costs)) for costs in all_costs]
    for asker in askers:
        turns.add(asker)
    while serve(turns) is not None:
        waiting = [asker for asker in askers if asker.costs_us]
        if len(waiting) == len(askers):
            most, least = max(one.served_us for one in waiting), min(one.served_us for one in waiting)
            assert most - least <= 2 * DEAREST_US
    assert not any(asker.costs_us for asker in askers)
    assert not turns


def test_who_asks_for_little_comes_first_up_to_its_share() -> None:
    turns: Turns[Asker] = Turns()
    dear = [Asker([10_000] * 5) for _ in range(4)]
    for one in dear:
        turns.add(one)
    assert serve(turns) in dear
    cheap = Asker([100])
    turns.add(cheap)
    assert serve(turns) is cheap
    while sum(one.served_us for one in dear) < 4 * 50_000:
        if not cheap.costs_us:
            cheap.costs_us.append(100)
            turns.add(cheap)
        serve(turns)
        assert cheap.served_us <= max(one.served_us for one in dear) + 10_000, "it gets no more than its share"
    assert cheap.served_us > 30_000


def test_a_put_waits_for_one_slice_and_not_for_hundreds_of_dear_requests() -> None:
    async def steps() -> None:
        handled: list[EngineEvent] = []
        turns = TurnTaker(asyncio.get_running_loop())
        connections = [connection(handled.append, turns, Wire(), number) for number in range(9)]
        *flooders, honest = connections
        keys = bytes(16 * KEYS_MAX)
        lock = messages.pack(Kind.LOCK, 1, LOCK.pack(1) + keys, count=KEYS_MAX)
        hint = messages.pack(Kind.HINT, 1, HINT.pack(Hint.EXPECTED, 1) + keys, count=KEYS_MAX)
        for flooder in flooders:
            flooder.data_received((lock + hint) * 2)
        assert handled == [], "dear ones wait for their turn even where nobody else asks"
        await asyncio.sleep(0)
        put = messages.pack(Kind.RESERVE, 2, RESERVE.pack(keys[:16], NO_KEY, 4096, NO_POSITION))
        puts = 0
        while puts < 60:  # a sixtieth of a dear request each: less than its share
            puts += 1
            before = len(handled)
            honest.data_received(put)
            while not any(isinstance(event, events.ReserveRequested) for event in handled[before:]):
                await asyncio.sleep(0)
            (place,) = [at for at, event in enumerate(handled[before:]) if isinstance(event, events.ReserveRequested)]
            assert place <= 1, "one turn of the loop, which ends with the first slice of a dear request"
        while len(handled) < 8 * 4 * (KEYS_MAX // SLICE_KEYS) + puts:
            await asyncio.sleep(0)

    asyncio.run(steps())


def test_what_engines_mostly_ask_for_is_handled_at_once() -> None:
    for kind in (Kind.RESERVE, Kind.COMMIT, Kind.FETCH, Kind.RELEASE, Kind.FETCH_EACH):
        base_us, key_us = COSTS_US[kind]
        assert base_us + key_us * 100 <= AT_ONCE_US
