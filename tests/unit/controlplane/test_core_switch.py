"""The core towards the switch: members, groups, filling, serving, eviction, restarts, refusals."""

from __future__ import annotations

import itertools
import random

import pytest

from controlplane.core import views
from controlplane.core.events import Deposed, Elected, HelloReceived, Requested, StreamEnded, SwitchRead
from controlplane.core.ids import Member, SwitchPort
from controlplane.core.options import SwitchCacheRules
from controlplane.core.switch.bitmap_groups import BitmapGroups
from controlplane.core.switch.chunk_states import (
    TRANSITIONS,
    ChunkEvent,
    ChunkState,
    ImpossibleTransitionError,
    step,
)
from controlplane.core.switch.entries import FillingEntry, GroupEntry, ReplicateToGroupEntry, ServingEntry
from controlplane.core.switch.groups import Change, Groups, ReplicationGroups
from controlplane.core.switch.target import Down, Operation, SwitchFacts, Up
from kvproto.rpc import control_pb2 as rpc
from tests.digests import digest
from tests.unit.controlplane.helpers import CHUNK, FABRIC, SECOND, Scene, hello, key, record


def scene_with(nodes: int = 3, slots: int = 64, **changes: object) -> Scene:
    """Node 1 holds a <- b <- c, each eight segments; others hold nothing. The switch is up."""
    scene = Scene(slots, **changes)
    scene.attach(1, [record("a"), record("b", "a", 1), record("c", "b", 2)])
    for number in range(2, nodes + 1):
        scene.attach(number)
    scene.up()
    return scene


def assert_consistent(scene: Scene) -> None:
    """No slot, entry or promise is left over: pool, switch and directory agree."""
    pool, served = scene.core.switch_cache, scene.served()
    assert served == {one for one in pool.chunks if pool.state(one) in (ChunkState.SERVING, ChunkState.RECOVERING)}
    assert served == {chunk.key for chunk in scene.core.directory if chunk.served} | (
        served - {chunk.key for chunk in scene.core.directory}
    )
    ranges = [
        (entry.base_slot, entry.base_slot + entry.segments)
        for entry in scene.switch.contents.values()
        if isinstance(entry, ServingEntry | FillingEntry)
    ]
    ranges.sort()
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges)), "slots overlap"
    assert sum(end - base for base, end in ranges) == pool.slots.used_count
    for entry in scene.switch.contents.values():
        if hasattr(entry, "group") and not isinstance(entry, GroupEntry):
            assert ("group", entry.group) in scene.switch.contents


# -- members and groups


def test_a_fresh_switch_is_programmed_fabric_last() -> None:
    scene = Scene()
    for number in (1, 2, 3):
        scene.attach(number)
    scene.up()
    assert scene.switch.contents["fabric", None] == FABRIC.entry
    kinds = scene.switch.kinds()
    assert kinds["port_member"] == kinds["egress_member"] == kinds["dmac"] == 3
    assert kinds["replicate"] == 7, "three sets of one, four of more"
    assert kinds["group"] == 5, "four exact groups and the group of all ports"
    assert kinds["digest"] == 2
    assert kinds["clone_session"] == 1
    written = list(scene.switch.contents)
    assert {kind for kind, _ in written[: written.index(("fabric", None))]} >= {"digest", "station", "address"}
    assert written.index(("fabric", None)) < written.index(("port_member", 1)), "members are seen by a kvcast switch"
    assert [said.switch_state.present for said in scene.sent[1] if said.HasField("switch_state")] == [True]
    assert [said.membership.member for said in scene.sent[1] if said.HasField("membership")] == [0]


def test_eight_members_get_every_exact_group() -> None:
    scene = Scene()
    for number in range(1, 9):
        scene.attach(number)
    scene.up()
    assert scene.switch.kinds()["replicate"] == 255
    assert scene.switch.kinds()["group"] == 247 + 1
    entry = scene.switch.contents["replicate", 0b10100100]
    assert scene.switch.contents["group", entry.group].ports == (3, 6, 8)


def test_beyond_eight_members_groups_follow_use() -> None:
    groups = ReplicationGroups(on_demand_max=3)
    groups.set_members({Member(at): SwitchPort(at + 1) for at in range(12)})
    assert len(groups.entries()) == 12, "one each, unicast"
    used = [groups.use(members) for members in (0b11, 0b110, 0b1100, 0b11, 0b11 << 10)]
    assert [bool(one.new) for one in used] == [True, True, True, False, True]
    entries = groups.entries()
    sets = {entry.members: entry.group for entry in entries if isinstance(entry, ReplicateToGroupEntry)}
    assert set(sets) == {0b11, 0b1100, 0b11 << 10}, "the set not used for longest has given way"
    assert {entry.group for entry in entries if isinstance(entry, GroupEntry)} == set(sets.values())
    assert len(set(sets.values())) == 3
    assert groups.use(0b100) == Change()
    assert groups.use(1 << 20 | 1) == Change(), "a set with a stranger in it"


@pytest.mark.parametrize("groups", [ReplicationGroups(on_demand_max=5), BitmapGroups(groups_max=64)])
def test_what_a_set_in_use_changes_is_all_that_has_changed(groups: Groups) -> None:
    groups.set_members({Member(at): SwitchPort(at + 1) for at in range(12)})
    before = {entry.identity: entry for entry in groups.entries()}
    rng = random.Random(1)
    for _ in range(200):
        # Below 256 a set's group has the number of the set; others take the number of whoever gave way.
        change = groups.use(rng.choice((rng.randrange(1 << 12), rng.randrange(1 << 4))))
        for identity in change.gone:
            del before[identity]
        before |= {entry.identity: entry for entry in change.new}
        assert before == {entry.identity: entry for entry in groups.entries()}


def test_the_ninth_member_does_not_take_groups_away() -> None:
    scene = Scene()
    for number in range(1, 10):
        scene.attach(number)
    scene.up()
    assert scene.switch.kinds()["replicate"] == 255 + 1
    scene.heat("whatever", 0b100000001)
    assert scene.switch.kinds()["replicate"] == 255 + 2
    entry = scene.switch.contents["replicate", 0b100000001]
    assert scene.switch.contents["group", entry.group].ports == (1, 9)
    assert_consistent(scene)


def test_the_flood_group_of_the_switch_is_left_and_extended() -> None:
    scene = Scene()
    scene.switch.contents["group", 1] = GroupEntry(1, (SwitchPort(1), SwitchPort(30)))
    scene.attach(1)
    scene.attach(2)
    scene.up()
    assert scene.switch.contents["group", 1].ports == (1, 2, 30)


# -- the life of a chunk


def test_a_reported_chunk_is_filled_and_served() -> None:
    scene = scene_with()
    scene.heat("a")
    (task,) = scene.tasks(1, "fill")
    assert (task.fill.key, task.fill.segments) == (key("a"), 8)
    assert scene.switch.contents["kv_cache", key("a")] == FillingEntry(key("a"), 0, 8, SwitchPort(1))
    assert not scene.replica(2)[key("a")].served
    scene.finish(1, task)
    assert scene.switch.contents["kv_cache", key("a")] == ServingEntry(key("a"), 0, 8)
    assert scene.replica(2)[key("a")].served
    assert_consistent(scene)


def test_no_evidence_no_admission() -> None:
    scene = scene_with()
    scene.heat("a", members=0b10)
    assert not scene.tasks(1, "fill")
    fetch = rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_HOLDER, bytes=CHUNK)
    scene.say(2, usage=rpc.Usage(fetches=[fetch]))
    assert not scene.tasks(1, "fill")
    scene.say(3, usage=rpc.Usage(fetches=[fetch]))
    assert scene.tasks(1, "fill"), "a second touch is evidence"


def test_heat_for_an_unknown_chunk_is_counted_and_forgotten() -> None:
    scene = scene_with()
    scene.heat("never announced")
    assert scene.core.switch_cache.decisions["heat_for_unknown_chunk"] == 1
    assert scene.core.switch_cache.chunks == {}


@pytest.mark.parametrize("status", [rpc.TaskResult.FAILED, rpc.TaskResult.REFUSED, rpc.TaskResult.PARTIAL])
def test_a_fill_that_fails_leaves_no_trace(status: int) -> None:
    scene = scene_with()
    before = dict(scene.switch.contents)
    scene.heat("a")
    scene.finish(1, scene.tasks(1, "fill")[0], status)
    assert scene.switch.contents == before
    assert scene.core.switch_cache.slots.used_count == 0
    assert len(scene.core.tasks) == 0


def test_a_fill_that_never_ends_is_aborted() -> None:
    scene = scene_with(fill_timeout_ms=3000)
    scene.heat("a")
    task = scene.tasks(1, "fill")[0]
    scene.wait(5)
    assert ("kv_cache", key("a")) not in scene.switch.contents
    assert scene.core.switch_cache.slots.used_count == 0
    scene.finish(1, task)
    assert ("kv_cache", key("a")) not in scene.switch.contents, "too late is too late"
    assert scene.core.switch_cache.decisions["fill_aborted"] == 1


def test_after_a_fill_in_vain_another_holder_is_asked() -> None:
    """A directory may name a node that has the chunk no more."""
    scene = scene_with()
    scene.announce(2, [record("a")])
    scene.heat("a")
    (task,) = scene.tasks(1, "fill")
    scene.finish(1, task, rpc.TaskResult.FAILED)
    scene.heat("a")
    assert scene.tasks(1, "fill") == [task]
    (task,) = scene.tasks(2, "fill")
    scene.finish(2, task)
    assert scene.served() == {key("a")}


def test_the_holder_dies_while_it_fills() -> None:
    scene = scene_with()
    scene.announce(2, [record("a")])
    scene.heat("a")
    assert scene.tasks(1, "fill")
    scene.handle(StreamEnded(1))
    scene.advance()
    assert scene.core.switch_cache.slots.used_count == 0
    scene.heat("a")
    (task,) = scene.tasks(2, "fill")
    scene.finish(2, task)
    assert scene.served() == {key("a")}
    assert_consistent(scene)


def test_what_nobody_asked_for_is_no_news_of_the_switch() -> None:
    """An answer from an earlier session may be older than what is known."""
    scene = scene_with()
    scene.fill("a")
    epoch = scene.core.link.epoch
    scene.handle(SwitchRead({}))
    scene.advance()
    assert scene.served() == {key("a")}
    assert scene.core.link.epoch == epoch
    assert_consistent(scene)


def test_the_holder_attaches_anew_while_it_fills() -> None:
    """An agent that was started again knows nothing of the fill, and nobody waits for its time to run out."""
    scene = scene_with()
    scene.heat("a")
    (lost,) = scene.tasks(1, "fill")
    scene.sent[11] = []
    scene.handle(HelloReceived(11, hello(1, incarnation=2)))
    scene.announce(11, [record("a")], snapshot=True, snapshot_end=True)
    assert scene.core.switch_cache.decisions["fill_aborted"] == 1
    scene.finish(11, lost)
    assert not scene.served(), "the end of a task that is over changes nothing"
    scene.heat("a")
    (task,) = scene.tasks(11, "fill")
    scene.finish(11, task)
    assert scene.served() == {key("a")}
    assert_consistent(scene)


def test_a_full_pool_makes_room_for_what_is_worth_more() -> None:
    scene = scene_with(slots=16)
    scene.fill("a")
    scene.fill("b")
    assert scene.served() == {key("a"), key("b")}
    fetches = [rpc.FetchEvent(key=key(name), source=rpc.SOURCE_SWITCH, bytes=1) for name in "aaabbb"]
    scene.say(2, usage=rpc.Usage(fetches=fetches))
    scene.heat("c")
    assert scene.served() == {key("a"), key("b")}, "not worth more than what is there"
    scene.announce(3, [record("d")])
    scene.say(3, usage=rpc.Usage(fetches=[rpc.FetchEvent(key=key("d"), bytes=1)] * 20))
    scene.fill("d")
    assert key("d") in scene.served()
    assert key("a") in scene.served(), "the leaf went, not its ancestor"
    assert_consistent(scene)


def test_too_big_a_chunk_is_refused() -> None:
    scene = scene_with(slots=4)
    scene.heat("a")
    assert scene.core.switch_cache.decisions["refused_too_big"] == 1
    assert not scene.tasks(1, "fill")


def test_the_last_copy_is_saved_before_the_switch_drops_it() -> None:
    scene = scene_with()
    scene.fill("a")
    scene.say(2, usage=rpc.Usage(fetches=[rpc.FetchEvent(key=key("a"), bytes=1)] * 3))
    scene.announce(1, removed=[key("a")])
    entry = scene.replica(2)[key("a")]
    assert (list(entry.holders), entry.served) == ([], True)
    scene.core.switch_cache.evict(key("a"))
    scene.advance()
    saviours = [(session, task) for session in (1, 2, 3) for task in scene.tasks(session, "fetch")]
    ((session, task),) = saviours
    assert session != 1, "a node does not take packets that carry its own address"
    assert task.fetch.reason == rpc.Fetch.SPILL
    assert scene.core.switch_cache.state(key("a")) is ChunkState.RECOVERING
    assert key("a") in scene.served(), "still answered from the switch meanwhile"
    scene.announce(session, [record("a")])
    scene.finish(session, task)
    assert ("kv_cache", key("a")) not in scene.switch.contents
    assert list(scene.replica(3)[key("a")].holders) == [session - 1]
    assert_consistent(scene)


def test_a_recovery_that_fails_gives_the_chunk_up() -> None:
    scene = scene_with()
    scene.fill("a")
    scene.say(2, usage=rpc.Usage(fetches=[rpc.FetchEvent(key=key("a"), bytes=1)]))
    scene.announce(1, removed=[key("a")])
    scene.core.switch_cache.evict(key("a"))
    scene.advance()
    session, task = next((s, t) for s in (2, 3) for t in scene.tasks(s, "fetch"))
    scene.finish(session, task, rpc.TaskResult.FAILED)
    assert scene.replica(2).get(key("a")) is None
    assert scene.core.switch_cache.slots.used_count == 0
    assert_consistent(scene)


def test_a_bad_copy_in_the_switch_is_not_served_any_more() -> None:
    scene = scene_with()
    scene.fill("a")
    report = rpc.BadCopy(key=key("a"), expected=record("a").digest, found=digest(1), from_switch=True)
    for _ in range(2):
        scene.say(2, bad_copy=report)
        assert scene.served() == {key("a")}, "one node's word is not enough, however often it is said"
    scene.say(3, bad_copy=report)
    assert scene.served() == set()
    assert list(scene.replica(2)[key("a")].holders) == [0], "the holder's copy stays"
    assert_consistent(scene)


# -- the switch misbehaves


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.MODIFY])
def test_an_update_that_the_switch_refuses_aborts_the_fill(operation: Operation) -> None:
    scene = scene_with()
    scene.switch.refuse.add((operation, "kv_cache"))
    scene.fill("a")
    scene.wait(3)
    assert scene.core.switch_cache.slots.used_count == 0
    assert ("kv_cache", key("a")) not in scene.switch.contents
    assert scene.core.programmer.write_errors >= 1
    scene.switch.refuse.clear()
    scene.wait(2)
    scene.fill("a")
    assert scene.served() == {key("a")}
    assert_consistent(scene)


def test_a_refused_deletion_is_tried_again_before_slots_are_used_again() -> None:
    scene = scene_with()
    scene.fill("a")
    scene.switch.refuse.add((Operation.DELETE, "kv_cache"))
    scene.core.switch_cache.evict(key("a"))
    scene.wait(3)
    assert scene.core.switch_cache.slots.used_count == 8, (
        "its slots are not free while the switch may still serve from them"
    )
    scene.switch.refuse.clear()
    scene.wait(3)
    assert scene.core.switch_cache.slots.used_count == 0
    assert_consistent(scene)


def test_one_refused_update_does_not_hinder_the_others() -> None:
    scene = Scene()
    scene.switch.refuse.add((Operation.INSERT, "dmac"))
    for number in (1, 2):
        scene.attach(number)
    scene.up()
    assert scene.switch.kinds()["port_member"] == 2
    assert "dmac" not in scene.switch.kinds()
    assert members_shown(scene) == [], "the switch floods what goes to them"
    scene.switch.refuse.clear()
    scene.wait(3)
    assert scene.switch.kinds()["dmac"] == 2
    assert members_shown(scene) == [0, 1]


def members_shown(scene: Scene) -> list[int]:
    """To operators."""
    status = views.status(scene.core, "p4switch", "", scene.now)
    return [node.member for node in status.nodes if node.HasField("member")]


def test_a_restarted_switch_is_programmed_and_filled_again() -> None:
    scene = scene_with()
    scene.fill("a")
    epoch = scene.core.link.epoch
    full = set(scene.switch.contents)
    scene.handle(Down("stream ended"))
    scene.advance()
    assert scene.replica(2)[key("a")].served, "a lost stream says nothing about the data plane"
    scene.switch.contents.clear()
    scene.up()
    assert scene.core.link.epoch > epoch
    assert set(scene.switch.contents) == full, "programmed again; the chunk is being filled again"
    assert scene.switch.contents["kv_cache", key("a")].__class__ is FillingEntry
    assert not scene.replica(2)[key("a")].served
    states = [m.switch_state for m in scene.sent[2] if m.WhichOneof("message") == "switch_state"]
    assert states[-1].epoch == scene.core.link.epoch
    scene.finish(1, scene.tasks(1, "fill")[-1])
    assert scene.served() == {key("a")}
    assert_consistent(scene)


def test_a_program_reloaded_under_a_living_stream_is_noticed_at_the_next_check() -> None:
    scene = scene_with(check_switch_ns=2 * SECOND)
    scene.fill("a")
    scene.heat("b")
    scene.switch.contents.clear()
    scene.wait(4)
    assert scene.core.accounting.decisions["switch_restarted"] == 1
    assert scene.switch.contents["fabric", None] == FABRIC.entry
    assert scene.switch.kinds()["replicate"] == 7
    for session in (1,):
        for task in scene.tasks(session, "fill"):
            scene.finish(session, task)
    assert scene.served() == {key("a"), key("b")}
    cancelled = [m.cancel.task for m in scene.sent[1] if m.WhichOneof("message") == "cancel"]
    assert len(cancelled) == 1, "the fill into the old tables was called off"
    assert_consistent(scene)


def test_an_entry_that_vanished_alone_is_given_up() -> None:
    scene = scene_with(check_switch_ns=2 * SECOND)
    scene.fill("a")
    scene.fill("b")
    del scene.switch.contents["kv_cache", key("a")]
    scene.wait(3)
    assert key("b") in scene.served()
    assert key("a") not in scene.served(), "never made to serve from slots that may be empty"
    assert_consistent(scene)


def test_entries_of_a_stranger_are_removed() -> None:
    scene = scene_with(check_switch_ns=2 * SECOND)
    scene.switch.contents["kv_cache", key("stranger")] = ServingEntry(key("stranger"), 40, 4)
    scene.wait(3)
    assert ("kv_cache", key("stranger")) not in scene.switch.contents
    assert_consistent(scene)


# -- the controller restarts


def restarted(old: Scene, **changes: object) -> Scene:
    """A new controller before the switch that the old one left."""
    scene = Scene(old.switch.facts.slots, incarnation=2000, **changes)
    scene.switch = old.switch
    return scene


def test_a_restarted_controller_takes_over_what_the_switch_serves() -> None:
    old = scene_with()
    old.fill("a")
    old.heat("b")
    contents = dict(old.switch.contents)
    scene = restarted(old)
    scene.up()
    del contents["kv_cache", key("b")]
    assert scene.switch.contents == contents, "a fill nobody watches is cleared; members stay though none is here yet"
    scene.attach(3)
    scene.attach(1, [record("a"), record("b", "a", 1)])
    scene.attach(2)
    assert [scene.sent[number][0].welcome.member for number in (1, 2, 3)] == [0, 1, 2]
    scene.wait(1)
    assert scene.served() == {key("a")}
    assert scene.replica(2)[key("a")].served
    assert scene.switch.contents == contents, "groups, members and all are as they were"
    assert_consistent(scene)


@pytest.mark.parametrize("agents_first", [True, False])
def test_pinned_chunks_are_taken_over_whoever_comes_first(agents_first: bool) -> None:
    old = scene_with()
    old.ask(Requested("pin", rpc.PinRequest(key_hex=key("b").hex(), in_switch=True)))
    for _ in range(2):
        old.advance()
        for task in old.tasks(1, "fill"):
            old.finish(1, task)
    assert old.served() == {key("a"), key("b")}
    contents = dict(old.switch.contents)
    scene = restarted(old)
    comes = [
        lambda: scene.attach(1, [record("a"), record("b", "a", 1)], operator_state=old.core.operator_state.message()),
        scene.up,
    ]
    for come in comes if agents_first else comes[::-1]:
        come()
        scene.wait(1)
    for number in (2, 3):
        scene.attach(number)
    scene.wait(1)
    assert scene.switch.contents == contents
    assert scene.core.decisions["adopted"] == 2
    assert not scene.tasks(1, "fill"), "nothing is filled that is there"
    assert_consistent(scene)


def test_members_of_nodes_that_never_come_back_are_given_up() -> None:
    old = scene_with()
    scene = restarted(old)
    scene.up()
    scene.attach(2)
    scene.wait(61)
    assert scene.switch.kinds()["port_member"] == scene.switch.kinds()["dmac"] == 1
    assert scene.switch.kinds()["replicate"] == 1


def test_groups_on_demand_keep_their_numbers_over_a_restart() -> None:
    old = Scene()
    for number in range(1, 13):
        old.attach(number)
    old.up()
    for members in (0b11 << 10, 0b1111 << 7, 0b11):
        old.heat("whatever", members)
    contents = dict(old.switch.contents)
    scene = restarted(old)
    scene.up()
    for number in range(12, 0, -1):
        scene.attach(number)
    assert scene.switch.contents == contents
    scene.heat("whatever", 0b1001 << 8)
    groups = [entry.group for entry in scene.switch.contents.values() if isinstance(entry, GroupEntry)]
    assert len(groups) == len(set(groups)) == 1 + 247 + 3, "eight were there first; 0b11 is one of their sets"
    assert_consistent(scene)


def test_few_members_at_high_ports_have_exact_groups_too() -> None:
    scene = Scene()
    for number in (33, 40, 48):
        scene.attach(number)
    scene.up()
    assert scene.switch.contents["port_member", 33].member == 32
    assert scene.switch.kinds()["replicate"] == 7
    assert scene.switch.kinds()["group"] == 4 + 1
    for number in range(1, 10):
        scene.attach(number)
    assert_consistent(scene)
    assert ("replicate", 1 << 32 | 1 << 39) in scene.switch.contents, "groups stay when more members come"


def test_what_no_agent_knows_is_cleared_after_a_while() -> None:
    old = scene_with()
    old.fill("a")
    scene = restarted(old)
    scene.up()
    scene.attach(2)
    assert scene.served() == {key("a")}
    scene.wait(7)
    assert scene.served() == set()
    assert scene.core.switch_cache.slots.used_count == 0
    assert_consistent(scene)


def test_nothing_is_taken_over_under_other_fabric_parameters() -> None:
    old = scene_with()
    old.fill("a")
    changed = FABRIC.entry.__class__(**{f: getattr(FABRIC.entry, f) for f in FABRIC.entry.__slots__} | {"heat_gets": 9})
    old.switch.contents["fabric", None] = changed
    scene = restarted(old)
    scene.up()
    assert scene.served() == set(), "the bytes may carry an old group address"
    assert scene.switch.contents["fabric", None] == FABRIC.entry


def test_a_chunk_of_another_size_is_not_taken_over() -> None:
    old = scene_with()
    old.fill("a")
    scene = restarted(old)
    scene.up()
    scene.attach(1, [record("a", size=CHUNK * 2)])
    scene.wait(1)
    assert scene.served() == set()
    assert_consistent(scene)


# -- standby, pins, sizes


def test_a_standby_programs_nothing_until_it_is_primary() -> None:
    scene = Scene()
    scene.handle(Deposed("another one is the switch's primary"))
    scene.attach(1)
    scene.advance()
    scene.up()
    assert scene.switch.contents == {}
    scene.handle(Elected(1, None, "it is the switch's primary"))
    scene.advance()
    assert scene.switch.kinds()["port_member"] == 1


def test_another_segment_size_sends_agents_round_again() -> None:
    scene = Scene()
    scene.attach(1)
    scene.connected = True
    scene.switch.facts = SwitchFacts(64, 256)
    scene.handle(Up(scene.switch.facts))
    scene.advance()
    assert scene.closed[1].code == "ABORTED"
    scene.attach(1)
    assert scene.sent[1][0].welcome.fabric.segment_bytes == 256


def test_pinned_chunks_come_in_without_evidence_and_stay() -> None:
    scene = scene_with(slots=16, rules=SwitchCacheRules(admission=False))
    scene.ask(Requested("pin", rpc.PinRequest(key_hex=key("b").hex(), in_switch=True)))
    scene.advance()
    for task in scene.tasks(1, "fill"):
        scene.finish(1, task)
    assert scene.served() == {key("a"), key("b")}
    scene.say(2, usage=rpc.Usage(fetches=[rpc.FetchEvent(key=key("c"), bytes=1)] * 50))
    scene.heat("c")
    assert scene.served() == {key("a"), key("b")}
    scene.switch.contents.clear()
    scene.handle(Down("gone"))
    scene.up()
    for task in scene.tasks(1, "fill"):
        scene.finish(1, task)
    assert scene.served() == {key("a"), key("b")}, "pins outlive a restart of the switch"
    assert_consistent(scene)


def test_every_state_can_be_left_and_lost() -> None:
    for state in ChunkState:
        if state is not ChunkState.ABSENT:
            assert step(state, ChunkEvent.LOST) is ChunkState.ABSENT
            assert (state, ChunkEvent.EVICT) in TRANSITIONS
    with pytest.raises(ImpossibleTransitionError):
        step(ChunkState.ABSENT, ChunkEvent.FILLED)
