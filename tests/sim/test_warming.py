"""Nodes whose engines start together get the hottest prefixes by one cast, behind what engines wait for."""

from dataclasses import replace
from functools import partial

import pytest

from hostagent.core.events import TaskGiven
from hostagent.core.work import FetchWork, Task, TaskStatus
from kvproto.limits import MS
from kvsim.world import Setting, World
from tests.sim.checks import violations

SETTING = Setting(readers=4, chunks=12, segments=64, announced=True, rate_bytes_per_s=125e6, ttl_ns=500 * MS)
PAYLOAD = SETTING.chunks * SETTING.segments * SETTING.segment_bytes
GIVEN_NS = 40 * MS
"""Then all know what the holder has."""


def warmed(skew_ns: int, seed: int) -> World:
    """Tasks of a warm-up reach the nodes within `skew_ns` of each other."""
    made = World(replace(SETTING, seed=seed))
    work = FetchWork(tuple(made.keys), pin=False)
    for number, node in enumerate(made.readers):
        given = partial(node.tell, TaskGiven(Task(1, work, 10.0)))
        made.engine.at(GIVEN_NS + skew_ns * number // len(made.readers), given)
    made.engine.run(10_000 * MS, lambda: all(node.tasks_ended for node in made.readers))
    return made


@pytest.mark.parametrize("seed", range(3))
def test_one_cast_warms_all(seed: int) -> None:
    made = warmed(2 * MS, seed)
    assert [node.tasks_ended[0].status for node in made.readers] == [TaskStatus.DONE] * SETTING.readers
    assert made.holders[0].uplink.sent_bytes < 1.25 * PAYLOAD
    for node in made.readers:
        assert all(node.core.pool.find(key) is not None for key in made.keys)


def test_an_engine_that_asks_meanwhile_is_answered_all_the_same() -> None:
    made = warmed(2 * MS, 7)
    made.starts = [made.engine.now_ns] * SETTING.readers
    made.run()
    assert violations(made) == []
