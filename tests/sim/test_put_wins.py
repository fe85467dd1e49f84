"""Engines put chunks that their nodes fetch over links too slow for them: who waits has them at once."""

from dataclasses import replace

import pytest

from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvproto.limits import MS
from kvsim.world import Setting, World

PUT_NS = 300 * MS
SETTING = Setting(readers=3, chunks=6, segments=256, rate_bytes_per_s=1.25e6)
"""The prefix takes 5 s of a link."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plain", [False, True])
def test_who_waits_for_a_slow_fetch_is_served_by_what_the_engine_puts(plain, seed, checked) -> None:
    world = World(replace(SETTING, plain=plain, seed=seed))
    reader = world.readers[0]

    def put() -> None:
        for place, key in enumerate(world.keys):
            reader.hold(key, SETTING.segments, place)

    world.engine.at(world.starts[0] + PUT_NS, put)
    report = checked(world)
    assert report.outcomes == (Status.OK,) * 3
    assert report.times_s[0] < PUT_NS / 1e9 + 0.05
    assert min(report.times_s[1:]) > 1.0, "the others wait for the link"
    assert reader.answer is not None
    assert reader.answer.sources[-1] is ChunkSource.LOCAL
