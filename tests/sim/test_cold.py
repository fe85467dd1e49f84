"""A cold store that all nodes share, in the simulator: the core that ships, a store that fails in all its ways."""

from dataclasses import replace

import pytest

from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvproto.limits import MS
from kvsim.chance import Chance
from kvsim.cold import ColdFaults
from kvsim.world import Setting, World

SMALL = Setting(
    readers=3,
    chunks=4,
    segments=32,
    ttl_ns=2_000 * MS,
    deadline_ns=5_000 * MS,
    cold_faults=ColdFaults(),
    in_cold=(0, 1, 2, 3),
    seed=5,
)
SEEDS = 24


def test_a_prefix_that_is_in_the_store_alone_reaches_every_node(checked) -> None:
    world = World(SMALL)
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}
    assert {source for node in world.readers for source in node.answer.sources} == {ChunkSource.COLD}


def test_the_part_that_no_node_has_comes_from_the_store(checked) -> None:
    world = World(replace(SMALL, in_cold=(2, 3)))
    assert set(checked(world).outcomes) == {Status.OK}
    for node in world.readers:
        assert set(node.answer.sources[2:]) == {ChunkSource.COLD}
        assert ChunkSource.COLD not in node.answer.sources[:2]


def test_quick_computing_is_left_alone(checked) -> None:
    world = World(replace(SMALL, recompute_s=0.004))
    assert set(checked(world).leading) == {0}


def test_a_store_that_is_away_is_as_none(checked) -> None:
    world = World(SMALL)
    assert world.cold is not None
    world.cold.turn(away=True)
    report = checked(world)
    assert set(report.outcomes) == {Status.NOT_FOUND}
    assert max(node.answer.at_ns - start for node, start in zip(world.readers, world.starts, strict=True)) < 50 * MS


def test_what_one_node_must_evict_another_one_finds(checked) -> None:
    """Holders put the prefix, then so much else that it leaves all pools; the readers begin after that."""
    setting = replace(SMALL, holders=1, in_cold=(), pool_chunks=8, announced=True, stagger_ns=0)
    world = World(setting)
    (holder,) = world.holders
    others = [world.chance.fork(f"other {number}") for number in range(16)]

    def put(number: int) -> None:
        key = others[number].bits().to_bytes(8, "big") * 2
        holder.hold(type(world.keys[0])(key), setting.segments)

    for number in range(16):
        world.engine.at((number + 1) * 10 * MS, lambda number=number: put(number))
    world.starts = [400 * MS for _ in world.readers]
    report = checked(world)
    assert world.cold is not None
    assert all(holder.core.pool.find(key) is None for key in world.keys), "they have left"
    assert set(report.outcomes) == {Status.OK}
    assert ChunkSource.COLD in {source for node in world.readers for source in node.answer.sources}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_the_store_does_bytes_are_right_and_answers_in_time(seed, checked) -> None:
    chance = Chance(seed)
    faults = ColdFaults(*(chance.fraction() * 0.4 * (not chance.below(2)) for _ in range(4)))
    chunks = 1 + chance.below(6)
    world = World(
        replace(
            SMALL,
            readers=1 + chance.below(5),
            chunks=chunks,
            cold_faults=faults,
            in_cold=tuple(index for index in range(chunks) if chance.below(2)),
            recompute_s=0.01 * (1 + chance.below(100)) if chance.below(2) else None,
            pool_chunks=chunks + chance.below(4),
            disk_chunks=chunks if chance.below(2) else 0,
            announced=bool(chance.below(2)),
            stagger_ns=chance.below(3) * 20 * MS,
            seed=seed,
        )
    )
    store = world.cold
    assert store is not None
    if chance.below(2):
        away_ns = chance.below(60) * MS
        world.engine.at(away_ns, lambda: store.turn(away=True))
        world.engine.at(away_ns + chance.below(200) * MS, lambda: store.turn(away=False))
    if chance.below(3) == 0:
        victim = world.readers[0]
        world.engine.at(chance.below(50) * MS, lambda: world.restart(victim))
    checked(world)
