"""Room for the chunks of a prefix: those that go for it are looked for at once, and are the same."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from hostagent.pool.chunks import Chunk, ChunkPool, Refusal
from hostagent.pool.tenants import Tenants
from kvchunk.ids import ChunkKey
from kvpolicy.value import Touch
from tests.digests import hashed
from tests.unit.hostagent.test_pool_chunks import PAGE, Clock, key, make_pool, stored

PAGES = 12
NEW = 100


def touches(count: int, parent: int | None = None, pages: int = 1) -> list[tuple[Touch, str]]:
    """A prefix of new chunks behind one that may be here."""
    parents = [parent, *range(NEW, NEW + count - 1)]
    return [
        (Touch(key(NEW + place), None if above is None else key(above), place, pages * PAGE), "")
        for place, above in enumerate(parents)
    ]


def here(pool: ChunkPool) -> set[ChunkKey]:
    return {chunk.key for chunk in pool.ready_chunks()}


def filled(parents: list[int | None], pinned: set[int]) -> ChunkPool:
    """A full pool: chunk `n` hangs on `parents[n]`, and some are in use."""
    pool = make_pool(PAGES)
    for number, parent in enumerate(parents):
        chunk = stored(pool, number, parent if parent is not None and parent < number else None)
        if number in pinned:
            pool.pin(chunk)
    return pool


@given(
    parents=st.lists(st.none() | st.integers(0, PAGES - 1), min_size=PAGES, max_size=PAGES),
    pinned=st.sets(st.integers(0, PAGES - 1), max_size=4),
    count=st.integers(1, PAGES + 2),
    parent=st.none() | st.integers(0, PAGES - 1),
)
@example(parents=[None] * 6 + [0, None, 6, None, 1, None], pinned={8, 10}, count=8, parent=2)
def test_the_same_go_for_all_at_once_as_one_after_the_other(
    parents: list[int | None], pinned: set[int], count: int, parent: int | None
) -> None:
    at_once, in_turn = filled(parents, pinned), filled(parents, pinned)
    made = at_once.reserve_all(touches(count, parent))
    one_by_one = []
    for touch in touches(count, parent):
        one_by_one += in_turn.reserve_all([touch])
        if isinstance(one_by_one[-1], Refusal):
            break
    assert [isinstance(one, Chunk) for one in made] == [isinstance(one, Chunk) for one in one_by_one]
    assert here(at_once) == here(in_turn)
    assert at_once.evicted_count == in_turn.evicted_count
    assert at_once.usage() == in_turn.usage()


def test_nobody_goes_for_chunks_behind_one_that_is_here_already() -> None:
    pool = filled([None] * PAGES, set())
    wanted = touches(4)
    wanted[1] = (Touch(key(3), key(NEW), 1, PAGE), "")
    made = pool.reserve_all(wanted)
    assert isinstance(made[0], Chunk)
    assert made[1:] == [Refusal.EXISTS]
    assert pool.evicted_count == 1


def test_in_any_order_what_is_here_or_too_large_costs_only_itself() -> None:
    pool = filled([None] * PAGES, {0, 1, 2, 3})
    wanted = touches(4)
    wanted[1] = (Touch(key(3), None, 0, PAGE), "")
    wanted[2] = (Touch(key(NEW + 2), None, 0, (PAGES + 1) * PAGE), "")
    made = pool.reserve_all(wanted, any_order=True)
    assert [one if isinstance(one, Refusal) else "made" for one in made] == [
        "made",
        Refusal.EXISTS,
        Refusal.TOO_LARGE,
        "made",
    ]
    assert pool.evicted_count == 2


def test_chunks_of_unlike_sizes_get_room_whatever_the_gaps_are() -> None:
    pool = filled([None] * PAGES, {1, 4})
    made = pool.reserve_all([*touches(1), (Touch(key(200), key(NEW), 1, 5 * PAGE), "")])
    assert all(isinstance(one, Chunk) for one in made)


def test_with_another_tenant_each_chunk_is_looked_for_by_itself() -> None:
    """Shares decide then, and change with each chunk: the first two take what is beyond the other one's share."""
    tenants = Tenants(PAGES * PAGE)
    tenants.engine_connected("a")
    tenants.engine_connected("b")
    pool = ChunkPool(PAGES * PAGE, PAGE, Clock(), tenants=tenants)
    for number in range(PAGES):
        chunk = pool.reserve(key(number), None, PAGE, tenant="a" if number < 8 else "b")
        assert isinstance(chunk, Chunk)
        pool.commit(chunk, hashed(number))
    assert all(isinstance(one, Chunk) for one in pool.reserve_all(touches(2), "b"))
    assert {key(number) for number in range(8, PAGES)} <= here(pool)
