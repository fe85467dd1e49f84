"""Pushes: only where what is pushed is used, learned without pushing."""

from __future__ import annotations

import random

import pytest

from kvchunk.ids import ChunkKey
from kvpolicy.tiers.push import JOINED, PushParameters, PushPolicy, kind_of

SECOND = 1_000_000_000
MIB = 1 << 20
NODES = tuple(range(16))


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


class World:
    """Nodes that fetch, copies that come by fetches and pushes, and what of it engines waited for."""

    def __init__(self, parameters: PushParameters | None = None) -> None:
        self.policy: PushPolicy[int] = PushPolicy(parameters)
        self.copies: dict[int, set[int]] = {}
        self.fetched = self.pushed = self.local = 0

    def ask(self, number: int, node: int, at_s: float, position: int = 0) -> tuple[int, ...]:
        copies = self.copies.setdefault(number, set())
        remote = bool(copies) and node not in copies
        self.fetched += remote
        self.local += node in copies
        copies.add(node)
        now_ns = int(at_s * SECOND)
        pushed = self.policy.fetched(
            key(number), MIB, position, node, remote, lambda: [one for one in NODES if one not in copies], now_ns
        )
        for other in pushed:
            self.policy.sent(key(number), MIB, other)
        self.pushed += len(pushed)
        copies.update(pushed)
        return pushed


def rollouts(world: World, groups: int, readers: int = 8) -> None:
    """Each prompt is put by one node and wanted by others within a second or two."""
    chance = random.Random(1)
    for group in range(groups):
        nodes = chance.sample(NODES, readers)
        for place, node in enumerate(nodes):
            world.ask(group, node, group * 5 + place * 0.2)


def chat(world: World, sessions: int, turns: int = 6) -> None:
    """Each session's prefix goes on at another node now and then, and is nobody else's."""
    chance = random.Random(2)
    for turn in range(turns):
        for session in range(sessions):
            world.ask(session, chance.choice(NODES), turn * 30 + session * 0.01, position=20)


def test_rollout_groups_are_pushed_and_wait_less() -> None:
    without, world = World(PushParameters(enabled=False)), World()
    rollouts(without, 200)
    rollouts(world, 200)
    assert without.pushed == 0
    assert world.pushed > 0
    assert world.fetched < 0.6 * without.fetched
    assert world.policy.counts.used_bytes >= 0.2 * world.policy.counts.pushed_bytes


def test_chat_is_never_pushed() -> None:
    world = World()
    chat(world, 400)
    assert world.pushed == 0
    assert world.policy.counts.candidates > 0
    assert world.policy.uses()[kind_of(20)] < 0.2


def test_a_kind_that_stops_paying_is_stopped_and_one_that_pays_is_found_again() -> None:
    world = World(PushParameters(half_life_ns=60 * SECOND))
    rollouts(world, 100)
    assert world.policy.opens(kind_of(0), 500 * SECOND)
    for number in range(1000, 1400):  # two readers each, then silence
        for place in range(3):
            world.ask(number, (number + place) % 16, 500 + number * 0.5 + place * 0.1)
    assert not world.policy.opens(kind_of(0), 1300 * SECOND)
    before = world.pushed
    for group in range(2000, 2200):
        for place in range(8):
            world.ask(group, place, 1300 + (group - 2000) * 5 + place * 0.2)
    assert world.pushed > before


def test_nothing_is_pushed_before_there_is_evidence() -> None:
    world = World(PushParameters(evidence_min=10**6))
    rollouts(world, 50)
    assert world.pushed == 0


def test_the_second_remote_fetch_names_and_only_within_the_window() -> None:
    world = World()
    for at_s, node in ((0, 0), (1, 1), (100, 2), (200, 3)):
        world.ask(1, node, at_s)
    assert world.policy.counts.candidates == 0
    world.ask(1, 4, 230)
    assert world.policy.counts.candidates == 1
    world.ask(1, 5, 231)
    assert world.policy.counts.candidates == 1, "named already"


def test_nodes_that_fetched_it_are_not_pushed_to_though_nobody_knows_of_their_copies() -> None:
    policy: PushPolicy[int] = PushPolicy(PushParameters(evidence_min=0, use_min=0.0))
    policy.fetched(key(9), MIB, 0, 0, True, lambda: NODES, 0)
    policy.fetched(key(9), MIB, 0, 1, True, lambda: NODES, SECOND)
    # The first candidate of a kind opens it, from the next on it pushes.
    policy.fetched(key(1), MIB, 0, 3, True, lambda: NODES, 2 * SECOND)
    pushed = policy.fetched(key(1), MIB, 0, 5, True, lambda: NODES, 3 * SECOND)
    assert pushed == tuple(node for node in NODES if node not in (3, 5))


def test_what_its_owner_could_not_push_is_no_use_of_a_push() -> None:
    policy: PushPolicy[int] = PushPolicy(PushParameters(evidence_min=0, use_min=0.0))
    for number in (0, 1):  # the first candidate of a kind opens it
        for node in (0, 1):
            named = policy.fetched(key(number), MIB, 0, node, True, lambda: (2, 3), SECOND)
    assert named == (2, 3)
    policy.sent(key(1), MIB, 2)
    for node in named:
        policy.fetched(key(1), MIB, 0, node, node == 3, lambda: (), 2 * SECOND)
    counts = policy.counts
    assert (counts.pushed_copies, counts.pushed_bytes, counts.used_bytes) == (1, MIB, MIB)
    assert counts.withheld_used_copies == 1, "node 3 waited for it"
    use = policy.uses()[kind_of(0)]
    assert use == pytest.approx(0.5, rel=0.01), "named for chunks 0 and 1, asked for one of them"


def test_a_node_that_joins_gets_what_is_hot_once_joined_nodes_have_used_it() -> None:
    world = World(PushParameters(evidence_min=4))
    rollouts(world, 20)
    policy = world.policy
    hot = policy.hot(8, 100 * SECOND)
    assert hot[0] == key(19)
    assert len(hot) == 8
    offered = [(one, MIB) for one in hot]
    assert policy.joined(offered, 100, 100 * SECOND) == (), "not yet known whether it pays"
    for one in hot:
        policy.fetched(one, MIB, 0, 100, True, lambda: (), 101 * SECOND)
    assert policy.uses()[JOINED] == 1.0
    assert policy.joined(offered, 101, 102 * SECOND) == tuple(hot)


def test_memory_is_bounded() -> None:
    world = World(PushParameters(tracked_max=50, named_max=40))
    rollouts(world, 300)
    assert len(world.policy.tables.seen) <= 50
    assert len(world.policy.tables.order) <= 40
    world.policy.fetched(key(0), MIB, 0, 0, False, lambda: (), 10**6 * SECOND)
    assert len(world.policy.tables.order) == 0
