"""A network that multicasts and knows nothing of kvcast: holders keep interest, and cast to blocks of members."""

from dataclasses import replace

import pytest

from kvclient.messages import Status
from kvproto.fanout import Fanout
from kvproto.limits import MS
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op
from kvsim.bodies import CONTROL_BYTES, ControlBody
from kvsim.link import Faults, Packet
from kvsim.world import Setting, World
from tests.seeds import also_long

TRANSFER_NS = 1_342 * MS
"""S/B: 16 MiB at 100 Mbit/s."""
INCAST = Setting(plain=True, fanout=Fanout.MULTICAST, know_link=True)
SMALL = replace(INCAST, readers=6, chunks=6, segments=64, ttl_ns=2_000 * MS, deadline_ns=10_000 * MS, seed=11)


def run(setting: Setting, checked):
    report = checked(World(setting))
    assert set(report.outcomes) == {Status.OK}
    return report


def test_at_once(checked) -> None:
    report = run(INCAST, checked)
    assert report.mean < 1.08
    assert report.holder_tx < 1.06
    assert report.readers_tx < 0.01


@pytest.mark.parametrize("seed", also_long(1, long=(2,)))
def test_staggered(seed, checked) -> None:
    report = run(replace(INCAST, seed=seed, stagger_ns=TRANSFER_NS, announced=True), checked)
    assert report.mean < 1.1
    assert report.holder_tx + report.readers_tx < 2.1


@pytest.mark.parametrize("seed", also_long(0, 1, long=range(2, 8)))
@pytest.mark.parametrize("faults", [Faults(loss=0.01), Faults(loss=0.05, duplication=0.02, reordering=0.02)])
def test_bad_links(faults, seed, checked) -> None:
    run(replace(SMALL, faults=faults, seed=seed, stagger_ns=seed * 40 * MS), checked)


@pytest.mark.parametrize("seed", also_long(0, 1, long=range(2, 8)))
def test_a_keeper_dies_and_another_holder_keeps_on(seed, checked) -> None:
    """Each chunk has its keeper among three holders; those of one are taken over by the others."""
    world = World(replace(SMALL, holders=3, seed=seed, chunks=12))
    world.engine.at(60 * MS, world.holders[0].kill)
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}
    assert report.readers_tx < 0.2, "it came by casts"


def test_holders_share_the_chunks(checked) -> None:
    """All readers of a chunk agree on its keeper: every chunk leaves once."""
    world = World(replace(SMALL, holders=3, chunks=12, segments=128))
    report = checked(world)
    payload = 12 * 128 * world.setting.segment_bytes
    sent = [holder.uplink.sent_bytes / payload for holder in world.holders]
    assert sum(sent) < 1.5
    assert report.holder_tx < 0.7


@pytest.mark.parametrize("seed", also_long(0, long=range(1, 6)))
def test_a_reader_that_lies_delays_nobody_for_long(seed, checked) -> None:
    """It says in the name of others that they lead and have left, and asks for what it never joined."""
    world = World(replace(SMALL, seed=seed))
    liar, holder = world.readers[0], world.holders[0]

    def lie(turn: int) -> None:
        for key in world.keys:
            says = [
                Control(Op.JOIN, key, world.setting.segments, tag=TAG_LEADS, member=3),
                Control(Op.LEAVE, key, world.setting.segments, member=2),
                Control(Op.GET, key, world.setting.segments, count=world.setting.segments, member=4),
            ]
            for control in says:
                liar.send(Packet(liar.address, holder.address, CONTROL_BYTES, ControlBody(control.encode())))
            notice = Control(Op.NOTICE, key, world.setting.segments, flags=Flag.LEFT, member=1, members=0)
            for other in world.readers[1:]:
                liar.send(Packet(liar.address, other.address, CONTROL_BYTES, ControlBody(notice.encode())))
        if turn:
            world.engine.at(world.engine.now_ns + 5 * MS, lambda: lie(turn - 1))

    world.engine.at(1 * MS, lambda: lie(20))
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}
    assert max(report.times_s) < 1.5


def test_members_that_did_not_ask_get_what_the_weight_allows() -> None:
    """A reader that wants nothing, beside five that want all: whether casts come to its port, too."""
    for weight, comes in ((0.0, True), (100.0, False)):
        world = World(replace(SMALL, unasked_weight=weight))
        came = []
        quiet = world.readers.pop(2)
        world.starts.pop(2)
        deliver = quiet.deliver

        def listen(packet, at_ns, deliver=deliver, came=came) -> None:
            if packet.size_bytes > SMALL.segment_bytes:
                came.append(packet)
            deliver(packet, at_ns)

        quiet.deliver = listen
        report = world.run()
        assert set(report.outcomes) == {Status.OK}
        assert bool(came) is comes
