"""The agent's core and a cold store: what it writes behind, when it looks, what it believes. The test is the store."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.cold import may_wait_s, worth_storing
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from hostagent.tree import Hashed
from kvchunk.ids import Digest
from kvchunk.sources import ChunkSource
from kvclient.messages import Hint, Kind, Status
from kvpolicy.tiers.gate import Choice
from kvpolicy.value.costs import SourceCost, SourceCosts, Tier
from tests.digests import digest
from tests.unit.hostagent.core_harness import ENGINE, PAGE, Scene, entry, key


class ColdScene(Scene):
    """A core with a cold store that answers when the test says so."""

    def __init__(self, *, state: ColdState = ColdState.ON, pool_pages: int = 64, disk_pages: int = 0) -> None:
        super().__init__(cold=True, pool_pages=pool_pages, disk_pages=disk_pages)
        if state is not ColdState.AWAY:
            # Reading a page takes 1 ms, looking half a millisecond; computing anything takes 10 ms and more.
            self.say(events.ColdProbed(1 << 20, 0.005, 0.000_5))
            self.say(events.ColdStateGiven(state))
        self.stored: dict[int, int] = {}
        """Pages of what is in the store."""

    def answer(self) -> list[list[int]]:
        """Answer every look; what was asked for."""
        asked = []
        for look in self.take(effects.LookUpCold):
            numbers = [int.from_bytes(one, "big") for one in look.keys]
            found = [number for number in numbers if number in self.stored]
            absent = tuple(key(number) for number in numbers if number not in self.stored)
            self.say(events.ColdLookedUp(look.number, tuple(map(self.entry, found)), absent))
            asked.append(numbers)
        return asked

    def entry(self, number: int) -> ChunkEntry:
        return ChunkEntry(key(number), None, self.stored[number] * PAGE, digest(number), 0, ())

    def bring(self, outcome: LoadOutcome = LoadOutcome.DONE, wrong: Digest | None = None) -> list[int]:
        """Answer every LoadCold."""
        asked = self.take(effects.LoadCold)
        for one in asked:
            self.say(events.ColdLoadEnded(one.into, outcome, Hashed(one.digest if wrong is None else wrong)))
        return [int.from_bytes(one.into.key, "big") for one in asked]

    def write(self, outcome: SaveOutcome = SaveOutcome.STORED) -> list[int]:
        """Answer every SaveCold."""
        asked = self.take(effects.SaveCold)
        for one in asked:
            number = int.from_bytes(one.chunk.key, "big")
            if outcome is SaveOutcome.STORED:
                self.stored[number] = one.chunk.size_bytes // PAGE
            self.say(events.ColdSaveEnded(one.chunk, outcome))
        return [int.from_bytes(one.chunk.key, "big") for one in asked]

    def write_all(self) -> list[int]:
        written: list[int] = []
        self.pass_ms(15)
        while more := self.write():
            written += more
            self.pass_ms(15)
        return written

    def got(self) -> tuple[Status, list[ChunkSource]]:
        (answer,) = self.take(effects.FetchAnswered)
        self.say(events.LeaseReleased(ENGINE, answer.lease))
        return answer.status, [chunk.source for chunk in answer.chunks]

    def fill(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.put(number)


COLD, LOCAL = ChunkSource.COLD, ChunkSource.LOCAL


def test_what_is_about_to_be_evicted_is_written_and_comes_back_by_the_index() -> None:
    scene = ColdScene(pool_pages=16)
    scene.fill(range(12))
    assert scene.write_all() == [], "there is room"
    scene.fill(range(12, 16))
    written = scene.write_all()
    assert sorted(written) == list(range(16)), "all of them are among the next victims of so small a pool"
    scene.fill(range(20, 30))
    gone = next(number for number in written if scene.core.pool.find(key(number)) is None)
    scene.fetch(gone)
    assert scene.take(effects.LookUpCold) == [], "it wrote the chunk itself, and remembers"
    assert scene.bring() == [gone]
    assert scene.got() == (Status.OK, [COLD])
    assert scene.core.gate.counts.decisions[Choice.COLD] == 1
    scene.close()


def test_a_prefix_that_another_node_stored_is_found_by_two_looks() -> None:
    scene = ColdScene()
    scene.stored = {1: 1, 2: 1, 3: 1}
    scene.fetch(1, 2, 3, 4, recompute_s=1.0)
    assert scene.take(effects.FetchAnswered) == []
    assert scene.answer() == [[1]], "most prefixes are not there: one look says so"
    assert scene.answer() == [[2, 3, 4]]
    assert scene.bring() == [1, 2, 3]
    assert scene.got() == (Status.NOT_FOUND, [COLD] * 3)
    scene.fetch(4, recompute_s=1.0)
    assert scene.take(effects.LookUpCold) == [], "nobody looks again so soon for what was not there"
    assert scene.got() == (Status.NOT_FOUND, [])
    scene.pass_ms(11_000)
    scene.fetch(4, recompute_s=1.0)
    assert scene.answer() == [[4]]
    scene.close()


def test_chunks_in_any_order_are_looked_for_at_once() -> None:
    scene = ColdScene()
    scene.put(2)
    scene.stored = {3: 1}
    keys = tuple(key(number) for number in (1, 2, 3))
    scene.say(events.ChunksRequested(ENGINE, 7, keys, 10.0, None, any_order=True))
    assert scene.answer() == [[1, 3]]
    assert scene.bring() == [3]
    (answer,) = scene.take(effects.FetchAnswered)
    assert sorted(chunk.source for chunk in answer.chunks if chunk.size_bytes) == [LOCAL, COLD]
    scene.say(events.LeaseReleased(ENGINE, answer.lease))
    scene.close()


def test_chunks_that_are_here_come_before_those_that_are_looked_for() -> None:
    scene = ColdScene()
    scene.put(1)
    scene.directory(entry(2, 1, pages=1))
    scene.stored = {3: 1}
    scene.fetch(1, 2, 3)
    assert scene.answer() == [[3]]
    scene.bring()
    scene.read()
    scene.compute(2)
    scene.pass_ms(100)
    scene.read()
    scene.compute(2)
    assert scene.got() == (Status.OK, [LOCAL, ChunkSource.HOLDER, COLD])
    scene.close()


def test_a_request_waits_for_a_look_only_as_long_as_is_allowed() -> None:
    scene = ColdScene()
    scene.fetch(1, recompute_s=0.2)
    scene.pass_ms(19)
    assert scene.take(effects.FetchAnswered) == []
    scene.pass_ms(2)
    assert scene.got() == (Status.NOT_FOUND, []), "a tenth of computing"
    assert scene.core.cold.counts.waits_late == 1
    scene.stored = {1: 1}
    scene.answer()
    scene.fetch(1, recompute_s=0.2)
    assert scene.bring() == [1], "the late answer is remembered"
    scene.got()
    scene.fetch(2, recompute_s=0.3)
    assert scene.got() == (Status.NOT_FOUND, []), "looks have turned out to be slow: nobody waits for them"
    scene.close()


def test_quick_computing_does_not_wait_for_a_look() -> None:
    scene = ColdScene()
    scene.fetch(1, recompute_s=0.005)
    assert scene.got() == (Status.NOT_FOUND, [])
    assert scene.take(effects.LookUpCold) == []
    scene.close()


@pytest.mark.parametrize("how", ["away at first", "goes away"])
def test_an_outage_is_as_if_there_were_no_store(how: str) -> None:
    scene = ColdScene(state=ColdState.AWAY if how == "away at first" else ColdState.ON, pool_pages=16)
    scene.fetch(1)
    if how == "goes away":
        scene.say(events.ColdStateGiven(ColdState.AWAY))
    assert scene.got() == (Status.NOT_FOUND, [])
    scene.take(effects.LookUpCold)
    scene.fetch(2)
    assert scene.got() == (Status.NOT_FOUND, [])
    scene.fill(range(3, 30))
    assert scene.write_all() == []
    assert scene.take(effects.LookUpCold) == []
    scene.say(events.ColdStateGiven(ColdState.ON))
    assert scene.write_all() != []
    scene.close()


def test_a_store_that_takes_nothing_is_still_read() -> None:
    scene = ColdScene(state=ColdState.READING, pool_pages=16)
    scene.fill(range(16))
    assert scene.write_all() == []
    scene.stored = {40: 1}
    scene.fetch(40)
    scene.answer()
    assert scene.bring() == [40]
    assert scene.got() == (Status.OK, [COLD])
    scene.close()


@pytest.mark.parametrize("outcome", [LoadOutcome.DAMAGED, LoadOutcome.ABSENT, LoadOutcome.FAILED])
def test_what_does_not_come_is_a_miss_and_forgotten(outcome: LoadOutcome) -> None:
    scene = ColdScene()
    scene.stored = {1: 1}
    scene.fetch(1)
    scene.answer()
    assert scene.bring(outcome) == [1]
    assert scene.got() == (Status.UNAVAILABLE, [])
    assert scene.core.cold.knows(key(1)) == (outcome is LoadOutcome.FAILED)
    counts = scene.core.cold.counts
    assert (counts.damaged, counts.missing) == (outcome is LoadOutcome.DAMAGED, outcome is LoadOutcome.ABSENT)
    scene.close()


def test_bytes_with_another_digest_are_never_given_out() -> None:
    scene = ColdScene()
    scene.stored = {1: 1}
    scene.fetch(1)
    scene.answer()
    scene.bring(LoadOutcome.DONE, wrong=digest(2))
    assert scene.got() == (Status.UNAVAILABLE, [])
    scene.close()


def test_a_holder_that_is_quicker_is_asked_instead() -> None:
    scene = ColdScene()
    scene.stored = {1: 8}
    scene.fetch(1)
    scene.answer()
    scene.bring(LoadOutcome.FAILED)
    scene.got()
    scene.directory(entry(1, 1))
    scene.fetch(1)
    assert scene.take(effects.LoadCold) == []
    assert [one.node for one in scene.take(effects.StartRead)] in ([], ["n1"])
    scene.say(events.EngineDisconnected(ENGINE))
    scene.pass_ms(1)


def test_only_last_copies_are_written_and_only_what_is_expected_again() -> None:
    scene = ColdScene(pool_pages=16)
    scene.fill(range(15))
    scene.directory(entry(3, 1, pages=1), entry(4, pages=1, disk=(2,)))
    scene.say(events.HintGiven((key(5), key(6)), Hint.SESSION_ENDED, 0))
    scene.pass_ms(20)
    scene.put(15)
    assert sorted(scene.write_all()) == [0, 1, 2, *range(7, 16)]
    scene.close()


def test_what_the_disk_is_about_to_evict_is_written_through_the_pool() -> None:
    scene = ColdScene(pool_pages=64, disk_pages=8)
    assert scene.disk is not None
    for number in range(8):
        scene.disk.store(number)
        scene.disk.pool.touch([key(number)])
    scene.put(20)
    scene.pass_ms(15)
    loaded = scene.load()
    assert loaded != []
    scene.pass_ms(15)
    assert [key(number) for number in scene.write()] == loaded
    scene.pass_ms(15)
    while scene.load() or scene.write():
        scene.pass_ms(15)
    assert set(scene.stored) == set(range(8))
    scene.take(effects.SaveChunk)


def test_a_chunk_that_the_store_refuses_is_not_offered_again_at_once() -> None:
    scene = ColdScene(pool_pages=16)
    scene.fill(range(16))
    scene.pass_ms(15)
    refused = scene.write(SaveOutcome.FAILED)
    assert len(refused) == 2
    assert set(scene.write_all()) == set(range(16)) - set(refused)
    counts = scene.core.cold_writes.counts
    assert (counts.failed, counts.stored) == (2, 14)
    scene.close()


def test_what_leaves_before_its_turn_is_counted() -> None:
    scene = ColdScene(pool_pages=16)
    scene.fill(range(16))
    scene.pass_ms(15)
    for number in range(16):
        scene.core.pool.drop(key(number))
    scene.write_all()
    assert scene.core.cold_writes.counts.dropped == 14, "two were being written"
    scene.close()


def test_an_engines_drop_reaches_the_store() -> None:
    scene = ColdScene()
    scene.put(1)
    scene.say(events.KeysRequested(ENGINE, 9, Kind.DROP, (key(1),)))
    assert scene.take(effects.ForgetCold) == [effects.ForgetCold(key(1))]
    scene.close()


def test_an_engine_that_goes_while_its_request_waits_leaves_nothing() -> None:
    scene = ColdScene()
    scene.stored = {1: 1}
    scene.fetch(1)
    scene.say(events.EngineDisconnected(ENGINE))
    scene.answer()
    assert scene.take(effects.LoadCold) == []
    assert scene.core.idle
    scene.close()


def test_the_gate_learns_what_the_store_takes() -> None:
    scene = ColdScene()
    scene.stored = dict.fromkeys(range(5), 8)
    before_s = scene.core.gate.costs.cost_s(Tier.COLD, 8 * PAGE)
    for number in range(5):
        scene.fetch(number)
        scene.answer()
        scene.pass_ms(100)
        scene.bring()
        scene.got()
    assert scene.core.gate.costs.cost_s(Tier.COLD, 8 * PAGE) > 5 * before_s
    scene.fetch(1, 9, recompute_s=0.05)
    scene.close()


def test_a_request_waits_where_looking_costs_little_beside_computing() -> None:
    assert may_wait_s(0.001, None, 0.05) == 0.05, "an engine that does not say how long computing takes"
    assert may_wait_s(0.001, 0.1, 0.05) == pytest.approx(0.01)
    assert may_wait_s(0.006, 0.1, 0.05) == 0.0
    assert may_wait_s(0.02, 10.0, 0.05) == 0.05
    assert may_wait_s(0.03, 10.0, 0.05) == 0.0


def test_a_chunk_is_worth_storing_when_it_is_read_sooner_than_computed() -> None:
    priors = dict.fromkeys(Tier, SourceCost(0.0, 1e8)) | {Tier.RECOMPUTE: SourceCost(0.0, 1e7)}
    costs = SourceCosts(priors)
    assert worth_storing(costs, 10**6, uses_per_s=1e-9)
    assert not worth_storing(costs, 10**6, uses_per_s=0.0)
    assert not worth_storing(SourceCosts({**priors, Tier.RECOMPUTE: SourceCost(0.0, 1e9)}), 10**6, uses_per_s=1.0)
