"""The kept order of eviction and the search for room decide as the obvious slow way does."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.ids import ChunkKey, Slot
from controlplane.core.switch.slots import SlotAllocator, SlotRange
from controlplane.core.switch_cache.layout import EvictionOrder, Placed, Resident, Room, SlotLayout
from tests.unit.controlplane.helpers import CHUNK, key


def slow_losses(residents: Iterable[Resident]) -> dict[ChunkKey, float]:
    """Of all residents anew, descendants first."""
    pool = {one.key: one for one in residents}
    worth = {one.key: one.value for one in pool.values()}
    below: dict[ChunkKey, list[float]] = {one: [] for one in pool}
    loss = {}
    for one in sorted(pool.values(), key=lambda one: -one.position):
        loss[one.key] = math.fsum([worth[one.key] * one.size_bytes, *below[one.key]])
        if one.parent in pool:
            worth[one.parent] = max(worth[one.parent], worth[one.key])
            below[one.parent].append(loss[one.key])
    return loss


def slow_room(placed: Sequence[Placed], need: int, keep: frozenset[ChunkKey], gaps: Sequence[SlotRange]) -> Room | None:
    """Every range, from the lowest on."""
    loss = slow_losses(one.resident for one in placed)
    strips = sorted(
        [(gap, None) for gap in gaps] + [(one.slots, one.resident) for one in placed], key=lambda one: one[0]
    )
    best: Room | None = None
    for first in range(len(strips)):
        at, inside = strips[first][0].base, []
        for slots, resident in strips[first:]:
            if at - strips[first][0].base >= need or slots.base != at:
                break
            if resident is not None:
                if not resident.movable or resident.key in keep:
                    break
                inside.append(resident)
            at = Slot(slots.end)
        if at - strips[first][0].base < need:
            continue
        among = {one.key for one in inside}
        cost = math.fsum(loss[one.key] for one in inside if one.parent not in among)
        if best is None or cost < best.cost:
            best = Room(cost, strips[first][0].base, tuple(inside))
    return best


def some_resident(rng: random.Random, name: int, there: Sequence[Resident]) -> Resident:
    parent = rng.choice(there) if there and rng.random() < 0.6 else None
    value = rng.choice([0.0, 1e-9, rng.random(), rng.random() * 1e-6])
    position = 0 if parent is None else parent.position + 1
    size = rng.randrange(1, 5) * CHUNK
    return Resident(key(name), parent and parent.key, size, position, value, rng.random() < 0.8)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(0, 2**32))
def test_room_is_found_as_by_looking_at_every_range(seed: int) -> None:
    rng = random.Random(seed)
    slots = SlotAllocator(rng.randrange(20, 90))
    layout = SlotLayout()
    placed: dict[ChunkKey, Placed] = {}
    claims: list[SlotRange] = []
    for step in range(60):
        action = rng.random()
        if action < 0.55:
            gap = max(slots.free_ranges, key=lambda one: one.count, default=None)
            if gap is not None:
                wanted = SlotRange(gap.base, rng.randrange(1, min(6, gap.count) + 1))
                assert slots.reserve(wanted)
                if rng.random() < 0.1:
                    claims.append(wanted)
                else:
                    new = some_resident(rng, step, [one.resident for one in placed.values()])
                    placed[new.key] = Placed(new, wanted)
                    layout.put(new, wanted)
        elif placed:
            one = rng.choice(list(placed.values()))
            if action < 0.75:
                layout.remove(one.resident.key)
                slots.free(one.slots)
                del placed[one.resident.key]
            else:
                old = one.resident
                new = Resident(
                    old.key,
                    old.parent,
                    old.size_bytes,
                    old.position,
                    rng.choice([0.0, rng.random()]),
                    rng.random() < 0.8,
                )
                placed[old.key] = Placed(new, one.slots)
                layout.put(new, one.slots)
        need = rng.randrange(1, 12)
        gaps = list(slots.free_ranges)
        if any(gap.count >= need for gap in gaps):
            continue
        keep = frozenset(rng.sample(sorted(placed), min(len(placed), rng.randrange(3))))
        assert layout.cheapest(need, keep, gaps) == slow_room(list(placed.values()), need, keep, gaps)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(0, 2**32))
def test_losses_are_those_worked_out_anew(seed: int) -> None:
    rng = random.Random(seed)
    order = EvictionOrder()
    pool: dict[ChunkKey, Resident] = {}
    rank: dict[ChunkKey, int] = {}
    for step in range(40):
        if pool and rng.random() < 0.3:
            order.remove(gone := rng.choice(list(pool)))
            del pool[gone]
        else:
            new = some_resident(rng, step, list(pool.values()))
            pool[new.key] = new
            rank[new.key] = step
            order.put(new, step)
        if rng.random() < 0.5:
            loss = slow_losses(pool.values())
            assert {one: order.loss(one) for one in pool} == loss
            ranked = sorted((loss[one], rank[one], one) for one in pool if pool[one].movable)
            assert list(order.ascending()) == ranked


def test_links_that_contradict_their_positions_are_ignored() -> None:
    order = EvictionOrder()
    order.put(Resident(key("a"), key("b"), 1, 3, 1.0), 0)
    order.put(Resident(key("b"), key("a"), 1, 3, 2.0), 1)
    assert order.loss(key("a")) == 1.0
    assert order.loss(key("b")) == 2.0
