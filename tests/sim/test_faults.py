"""Everything that may go wrong in a fetch: the right bytes or a typed miss in time, and nothing left behind."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from hostagent.core.events import SwitchStateGiven
from hostagent.core.work import TaskStatus
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvproto.limits import MS
from kvsim.bodies import DataBody, StreamBody
from kvsim.link import Faults, Packet
from kvsim.world import Setting, World

SMALL = Setting(readers=6, chunks=6, segments=64, ttl_ns=2_000 * MS, deadline_ns=10_000 * MS, seed=11)
"""1.5 MiB: about 130 ms of the link."""
MID_FETCH_NS = 60 * MS


def complete(report) -> bool:
    return set(report.outcomes) == {Status.OK}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "faults",
    [
        Faults(loss=0.01),
        Faults(loss=0.1),
        Faults(duplication=0.05),
        Faults(reordering=0.05),
        Faults(corruption=0.02),
        Faults(loss=0.02, duplication=0.02, reordering=0.02, corruption=0.02),
    ],
    ids=["loss", "heavy-loss", "duplication", "reordering", "corruption", "all"],
)
def test_bad_links(faults, seed, checked) -> None:
    report = checked(World(replace(SMALL, faults=faults, seed=seed, stagger_ns=seed * 40 * MS)))
    assert complete(report)


@pytest.mark.parametrize("told", [True, False], ids=["told", "not-told"])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "cast"])
@pytest.mark.parametrize("seed", range(3))
def test_switch_reloaded_mid_fetch(told, cached, seed, checked) -> None:
    world = World(replace(SMALL, cached=cached, seed=seed))

    def reload() -> None:
        world.switch.reboot()
        if told:
            for node in world.readers:
                node.tell(SwitchStateGiven(1))

    world.engine.at(MID_FETCH_NS, reload)
    report = checked(world)
    assert complete(report)
    assert max(report.times_s) < (0.35 if told else 0.7)


def test_switch_becomes_an_ordinary_one_mid_fetch(checked) -> None:
    world = World(SMALL)

    def forget() -> None:
        world.switch.plain = True

    world.engine.at(MID_FETCH_NS, forget)
    assert complete(checked(world))


def test_plain_network(checked) -> None:
    world = World(replace(SMALL, plain=True))
    assert complete(checked(world))
    assert {source for node in world.readers for source in node.answer.sources} == {ChunkSource.HOLDER}


@pytest.mark.parametrize("proves", [True, False])
def test_where_no_switch_is_ours_reads_are_hashed_on_their_way(proves, checked) -> None:
    world = World(replace(SMALL, plain=True, is_known_plain=True, proves=proves))
    assert complete(checked(world))
    assert {source for node in world.readers for source in node.answer.sources} == {ChunkSource.HOLDER}
    proven = sum(len(set(node.proven)) for node in world.readers)
    # Not all: now and then a read ends within a piece.
    assert proven >= 0.8 * len(world.readers) * len(world.keys) if proves else not proven


@pytest.mark.parametrize("seed", range(3))
def test_holder_killed_with_another(seed, checked) -> None:
    world = World(replace(SMALL, holders=2, seed=seed))
    world.engine.at(MID_FETCH_NS, world.holders[seed % 2].kill)
    report = checked(world)
    assert complete(report)
    assert report.worst < 4


def test_only_holder_killed(checked) -> None:
    world = World(replace(SMALL, ttl_ns=500 * MS))
    world.engine.at(MID_FETCH_NS, world.holders[0].kill)
    report = checked(world)
    assert set(report.outcomes) == {Status.UNAVAILABLE}
    assert max(report.times_s) < 1
    assert all(leading < SMALL.chunks for leading in report.leading)


def test_holder_lost_by_the_controllers_word(checked) -> None:
    world = World(replace(SMALL, holders=2))

    def lose() -> None:
        world.holders[0].kill()
        for node in world.readers:
            node.learn(gone=(0,))

    world.engine.at(MID_FETCH_NS, lose)
    report = checked(world)
    assert complete(report)
    assert report.worst < 2.5


def test_holder_unreachable_with_another(checked) -> None:
    """No connection is refused: only silence tells."""
    world = World(replace(SMALL, holders=2))

    def cut() -> None:
        world.holders[0].uplink.down = True

    world.engine.at(MID_FETCH_NS, cut)
    assert complete(checked(world))


def leader(world):
    return next((node for node in world.readers if node.core.fetches.arrivals.reader.led_count), None)


@pytest.mark.parametrize("seed", range(4))
def test_leader_killed(seed, checked) -> None:
    world = World(replace(SMALL, seed=seed))
    killed = []

    def kill() -> None:
        victim = leader(world)
        if victim is not None:
            victim.kill()
            killed.append(victim)
        else:
            world.engine.at(world.engine.now_ns + 5 * MS, kill)

    world.engine.at(MID_FETCH_NS, kill)
    checked(world)
    assert len(killed) == 1
    others = [node for node in world.readers if not node.dead]
    assert {node.answer.outcome for node in others} == {Status.OK}
    ideal_ns = SMALL.chunks * SMALL.segments * SMALL.segment_bytes / SMALL.rate_bytes_per_s * 1e9
    assert max(node.answer.at_ns for node in others) < 2 * ideal_ns


def test_follower_killed_slows_nobody(checked) -> None:
    world = World(SMALL)

    def kill() -> None:
        victim = next(node for node in world.readers if node is not leader(world))
        victim.kill()

    world.engine.at(MID_FETCH_NS, kill)
    checked(world)
    ideal_ns = SMALL.chunks * SMALL.segments * SMALL.segment_bytes / SMALL.rate_bytes_per_s * 1e9
    assert max(node.answer.at_ns for node in world.readers if not node.dead) < 1.4 * ideal_ns


class Losses:
    """What a holder's uplink loses of a read connection, and of casts: `reads` and `casts` say which copies."""

    def __init__(self, reads: Callable[[int], bool], casts: Callable[[int], bool] = lambda _: False) -> None:
        self._reads, self._casts = reads, casts
        self._copies: Counter[object] = Counter()
        self.reads = self.casts = 0

    def __call__(self, packet: Packet) -> bool:
        body = packet.body
        if isinstance(body, StreamBody):
            place: object = body.sequence
            lost = self._reads(self._copies[place])
            self.reads += lost
        elif isinstance(body, DataBody):
            place = body.key, body.segment
            lost = self._casts(self._copies[place])
            self.casts += lost
        else:
            return False
        self._copies[place] += 1
        return lost


@pytest.mark.parametrize("after_ns", [0, MID_FETCH_NS // 2], ids=["from-the-start", "mid-fetch"])
@pytest.mark.parametrize(
    ("losses", "at_most_s"),
    [
        (lambda: Losses(lambda _: True), 0.3),
        (lambda: Losses(lambda copy: not copy), 0.3),
        (lambda: Losses(lambda copy: copy < 2, lambda copy: not copy), 0.7),
    ],
    ids=["silent", "late", "both-late"],
)
def test_a_read_connection_that_falls_silent(losses, at_most_s, after_ns, checked) -> None:
    """A read that stands still is begun again after a second. What it owes comes by GET long before."""
    world, lost = World(replace(SMALL, readers=1, chunks=3)), losses()

    def fall_silent() -> None:
        world.holders[0].uplink.faults = Faults(loses=lost)

    world.engine.at(after_ns, fall_silent)
    report = checked(world)
    assert complete(report)
    assert lost.reads
    assert max(report.times_s) < at_most_s


@pytest.mark.parametrize("holders", [1, 2])
def test_chunk_evicted_while_it_is_read(holders, checked) -> None:
    world = World(replace(SMALL, holders=holders, readers=2))
    evicted = []

    def evict() -> None:
        evicted.extend(key for key in world.keys[3:] if world.holders[0].evict(key))

    world.engine.at(MID_FETCH_NS, evict)
    report = checked(world)
    assert evicted
    if holders == 2:
        assert complete(report)
    else:
        assert set(report.outcomes) <= {Status.UNAVAILABLE, Status.OK}
        assert Status.UNAVAILABLE in report.outcomes


def test_a_pinned_chunk_is_not_evicted(checked) -> None:
    world = World(replace(SMALL, readers=1, chunks=1, segments=512))
    refused = []

    def evict() -> None:
        refused.append(not world.holders[0].evict(world.keys[0]))

    world.engine.at(MID_FETCH_NS, evict)
    assert complete(checked(world))
    assert refused == [True]


@pytest.mark.parametrize("seed", range(4))
def test_wrong_bytes_from_one_of_two_holders(seed, checked) -> None:
    world = World(replace(SMALL, holders=2, seed=seed))
    for key in world.keys:
        world.holders[1].hold(key, SMALL.segments, wrong=True)
    assert complete(checked(world))
    blamed = {copy.holder for node in world.readers for copy in node.bad_copies}
    assert blamed == {world.holders[1].name}


def test_wrong_bytes_from_the_only_holder(checked) -> None:
    world = World(SMALL)
    world.holders[0].hold(world.keys[2], SMALL.segments, wrong=True)
    report = checked(world)
    assert set(report.outcomes) == {Status.UNAVAILABLE}
    assert set(report.leading) == {2}


def test_keys_that_collide_in_the_interest_table(checked) -> None:
    report = checked(World(replace(SMALL, interest_entries=1)))
    assert complete(report)


def test_deadline_gives_what_leads(checked) -> None:
    world = World(replace(SMALL, chunks=24, deadline_ns=200 * MS))
    report = checked(world)
    assert set(report.outcomes) == {Status.DEADLINE}
    assert max(report.times_s) < 0.25


def test_cancelled_fetches_leave_nothing(checked) -> None:
    world = World(SMALL)

    def cancel() -> None:
        for node in world.readers[1:]:
            node.cancel()

    world.engine.at(MID_FETCH_NS, cancel)
    world.finished = lambda: world.readers[0].answer is not None  # type: ignore[method-assign]
    world.run()
    world.engine.run(world.engine.now_ns + SMALL.ttl_ns, lambda: False)
    assert world.readers[0].answer.outcome is Status.OK
    assert all(node.core.idle for node in world.nodes)
    assert not world.switch.interest_left()


def test_a_holder_that_appears_is_used(checked) -> None:
    world = World(replace(SMALL, holders=2, readers=1))
    first, second = world.holders
    reader = world.readers[0]
    world.publish(reader, [first])
    world.engine.at(MID_FETCH_NS, lambda: first.evict(world.keys[5]))
    world.engine.at(MID_FETCH_NS + MS, lambda: world.publish(reader, [second]))
    assert complete(checked(world))


@pytest.mark.parametrize("seed", range(3))
def test_fill_over_bad_links_completes_and_is_served(seed, checked) -> None:
    world = World(replace(SMALL, faults=Faults(loss=0.03, reordering=0.03), seed=seed))
    for index in range(SMALL.chunks):
        world.fill(index)
    ended = world.holders[0].tasks_ended
    world.engine.run(3_000 * MS, lambda: len(ended) == SMALL.chunks)
    assert [task.status for task in ended] == [TaskStatus.DONE] * SMALL.chunks
    for cached in world.switch.cache.values():
        cached.filling_member = None
        assert len(cached.slots) == SMALL.segments
    world.starts = [world.engine.now_ns + start for start in world.starts]
    before = world.holders[0].uplink.sent_bytes
    assert complete(checked(world))
    payload = SMALL.chunks * SMALL.segments * SMALL.segment_bytes
    assert world.holders[0].uplink.sent_bytes - before < 0.05 * payload
    assert {source for node in world.readers for source in node.answer.sources} == {ChunkSource.SWITCH}


def test_chunks_evicted_from_the_switch_mid_fetch(checked) -> None:
    world = World(replace(SMALL, cached=True))
    world.engine.at(MID_FETCH_NS, world.switch.cache.clear)
    report = checked(world)
    assert complete(report)
    assert report.worst < 2
