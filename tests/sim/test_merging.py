"""Readers that wait for what a node computes: one cast serves them, and whatever becomes of it frees them in time."""

import os
from dataclasses import replace
from functools import partial

import pytest

from hostagent.core.claims import Freed
from hostagent.core.events import ControllerLost
from kvclient.messages import Status
from kvpolicy.tiers.merging import WAIT_MAX_S
from kvproto.limits import MS
from kvsim.chance import Chance
from kvsim.link import Faults
from kvsim.node import Scheduling
from kvsim.world import Setting, World
from tests.sim.checks import LATE_NS, violations
from tests.sim.computing import Computing

CHUNK_NS = 30 * MS
BEGINS_NS = 5 * MS
"""Readers ask about 40 ms later."""
ASK_NS = 40 * MS
SETTING = Setting(
    readers=6,
    chunks=6,
    segments=64,
    announced=True,
    to_compute=True,
    recompute_s=0.6,
    skew_ns=10 * MS,
    ttl_ns=500 * MS,
    rate_bytes_per_s=125e6,
)


def world(**changes) -> World:
    made = World(replace(SETTING, **changes))
    made.starts = [start + ASK_NS for start in made.starts]
    return made


def outcomes(made: World) -> set[Status]:
    made.run()
    assert violations(made) == []
    return {node.answer.outcome for node in made.readers if not node.dead and node.answer is not None}


def last_s(made: World) -> float:
    """Of all readers, since they asked."""
    return max(
        (node.answer.at_ns - start) / 1e9 for node, start in zip(made.readers, made.starts, strict=True) if node.answer
    )


def freed(made: World) -> set[Freed]:
    return {why for node in made.readers for why in node.core.waits.counts.freed}


def test_all_who_wait_are_served_by_casts_as_the_chunks_come() -> None:
    made = world()
    Computing(made, made.holders[0], CHUNK_NS).begin(BEGINS_NS)
    assert outcomes(made) == {Status.OK}
    assert all(node.core.waits.counts.begun == 1 for node in made.readers)
    computed_s = (BEGINS_NS + 6 * CHUNK_NS - ASK_NS) / 1e9
    assert last_s(made) < computed_s + 0.08, "soon after the last chunk is computed"
    payload = SETTING.chunks * SETTING.segments * SETTING.segment_bytes
    assert made.holders[0].uplink.sent_bytes < 2.5 * payload, "six readers, and not six times the bytes"


@pytest.mark.parametrize("stall_ms", [300, 400])
def test_a_switch_that_stands_still_at_times_does_not_make_everybody_read(stall_ms: int) -> None:
    """As the process of a software switch on a machine with too much to do: hosts run late, too."""
    late = Scheduling(mean_ns=5 * MS, stall_probability=0.02, stall_ns=100 * MS)
    made = world(readers=4, chunks=12, segments=256, recompute_s=20.0, ttl_ns=2000 * MS, scheduling=late, seed=4)
    Computing(made, made.holders[0], 2 * CHUNK_NS).begin(BEGINS_NS)
    for round_number in range(8):
        begins_ms = 200 + round_number * (stall_ms + 300)
        made.engine.at(begins_ms * MS, partial(made.switch.stall, (begins_ms + stall_ms) * MS))
    assert outcomes(made) == {Status.OK}
    payload = 12 * 256 * SETTING.segment_bytes
    assert made.holders[0].uplink.sent_bytes < 1.25 * payload, "each of four reading for itself takes two to four times"


def test_where_computing_is_sooner_nobody_waits() -> None:
    made = world(recompute_s=0.05)
    Computing(made, made.holders[0], 3 * CHUNK_NS).begin(BEGINS_NS)
    assert outcomes(made) == {Status.GATE}
    assert last_s(made) < 0.01


@pytest.mark.parametrize("place", [0, 2, 5])
@pytest.mark.parametrize("how", ["killed", "preempted", "falls silent", "killed in silence", "controller lost"])
def test_whatever_ends_the_computation_frees_those_who_wait(how: str, place: int) -> None:
    made = world()
    computing = Computing(made, made.holders[0], CHUNK_NS)
    computing.begin(BEGINS_NS)
    at_ns = BEGINS_NS + place * CHUNK_NS + 25 * MS
    match how:
        case "killed":
            action, why, within_s = computing.kill, Freed.WITHDRAWN, 0.06
        case "preempted":
            action, why, within_s = computing.stop, Freed.WITHDRAWN, 0.06
        case "falls silent":
            action, why, within_s = lambda: computing.stop(honestly=False), Freed.WITHDRAWN, 0.35
        case "killed in silence":
            action, why, within_s = lambda: computing.kill(noticed=False), Freed.LATE, 0.35
        case _:
            action = lambda: [node.tell(ControllerLost()) for node in made.readers]  # noqa: E731
            why, within_s = Freed.CONTROLLER, 0.06
    made.engine.at(max(at_ns, ASK_NS + 30 * MS), action)
    ended = outcomes(made)
    assert ended <= {Status.ABANDONED, Status.UNAVAILABLE, Status.DEADLINE, Status.OK}
    assert freed(made) <= {why}
    if place < 5:
        assert freed(made) == {why}
    assert last_s(made) < (max(at_ns, ASK_NS + 30 * MS) - ASK_NS) / 1e9 + within_s + 0.25


def test_a_liar_delays_by_no_more_than_the_bound_and_only_once() -> None:
    made = world()
    liar = Computing(made, made.holders[0], 100 * CHUNK_NS, claimed_ns=CHUNK_NS)
    liar.begin(BEGINS_NS)
    assert outcomes(made) == {Status.ABANDONED}
    assert last_s(made) < 0.3
    again = [made.engine.now_ns for _ in made.readers]
    for node, at_ns in zip(made.readers, again, strict=True):
        node.answer = None
        node.fetch(tuple(made.keys), at_ns + SETTING.deadline_ns, SETTING.recompute_s)
    made.engine.run(made.engine.now_ns + 10 * MS, made.finished)
    assert {node.answer.outcome for node in made.readers} == {Status.NOT_FOUND}


def seeds() -> range:
    first, _, last = os.environ.get("KVCAST_MERGE_SEEDS", "0-29").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", seeds())
def test_random_mix_of_everything(seed: int) -> None:
    """Two nodes compute the same prefix, some truly; links are bad, processes die, controllers go: nobody waits beyond
    the time that computing would take and the bound, nothing is left behind, no byte is wrong."""
    chance = Chance(seed).fork("merging")
    recompute_s = 0.05 + chance.fraction() * 0.5
    ill = chance.below(2) * 0.03
    made = world(
        seed=seed,
        holders=2,
        readers=1 + chance.below(6),
        chunks=1 + chance.below(6),
        recompute_s=recompute_s,
        stagger_ns=(1 + chance.below(100)) * MS,
        faults=Faults(loss=ill * chance.fraction(), reordering=ill, duplication=ill),
    )
    story = []
    for holder in made.holders:
        chunk_ns = (1 + chance.below(60)) * MS
        computing = Computing(made, holder, chunk_ns, None if chance.below(3) else (1 + chance.below(60)) * MS)
        computing.begin(chance.below(60) * MS)
        actions = {
            "is killed": computing.kill,
            "is killed in silence": lambda one=computing: one.kill(noticed=False),
            "stops": computing.stop,
            "falls silent": lambda one=computing: one.stop(honestly=False),
        }
        if chance.below(2):
            what = sorted(actions)[chance.below(len(actions))]
            at_ns = chance.below(300) * MS
            story.append(f"{at_ns / MS} ms: {holder.name} {what}")
            made.engine.at(at_ns, actions[what])
    for node in made.readers:
        happenings = [node.kill, node.cancel, lambda one=node: one.tell(ControllerLost())]
        if not chance.below(4):
            made.engine.at(chance.below(300) * MS, happenings[chance.below(3)])
    made.run()
    found = violations(made)
    bound_ns = int((recompute_s + WAIT_MAX_S) * 1e9) + LATE_NS
    for node, start in zip(made.readers, made.starts, strict=True):
        answer = node.answer
        if answer is not None and answer.at_ns > start + bound_ns:
            found.append(f"{node.name} waited {(answer.at_ns - start) / MS} ms, at most {bound_ns / MS}")
    assert not found, (seed, story, found)
