"""Chunks that cross the network in fewer bytes, simulated: the core that ships, twins that vanish or are none."""

from dataclasses import replace

import pytest

from hostagent.core.forms import is_twin
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.form_costs import FormChoice
from kvproto.limits import MS
from kvsim.chance import Chance
from kvsim.link import Faults
from kvsim.twins import TwinTraits
from kvsim.world import Report, Setting, World

MADE_NS = 1_000 * MS
"""By then all twins are made, and everybody knows of them."""
SMALL = Setting(
    readers=4,
    chunks=6,
    segments=64,
    pool_chunks=40,
    ttl_ns=2_000 * MS,
    deadline_ns=8_000 * MS,
    announced=True,
    know_link=True,
    twins=TwinTraits(),
    seed=3,
)
SEEDS = 24


def begin_later(world: World) -> World:
    world.starts = [start + MADE_NS for start in world.starts]
    return world


def decoded(world: World) -> list[int]:
    return [node.core.twins.decoded_count for node in world.readers]


def without_twins(setting: Setting) -> World:
    return begin_later(World(replace(setting, twins=None)))


def test_a_cast_of_twins_is_one_cast_and_has_two_thirds_of_the_bytes(checked) -> None:
    world = begin_later(World(SMALL))
    report = checked(world)
    plain = checked(without_twins(SMALL))
    assert set(report.outcomes) == {Status.OK}
    assert decoded(world) == [SMALL.chunks] * SMALL.readers
    assert {source for node in world.readers for source in node.answer.sources} <= {
        ChunkSource.CAST,
        ChunkSource.HOLDER,
    }
    assert report.holder_tx + report.readers_tx < 0.8 * (plain.holder_tx + plain.readers_tx)
    assert report.holder_tx < 1.0
    assert report.mean < 0.85 * plain.mean


def auto(rate_bytes_per_s: float, decode_bytes_per_s: float) -> Setting:
    """Agents that decide for themselves."""
    traits = TwinTraits(FormChoice.AUTO, decode_bytes_per_s=decode_bytes_per_s)
    return replace(SMALL, rate_bytes_per_s=rate_bytes_per_s, twins=traits, segments=256, chunks=4)


def second_fetch(setting: Setting, checked) -> tuple[Report, World]:
    """The first reader begins a second before the others."""
    world = begin_later(World(setting))
    world.starts[1:] = [start + 1_000 * MS for start in world.starts[1:]]
    return checked(world), world


@pytest.mark.parametrize("rate", [12_500_000.0, 125_000_000.0, 1_250_000_000.0, 12_500_000_000.0])
@pytest.mark.parametrize("decode", [100e6, 1600e6])
def test_no_reader_is_slower_whatever_link_and_processor(rate: float, decode: float, checked) -> None:
    setting = auto(rate, decode)
    report, world = second_fetch(setting, checked)
    plain, _ = second_fetch(replace(setting, twins=None), checked)
    pays = 0.95 / rate > (2 / 3) / rate + 1 / decode
    if not pays:
        assert decoded(world) == [0] * setting.readers
        assert report.ratios == plain.ratios, "not a packet differs"
        assert not any(is_twin(chunk) for node in world.nodes for chunk in node.core.pool.ready_chunks())
    else:
        assert set(decoded(world)[1:]) == {setting.chunks}
        assert max(report.times_s[1:]) < max(plain.times_s[1:])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_becomes_of_twins_bytes_are_right_and_answers_in_time(seed: int, checked) -> None:
    chance = Chance(seed)
    traits = TwinTraits(wrong=0.5 * chance.fraction(), share=0.3 + 0.6 * chance.fraction())
    faults = Faults(loss=0.02 * chance.fraction() * chance.below(2))
    world = begin_later(World(replace(SMALL, twins=traits, faults=faults, stagger_ns=200 * MS, seed=seed)))
    (holder,) = world.holders

    def drop_one() -> None:
        twins = [chunk for chunk in holder.core.pool.ready_chunks() if is_twin(chunk)]
        if twins:
            holder.evict(twins[chance.below(len(twins))].key)

    for _ in range(chance.below(8)):
        world.engine.at(MADE_NS + chance.below(300 * MS), drop_one)
    if chance.below(4) == 0:
        world.engine.at(MADE_NS + chance.below(300 * MS), world.readers[0].cancel)
    report = checked(world)
    assert {outcome for outcome in report.outcomes if outcome is not None} <= {Status.OK, Status.CANCELLED}
