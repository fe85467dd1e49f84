"""Value, admission, eviction and spill: pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.directory import ChunkFacts, Directory
from controlplane.core.ids import NodeIndex, Slot
from controlplane.core.spill import Host, plan_drain, plan_recovery
from controlplane.core.switch.slots import SlotRange
from controlplane.core.switch_cache.candidates import Admission, AdmissionPolicy, Candidate, Refusal
from controlplane.core.switch_cache.layout import EvictionOrder, Placed, Resident, SlotLayout
from controlplane.core.values import ClusterValues
from kvpolicy.value import ValueParameters
from tests.digests import digest
from tests.unit.controlplane.helpers import CHUNK, SECOND, key

# -- value


def cluster(*names: object, half_life_s: float = 10.0) -> ClusterValues:
    directory = Directory()
    for name in names:
        directory.add_copy(NodeIndex(0), ChunkFacts(key(name), None, CHUNK, digest(1), 0, ""))
    return ClusterValues(directory, ValueParameters(half_life_s=half_life_s))


def test_rate_settles_at_the_true_rate() -> None:
    values = cluster("x")
    for at in range(1000):
        values.fetched([key("x")], at * SECOND // 5)
    assert values.cache.rate(key("x"), 200 * SECOND) == pytest.approx(5.0, rel=0.15)


def test_value_halves_in_a_half_life_and_needs_its_ancestors() -> None:
    values = cluster("x")
    values.fetched([key("x")], 0)
    fresh = values.value(key("x"), CHUNK, True, 0)
    assert values.value(key("x"), CHUNK, True, 10 * SECOND) == pytest.approx(fresh / 2)
    assert values.value(key("x"), CHUNK, False, 0) == 0.0
    assert values.value(key("never"), CHUNK, True, 0) == 0.0
    assert values.value(key("x"), CHUNK, True, 0, waiting=4) > 2 * fresh


def test_the_last_copy_is_worth_a_computation() -> None:
    values = cluster("x")
    values.fetched([key("x")], 0)
    with_holder = values.value(key("x"), CHUNK, True, 0)
    assert values.value(key("x"), CHUNK, True, 0, losing=NodeIndex(0)) > with_holder > 0


def test_score_orders_like_value_and_stays() -> None:
    values = cluster("x", "y")
    for at in (0, 1, 2):
        values.fetched([key("x")], at * SECOND)
    before = values.score(key("x"), CHUNK)
    values.fetched([key("y")], 5 * SECOND)
    assert values.score(key("x"), CHUNK) == before
    higher = values.score(key("x"), CHUNK) > values.score(key("y"), CHUNK)
    now = 20 * SECOND
    assert higher == (values.value(key("x"), CHUNK, True, now) > values.value(key("y"), CHUNK, True, now))
    assert values.score(key("never"), CHUNK) < -1e6


def test_second_touch_and_hints() -> None:
    values = cluster("x", "soon", "later")
    values.fetched([key("x")], 0)
    assert not values.cache.touched_again(key("x"), SECOND)
    values.fetched([key("x")], 59 * SECOND)
    assert values.cache.touched_again(key("x"), 60 * SECOND)
    assert not values.cache.touched_again(key("x"), 61 * SECOND)
    values.finished([key("x")], 61 * SECOND)
    assert values.cache.rate(key("x"), 61 * SECOND) == 0.0
    values.expect(key("soon"), 61 * SECOND, within_s=1)
    values.expect(key("later"), 61 * SECOND, within_s=600)
    assert values.cache.rate(key("soon"), 61 * SECOND) > values.cache.rate(key("later"), 61 * SECOND) > 0


# -- eviction


def residents(values: list[float]) -> list[Resident]:
    """Resident i hangs on (i - 1) // 2."""
    return [
        Resident(key(i), key((i - 1) // 2) if i else None, CHUNK, position=(i + 1).bit_length() - 1, value=value)
        for i, value in enumerate(values)
    ]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=20))
def test_evicting_by_the_smallest_loss_takes_leaves_first(values: list[float]) -> None:
    pool = {one.key: one for one in residents(values)}
    order = EvictionOrder()
    for rank, one in enumerate(pool.values()):
        order.put(one, rank)
    while pool:
        _, _, out = next(order.ascending())
        assert not any(other.parent == out for other in pool.values())
        order.remove(out)
        del pool[out]


def test_an_ancestor_is_worth_its_best_descendant() -> None:
    order = EvictionOrder()
    for rank, one in enumerate(residents([1.0, 0.5, 0.1, 7.0])):
        order.put(one, rank)
    assert [order.loss(key(i)) / CHUNK for i in range(4)] == pytest.approx([21.1, 14.0, 0.1, 7.0])


# -- admission


def candidate(name: object = "new", segments: int = 8, **changes: object) -> Candidate:
    values = {
        "key": key(name), "parent": None, "position": 0, "size_bytes": segments * 4096, "segments": segments,
        "value": 1.0, "readers": 2, "touched_again": False, "rooted": True, "fillable": True,
    } | changes  # fmt: skip
    return Candidate(**values)  # type: ignore[arg-type]


def placed(
    name: object, base: int, count: int, value: float = 0.0, movable: bool = True, parent: object = None
) -> Placed:
    resident = Resident(key(name), key(parent) if parent else None, count * 4096, 1 if parent else 0, value, movable)
    return Placed(resident, SlotRange(Slot(base), count))


def layout(*pool: Placed) -> SlotLayout:
    laid = SlotLayout()
    for one in pool:
        laid.put(one.resident, one.slots)
    return laid


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"readers": 1}, Refusal.NO_EVIDENCE),
        ({"segments": 65}, Refusal.TOO_BIG),
        ({"fillable": False}, Refusal.NO_SOURCE),
        ({"rooted": False}, Refusal.ORPHAN),
    ],
)
def test_refusals(changes: dict[str, object], refusal: Refusal) -> None:
    assert AdmissionPolicy(64).decide(candidate(**changes), layout(), [SlotRange(Slot(0), 64)]) is refusal  # type: ignore[arg-type]


def test_free_room_is_taken_without_displacing() -> None:
    pool = layout(placed("a", 0, 8))
    decision = AdmissionPolicy(32).decide(candidate(), pool, [SlotRange(Slot(8), 24)])
    assert decision == Admission(key("new"), SlotRange(Slot(8), 8))
    assert isinstance(
        AdmissionPolicy(32).decide(candidate(readers=1, touched_again=True), pool, []), Refusal | Admission
    )


def test_displaces_the_cheapest_contiguous_range() -> None:
    pool = layout(
        placed("dear", 0, 8, value=5.0),
        placed("a", 8, 4, value=0.2),
        placed("b", 12, 4, value=0.1),
        placed("c", 16, 8, value=0.6),
    )
    decision = AdmissionPolicy(24).decide(candidate(value=1.0), pool, [])
    assert isinstance(decision, Admission)
    assert decision.slots == SlotRange(Slot(8), 8)
    assert set(decision.displaced) == {key("a"), key("b")}
    assert AdmissionPolicy(24).decide(candidate(value=0.15), pool, []) is Refusal.NOT_WORTH_IT


def test_never_displaces_the_pinned_or_its_own_ancestors() -> None:
    pool = layout(
        placed("pinned", 0, 8, value=0.0, movable=False),
        placed("parent", 8, 8, value=0.0),
    )
    refused = AdmissionPolicy(16).decide(candidate(parent=key("parent"), position=1, value=9.0), pool, [])
    assert refused is Refusal.NO_ROOM
    other = AdmissionPolicy(16).decide(candidate(value=9.0), pool, [])
    assert isinstance(other, Admission)
    assert other.displaced == (key("parent"),)


def test_displaced_leaves_go_first() -> None:
    pool = layout(placed("up", 0, 8, 0.1), placed("down", 8, 8, 0.1, parent="up"))
    decision = AdmissionPolicy(16).decide(candidate(segments=16, value=9.0), pool, [])
    assert isinstance(decision, Admission)
    assert decision.displaced == (key("down"), key("up"))


# -- spill


def test_recovery_goes_where_there_is_room_or_something_cheaper() -> None:
    roomy = [Host(NodeIndex(0), CHUNK), Host(NodeIndex(1), 9 * CHUNK)]
    assert plan_recovery(CHUNK, 0.5, False, roomy) == 1
    full = [Host(NodeIndex(0), 0, cheapest_value=0.9), Host(NodeIndex(1), 0, cheapest_value=0.4)]
    assert plan_recovery(CHUNK, 0.5, False, full) == 1
    assert plan_recovery(CHUNK, 0.3, False, full) is None
    assert plan_recovery(CHUNK, 0.0, True, full) == 1
    assert plan_recovery(CHUNK, 0.0, False, roomy) is None


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=30), st.lists(st.integers(0, 200), max_size=4))
def test_a_drain_names_every_chunk_once_and_fits(sizes: list[int], rooms: list[int]) -> None:
    chunks = [(key(at), size) for at, size in enumerate(sizes)]
    plan = plan_drain(chunks, [Host(NodeIndex(at), room) for at, room in enumerate(rooms)])
    moved = [one for move in plan.moves for one in move.keys]
    assert sorted(moved + list(plan.stranded)) == sorted(one for one, _ in chunks)
    for node, room in enumerate(rooms):
        size_of = dict(chunks)
        assert sum(size_of[one] for move in plan.moves if move.node == node for one in move.keys) <= room
