"""Somebody on the fabric means harm: readers get the right bytes in bounded time, whatever is forged."""

from dataclasses import replace

import pytest

from kvclient.messages import Status
from kvproto.commands import Blame
from kvproto.limits import MS
from kvsim.world import Setting, World
from tests.sim.attackers import Attack, Attacker, Harm

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
    assert world.holders[0].uplink.sent_bytes < 2 * payload, "the rest of the chunk is kept"


def test_a_member_that_camps_has_its_share_of_the_interest_table(checked) -> None:
    """The others find their entries free: the chunk is cast to all of them."""
    share, entries = 256, 65536
    world = World(replace(QUIET, interest_of_port=share, interest_entries=entries, ttl_ns=300 * MS))
    attacker = Attacker(world, Harm(Attack.CAMPS, stranger=False))
    held = 0

    def look() -> None:
        nonlocal held
        held = max(held, world.switch.entries_paid_by(attacker.member))
        if not world.finished():
            world.engine.at(world.engine.now_ns + 10 * MS, look)

    world.engine.at(10 * MS, look)
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}
    assert attacker.packets_sent > 4 * share, "it tried for more"
    assert share <= held <= 2 * share
    assert world.switch.refused_entries > share
    assert report.holder_tx < 2, "casts, not a read for each of six"
