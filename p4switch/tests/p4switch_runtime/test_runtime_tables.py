"""Tables of every kind against a slow model that looks at all entries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4switch.runtime import Match, MatchKind, Pipeline, Program, Status, Switch, SwitchConfig, TableLayout
from p4switch.values import ActionCall, CounterValue

FORWARD, DROP, MARK, NOP = range(4)


@dataclass
class Model:
    """All entries in a dict; a lookup tries every one."""

    layout: TableLayout
    entries: dict[int, tuple[tuple[Match, ...], int]] = field(default_factory=dict)

    def identity(self, match: Sequence[Match], priority: int) -> tuple[object, ...]:
        parts: list[object] = []
        for key, (first, second) in zip(self.layout.keys, match, strict=True):
            ones = (1 << key.width) - 1
            match key.match_kind:
                case MatchKind.EXACT:
                    parts.append(first)
                case MatchKind.LPM:
                    parts.append((first & ones & ~(ones >> second), second))
                case MatchKind.TERNARY:
                    parts.append((first & second, second))
                case MatchKind.RANGE:
                    parts.append((first, second))
                case MatchKind.OPTIONAL:
                    parts.append(first if second else None)
        kinds = {key.match_kind for key in self.layout.keys}
        return (*parts, priority if kinds - {MatchKind.EXACT, MatchKind.LPM} else 0)

    def covers(self, match: Sequence[Match], values: Sequence[int]) -> bool:
        for key, (first, second), value in zip(self.layout.keys, match, values, strict=True):
            match key.match_kind:
                case MatchKind.EXACT:
                    hit = first == value
                case MatchKind.LPM:
                    hit = first >> (key.width - second) == value >> (key.width - second)
                case MatchKind.TERNARY:
                    hit = first & second == value & second
                case MatchKind.RANGE:
                    hit = first <= value <= second
                case MatchKind.OPTIONAL:
                    hit = not second or first == value
            if not hit:
                return False
        return True

    def rank(self, match: Sequence[Match], priority: int) -> int:
        kinds = {key.match_kind for key in self.layout.keys}
        if kinds - {MatchKind.EXACT, MatchKind.LPM}:
            return priority
        pairs = zip(self.layout.keys, match, strict=True)
        return sum(second for key, (_, second) in pairs if key.match_kind is MatchKind.LPM)

    def best(self, values: Sequence[int]) -> set[int]:
        """Handles of the entries that may win (several only if their priorities are equal)."""
        hits = {handle: self.rank(*entry) for handle, entry in self.entries.items() if self.covers(entry[0], values)}
        top = max(hits.values(), default=0)
        return {handle for handle, rank in hits.items() if rank == top}


def draw_match(rng: random.Random, layout: TableLayout, masks: int) -> tuple[Match, ...]:
    """Small value spaces, so that entries overlap; ``masks`` different ternary masks."""
    match: list[Match] = []
    for key in layout.keys:
        ones = (1 << key.width) - 1
        value = (
            rng.choice([0, ones, rng.randrange(8), rng.randrange(64) << (key.width // 2), rng.randrange(ones + 1)])
            & ones
        )
        match key.match_kind:
            case MatchKind.LPM:
                match.append(
                    (value, rng.choice([0, 1, key.width // 2, key.width - 2, key.width, rng.randrange(key.width + 1)]))
                )
            case MatchKind.TERNARY:
                match.append((value, random.Random(f"{key.name}{rng.randrange(masks)}").randrange(ones + 1)))
            case MatchKind.RANGE:
                other = rng.randrange(ones + 1)
                match.append((min(value, other), max(value, other)))
            case MatchKind.OPTIONAL:
                match.append((value, 1) if rng.random() < 0.7 else (0, 0))
            case MatchKind.EXACT:
                match.append((value & 0xFF if key.width < 64 else value, 0))
    return tuple(match)


def draw_values(rng: random.Random, model: Model) -> tuple[int, ...]:
    """A key that often hits: an entry's own values with some bits changed."""
    values: list[int] = []
    entries = list(model.entries.values())
    base = rng.choice(entries)[0] if entries else None
    for index, key in enumerate(model.layout.keys):
        ones = (1 << key.width) - 1
        value = base[index][0] if base is not None and rng.random() < 0.9 else rng.randrange(ones + 1)
        if rng.random() < 0.3:
            value ^= 1 << rng.randrange(key.width)
        values.append(value)
    return tuple(values)


def check(pipeline: Pipeline, model: Model, rng: random.Random, lookups: int) -> None:
    for _ in range(lookups):
        values = draw_values(rng, model)
        found = pipeline.find(model.layout.index, values)
        best = model.best(values)
        assert (found in best) if best else (found is None), f"{values}: found {found}, model {best}"


@pytest.mark.parametrize("name", ["dmac", "route", "acl", "ranges", "optional", "wide"])
@pytest.mark.parametrize("masks", [2, 60])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), operations=st.integers(1, 250))
def test_lookups_agree_with_the_model(exerciser: Program, name: str, masks: int, seed: int, operations: int) -> None:
    rng = random.Random(seed)
    with Switch(SwitchConfig(virtual_clock=True)) as switch:
        pipeline = switch.prepare(exerciser)
        model = Model(exerciser.table(name))
        index = model.layout.index
        for _ in range(operations):
            batch = pipeline.batch()
            if model.entries and rng.random() < 0.35:
                handle = rng.choice(list(model.entries))
                batch.delete(index, handle)
                assert batch.commit()[0].status is Status.OK
                del model.entries[handle]
                continue
            match, priority = draw_match(rng, model.layout, masks), rng.randrange(1, 6)
            batch.insert(index, match, ActionCall(NOP), priority)
            [result] = batch.commit()
            known = {model.identity(*entry) for entry in model.entries.values()}
            if model.identity(match, priority) in known:
                assert result.status is Status.EXISTS
            else:
                assert result.status is Status.OK
                model.entries[result.handle] = (match, priority)
        assert pipeline.entry_count(index) == len(model.entries)
        check(pipeline, model, rng, 60)
        read = {entry.handle: entry for entry in pipeline.entries(index)}
        assert read.keys() == model.entries.keys()
        for handle, (match, priority) in model.entries.items():
            assert model.identity(read[handle].match, priority) == model.identity(match, priority)


def test_a_large_exact_table_finds_every_entry(exerciser: Program) -> None:
    with Switch(SwitchConfig(virtual_clock=True)) as switch:
        pipeline = switch.prepare(exerciser)
        batch = pipeline.batch()
        for key in range(100_000):
            batch.insert(0, [(key * 7919, 0)], ActionCall(FORWARD, (key % 500,)))
        results = batch.commit()
        assert all(result.status is Status.OK for result in results)
        for key in range(0, 100_000, 97):
            assert pipeline.find(0, (key * 7919,)) == results[key].handle
            assert pipeline.find(0, (key * 7919 + 1,)) is None
        batch.clear(0)
        batch.commit()
        assert pipeline.entry_count(0) == 0
        assert pipeline.find(0, (0,)) is None


def test_a_full_table_says_so_and_takes_entries_again(switch: Switch, pipeline: Pipeline) -> None:
    small = pipeline.program.table("small").index
    batch = pipeline.batch()
    for key in range(4):
        batch.insert(small, [(key, 0)], ActionCall(NOP))
    statuses = [result.status for result in batch.commit()]
    assert statuses == [Status.OK, Status.OK, Status.OK, Status.FULL]
    handle = pipeline.find(small, (1,))
    assert handle is not None
    batch.delete(small, handle)
    batch.insert(small, [(9, 0)], ActionCall(NOP))
    assert [result.status for result in batch.commit()] == [Status.OK, Status.OK]


def test_const_entries_cannot_be_written(pipeline: Pipeline) -> None:
    const = pipeline.program.table("const").index
    [entry] = pipeline.entries(const)
    assert (entry.match, entry.action) == (((7, 0),), ActionCall(FORWARD, (3,)))
    batch = pipeline.batch()
    batch.insert(const, [(8, 0)], ActionCall(NOP))
    batch.modify(const, entry.handle, ActionCall(DROP))
    batch.delete(const, entry.handle)
    batch.clear(const)
    batch.set_default(const, ActionCall(DROP))
    assert {result.status for result in batch.commit()} == {Status.CONST}
    assert pipeline.entry_count(const) == 1


def test_the_default_entry_can_be_set_and_put_back(pipeline: Pipeline) -> None:
    for name, own in (("keyless", ActionCall(FORWARD, (9,))), ("acl", ActionCall(NOP))):
        table = pipeline.program.table(name).index
        assert pipeline.default_entry(table).action == own
        batch = pipeline.batch()
        batch.set_default(table, ActionCall(FORWARD, (4,)))
        batch.commit()
        assert pipeline.default_entry(table).action == ActionCall(FORWARD, (4,))
        batch.set_default(table, None)
        batch.commit()
        assert pipeline.default_entry(table).action == own


def test_modify_keeps_the_counter(pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    batch.insert(0, [(5, 0)], ActionCall(FORWARD, (1,)), counter=CounterValue(10, 1000))
    handle = batch.commit()[0].handle
    batch.modify(0, handle, ActionCall(MARK, (1 << 60,)))
    batch.commit()
    entry = pipeline.entry(0, handle)
    assert entry is not None
    assert (entry.action, entry.counter) == (ActionCall(MARK, (1 << 60,)), CounterValue(10, 1000))


def test_a_failed_operation_leaves_no_trace(pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    batch.insert(0, [(5, 0)], ActionCall(FORWARD, (1,)))
    batch.insert(0, [(5, 0)], ActionCall(FORWARD, (2,)))
    batch.modify(0, 77, ActionCall(DROP))
    batch.delete(0, 77)
    batch.insert(0, [(6, 0)], ActionCall(FORWARD, (3,)))
    statuses = [result.status for result in batch.commit()]
    assert statuses == [Status.OK, Status.EXISTS, Status.NOT_FOUND, Status.NOT_FOUND, Status.OK]
    assert [entry.action for entry in pipeline.entries(0)] == [ActionCall(FORWARD, (1,)), ActionCall(FORWARD, (3,))]


def test_stop_at_error_leaves_the_rest_out(pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    batch.delete(0, 77)
    batch.insert(0, [(6, 0)], ActionCall(FORWARD, (3,)))
    assert [result.status for result in batch.commit(stop_at_error=True)] == [Status.NOT_FOUND, Status.INVALID]
    assert pipeline.entry_count(0) == 0


@pytest.mark.parametrize(
    ("match", "action"),
    [
        ([(1, 0), (2, 0)], ActionCall(NOP)),
        ([(1 << 48, 0)], ActionCall(NOP)),
        ([(-1, 0)], ActionCall(NOP)),
        ([(1, 0)], ActionCall(FORWARD)),
        ([(1, 0)], ActionCall(FORWARD, (512,))),
        ([(1, 0)], ActionCall(99)),
    ],
)
def test_what_no_table_could_take_is_refused_at_once(
    pipeline: Pipeline, match: list[Match], action: ActionCall
) -> None:
    batch = pipeline.batch()
    with pytest.raises(ValueError):
        batch.insert(0, match, action)
    assert len(batch) == 0


def test_value_sets_are_tables_without_actions(pipeline: Pipeline) -> None:
    index = pipeline.program.table("set").index
    batch = pipeline.batch()
    batch.clear(index)
    batch.insert(index, [(0x0800, 0)])
    batch.insert(index, [(0x86DD, 0)])
    assert {result.status for result in batch.commit()} == {Status.OK}
    assert pipeline.find(index, (0x86DD,)) is not None
    assert pipeline.find(index, (0x0806,)) is None
