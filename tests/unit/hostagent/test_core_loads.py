"""What nodes have queued for readers: said, heard, priced, and fetches that are given up because of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hostagent.core import effects, events
from hostagent.core.core import AgentCore
from hostagent.core.directory import Delta
from hostagent.core.events import HolderTold
from hostagent.core.node import Knowledge
from hostagent.core.options import CoreOptions
from hostagent.limits import LOAD_AGAIN_S, LOAD_INTERVAL_S
from kvclient.messages import Status
from kvpolicy.tiers.gate import priors
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvpolicy.value import Tier
from kvproto.events import ReadDone, ReadProgress
from kvproto.ids import Address
from kvproto.wire.control import Op
from tests.unit.hostagent.core_harness import PAGE, Scene, entry, key

MB = 10**6
PAGES = 2048
"""Of a chunk: 8 MiB, 8.4 ms at 1 GB/s."""


@dataclass
class Reads:
    reads_queued_bytes: int = 0
    readers_served: int = 0


class Fast(Scene):
    """A node with a link of 1 GB/s, and reads that it serves."""

    def __init__(self) -> None:
        super().__init__(pool_pages=16 * PAGES)
        self.reads = Reads()
        knowledge = Knowledge("n0", priors(8e9))
        self.core = AgentCore(CoreOptions(16 * PAGES * PAGE, PAGE), knowledge, served_reads=self.reads)
        self.say(events.Started(1 << 20))

    def loads(self, *loads: tuple[int, HolderLoad]) -> None:
        self.say(events.DirectoryChanged(Delta(self.core.directory.sequence + 1, loads=loads)))


def attached(scene: Fast) -> None:
    scene.say(events.Welcomed(1, 0, None, PAGE, Address(9), 10**9, 1.0))


@pytest.mark.parametrize(
    ("queued_mb", "waited_ms", "recompute_s", "refused"),
    [(0, 0, 0.02, False), (400, 0, 0.02, True), (400, 0, 0.2, False), (400, 400, 0.02, False)],
    ids=["idle", "eight others first", "worth the wait", "sent by now"],
)
def test_the_gate_adds_what_the_directory_says_of_a_holder(
    queued_mb: int, waited_ms: int, recompute_s: float, refused: bool
) -> None:
    scene = Fast()
    scene.directory(entry(1, 1, pages=PAGES))
    scene.loads((1, HolderLoad(queued_mb * MB, 8)))
    scene.pass_ms(waited_ms)
    scene.fetch(1, recompute_s=recompute_s)
    answers = [answer.status for answer in scene.take(effects.FetchAnswered)]
    assert answers == ([Status.GATE] if refused else [])
    scene.close()


def test_of_two_holders_the_one_with_the_shorter_queue_is_asked_and_priced() -> None:
    scene = Fast()
    scene.directory(entry(1, 1, 2, pages=PAGES))
    scene.loads((1, HolderLoad(400 * MB, 8)))
    scene.fetch(1, recompute_s=0.02)
    assert {read.node for read in scene.take(effects.StartRead)} == {"n2"}
    scene.close()


def test_a_read_answer_that_tells_of_a_long_queue_ends_the_fetch_at_once() -> None:
    scene = Fast()
    scene.directory(entry(1, 1, pages=PAGES), entry(2, 1, pages=PAGES))
    scene.fetch(1, 2, recompute_s=0.1, deadline_s=60.0)
    read = scene.take(effects.StartRead)[0]
    assert read.wanted_bytes == 2 * PAGES * PAGE
    scene.say(HolderTold("n1", HolderLoad(40 * MB, 1)))
    assert scene.take(effects.FetchAnswered) == [], "still quicker than computing"
    scene.say(HolderTold("n1", HolderLoad(4000 * MB, 20)))
    (answer,) = scene.take(effects.FetchAnswered)
    assert (answer.status, len(answer.chunks)) == (Status.GATE, 0)
    assert scene.core.gate.counts.given_up == 1
    assert scene.core.gate.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s == 1e9, "the link is as fast as it was"
    scene.close()


def test_a_fetch_from_a_busy_holder_does_not_teach_a_slow_link() -> None:
    scene = Fast()
    scene.directory(entry(1, 1, pages=1))
    scene.fetch(1, recompute_s=0.2)
    (read,) = scene.take(effects.StartRead)
    scene.say(HolderTold("n1", HolderLoad(1 * MB, 1)))
    scene.pass_ms(45)
    scene.say(ReadDone(read.read))
    scene.compute(1)
    assert scene.take(effects.FetchAnswered)[0].status is Status.OK
    assert scene.core.gate.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s == 1e9
    scene.close()


def test_a_holder_that_stalls_is_given_up_long_before_computing_would_be_done() -> None:
    scene = Fast()
    scene.directory(entry(1, 1, pages=PAGES))
    scene.fetch(1, recompute_s=5.0, deadline_s=60.0)
    scene.pass_ms(1000)
    assert scene.take(effects.FetchAnswered) == [], "what it has cost so far says that as much again may bring it"
    scene.pass_ms(4500)
    (answer,) = scene.take(effects.FetchAnswered)
    assert answer.status is Status.GATE
    scene.close()


def test_a_slow_holder_brings_what_it_can_and_the_engine_computes_the_rest() -> None:
    """A tenth of the link's rate: after 84 ms the first of two chunks is here, and the other would take as long again,
    more than its computing."""
    scene = Fast()
    scene.directory(entry(1, 1, pages=PAGES), entry(2, 1, pages=PAGES))
    scene.fetch(1, 2, recompute_s=0.11, deadline_s=60.0)
    done = False
    for elapsed_ms in range(0, 110, 2):
        scene.pass_ms(2)
        for read in scene.take(effects.StartRead):
            if not done:
                first = read
        if not done and elapsed_ms < 82:
            scene.say(ReadProgress(first.read, min(first.count - 1, elapsed_ms * 25)))
    (answer,) = scene.take(effects.FetchAnswered)
    assert answer.status is Status.GATE
    scene.close()


def test_the_queue_is_told_when_it_changes_much_and_again_while_it_stays() -> None:
    scene = Fast()
    scene.put(1)
    attached(scene)
    scene.reads.reads_queued_bytes, scene.reads.readers_served = 100 * MB, 2
    lent = scene.core.lend(key(1), scene.now_ns)
    assert lent is not None
    scene.pass_ms(1)
    assert [told.load for told in scene.take(effects.ReportLoad)] == [HolderLoad(100 * MB, 2)]
    scene.reads.reads_queued_bytes = 120 * MB
    scene.pass_ms(1000 * LOAD_AGAIN_S - 10)
    assert scene.take(effects.ReportLoad) == [], "about the same"
    scene.pass_ms(1000 * LOAD_INTERVAL_S + 20)
    assert [told.load.queued_bytes for told in scene.take(effects.ReportLoad)] == [120 * MB]
    scene.reads.reads_queued_bytes = scene.reads.readers_served = 0
    scene.pass_ms(1000 * LOAD_INTERVAL_S + 1)
    assert [told.load for told in scene.take(effects.ReportLoad)] == [IDLE]
    scene.pass_ms(2000)
    assert scene.take(effects.ReportLoad) == []
    scene.say(events.PeerReadEnded(lent))
    scene.close()


def test_casts_that_wait_are_part_of_the_queue() -> None:
    scene = Scene()
    scene.put(1, 64 * PAGE)
    attached(scene)
    attached_segments = 64
    scene.ask(Op.GET, 1, attached_segments, attached_segments, 1)
    scene.pass_ms(1)
    assert [told.load for told in scene.take(effects.ReportLoad)] == [HolderLoad(64 * PAGE, 1)]
    assert scene.core.serving.queued_bytes == 64 * PAGE
    sent = scene.take(effects.CastSegments)
    for one in sent:
        scene.say(events.protocol.SegmentsSent(one.chunk.key, one.count))
    while more := scene.take(effects.CastSegments):
        for one in more:
            scene.say(events.protocol.SegmentsSent(one.chunk.key, one.count))
    scene.pass_ms(1000 * LOAD_INTERVAL_S + 1)
    assert [told.load for told in scene.take(effects.ReportLoad)] == [IDLE]
    scene.close()
