"""Somebody on the fabric means harm: readers get the right bytes in bounded time, whatever is forged."""

from dataclasses import replace

import pytest

from kvclient.messages import Status
from kvproto.commands import Blame
from kvproto.limits import MS
from kvsim.attackers import Attack, Attacker, Harm
from kvsim.world import Setting, World

QUIET = Setting(readers=6, chunks=6, segments=64, deadline_ns=20_000 * MS)
"""About 0.13 s at line rate."""
BOUND_S = 4.0
"""Far below the deadline: some windows of `LIVENESS`, and every reader reading by itself from the one holder."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("stranger", [False, True], ids=["member", "stranger"])
@pytest.mark.parametrize("attack", Attack)
def test_an_attacker_costs_time_only(attack: Attack, stranger: bool, seed: int, checked) -> None:
    world = World(replace(QUIET, seed=seed))
    attacker = Attacker(world, Harm(attack, stranger))
    report = checked(world)
    assert attacker.packets_sent > 10, "the attack took place"
    assert set(report.outcomes) == {Status.OK}
    assert max(report.times_s) < BOUND_S
    accused = {copy.holder for node in world.readers for copy in node.bad_copies if copy.blame is Blame.DIGEST}
    assert not accused & {holder.name for holder in world.holders}, "the honest holder is blamed by nobody"


@pytest.mark.parametrize("stranger", [False, True], ids=["member", "stranger"])
def test_one_forged_segment_costs_one_piece(stranger: bool, checked) -> None:
    world = World(replace(QUIET, readers=3, chunks=1, segments=512))
    Attacker(world, Harm(Attack.FORGED_SEGMENTS, stranger, period_ns=60 * MS))
    assert set(checked(world).outcomes) == {Status.OK}
    payload = world.setting.segments * world.setting.segment_bytes
    assert world.holders[0].link.sent_bytes < 2 * payload, "the rest of the chunk is kept"
