"""The fetching side of one node, alone: what it asks of the network, of its disk and of its memory."""

from __future__ import annotations

import numpy as np
import pytest

from hostagent.core import effects, events
from hostagent.core.events import LoadOutcome
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvproto.commands import AbortRead
from kvproto.events import ReadDone, ReadFailed, SegmentsReceived
from kvproto.ids import Address, Member
from kvproto.session.timing import LEAVE_AGAIN
from kvproto.wire.control import Op
from tests.digests import digest
from tests.unit.hostagent.core_harness import ENGINE, PAGE, Scene, entry, key

HOLDER = Address(1)


def joined(scene: Scene) -> None:
    """The controller gives this node a member."""
    scene.say(events.Welcomed(1, 0, Member(3), PAGE, None, 0, 0.0))


def casts(number: int, *segments: int) -> SegmentsReceived:
    return SegmentsReceived(key(number), np.array(segments, np.uint32), HOLDER)


def test_a_cast_that_goes_on_after_leaving_is_answered_by_another_leave() -> None:
    """The first LEAVE was lost: the switch counts us in, and would until the cast is over."""
    scene = Scene()
    joined(scene)
    scene.directory(entry(1, 1))
    request = scene.fetch(1)
    assert scene.said() == [(Op.JOIN, HOLDER)]
    scene.say(events.CancelRequested(ENGINE, request))
    assert scene.said() == [(Op.LEAVE, HOLDER)]
    assert scene.core.wanted(key(1)) is None
    scene.say(casts(1, 0, 1, 2, 3))
    assert scene.said() == [], "what was under way is no evidence"
    scene.now_ns += LEAVE_AGAIN.ceiling_ns
    scene.say(casts(1, 0, 1, 2, 3))
    assert scene.said() == [(Op.LEAVE, HOLDER)]
    scene.close()


def test_what_is_left_to_come_shrinks_as_casts_arrive() -> None:
    scene = Scene()
    joined(scene)
    scene.directory(entry(1, 1, pages=4))
    scene.fetch(1)
    (inbound,) = scene.core.fetches.arrivals.under_way.values()
    assert scene.core.fetches.arrivals.left_bytes(inbound) == 4 * PAGE
    wanted = scene.core.wanted(key(1))
    assert wanted is not None
    assert (wanted.segments_count, wanted.missing.tolist()) == (4, [True] * 4)
    scene.say(casts(1, 0, 2, 3))
    assert scene.core.fetches.arrivals.left_bytes(inbound) == PAGE
    scene.say(casts(1, 1))
    scene.compute(1)
    answer = scene.take(effects.FetchAnswered)[0]
    assert (answer.status, [chunk.source for chunk in answer.chunks]) == (Status.OK, [ChunkSource.CAST])
    scene.close()


def test_a_read_from_a_node_that_is_gone_fails_later_and_ends_the_fetch() -> None:
    scene = Scene()
    scene.directory(entry(1, 1))
    scene.fetch(1)
    (read,) = scene.take(effects.StartRead)
    assert (read.endpoint, read.offset, read.size_bytes) == ("0.0.0.1:1", 0, 8 * PAGE)
    scene.say(ReadFailed(read.read, gone=True))
    answer = scene.take(effects.FetchAnswered)[0]
    assert (answer.status, answer.chunks) == (Status.UNAVAILABLE, ())
    (bad,) = scene.take(effects.ReportBadCopy)
    assert (bad.holder, bad.holder_node) == ("n1", 1)
    scene.close()


def test_an_answer_to_a_read_that_was_aborted_is_late() -> None:
    scene = Scene()
    scene.directory(entry(1, 1))
    request = scene.fetch(1)
    (read,) = scene.take(effects.StartRead)
    scene.say(events.CancelRequested(ENGINE, request))
    assert scene.take(AbortRead) == [AbortRead(read.read)]
    scene.say(ReadDone(read.read))
    assert scene.take(effects.FetchAnswered)[0].status is Status.CANCELLED
    scene.close()


@pytest.mark.parametrize("outcome", [LoadOutcome.DAMAGED, LoadOutcome.FAILED, LoadOutcome.ABSENT])
def test_what_the_disk_does_not_deliver_comes_from_a_holder(outcome: LoadOutcome) -> None:
    scene = Scene(disk_pages=64)
    assert scene.disk is not None
    scene.disk.store(1)
    scene.directory(entry(1, 1, pages=1))
    scene.fetch(1)
    assert scene.take(effects.StartRead) == []
    assert scene.load(outcome) == [key(1)]
    scene.read()
    scene.compute(1)
    answer = scene.take(effects.FetchAnswered)[0]
    assert [chunk.source for chunk in answer.chunks] == [ChunkSource.HOLDER]
    scene.close()


def test_a_fetch_that_is_cancelled_while_the_disk_loads_gives_the_memory_back_afterwards() -> None:
    scene = Scene(disk_pages=64)
    assert scene.disk is not None
    scene.disk.store(1)
    request = scene.fetch(1)
    scene.say(events.CancelRequested(ENGINE, request))
    assert scene.core.pool.pins_count == 1, "a thread of the shell still writes there"
    scene.load()
    assert scene.core.idle
    scene.close()


def test_wrong_bytes_are_blamed_on_a_holder_that_brought_them_alone_and_twice() -> None:
    scene = Scene()
    scene.directory(entry(1, 1))
    scene.fetch(1)
    for _ in range(2):
        scene.read()
        scene.compute(99)
    (bad,) = scene.take(effects.ReportBadCopy)
    assert (bad.holder, bad.expected, bad.found, bad.from_switch) == ("n1", digest(1), digest(99), False)
    assert scene.take(effects.FetchAnswered)[0].status is Status.UNAVAILABLE
    scene.close()


def test_what_is_here_is_answered_before_the_pools_learn_of_it() -> None:
    scene = Scene()
    scene.put(1)
    scene.fetch(1)
    answer = scene.take(effects.FetchAnswered)[0]
    assert [chunk.source for chunk in answer.chunks] == [ChunkSource.LOCAL]
    assert scene.core.next_timeout_ns() == scene.now_ns, "what is left to do waits for the next turn"
    scene.close()


def test_another_segment_size_ends_what_is_under_way() -> None:
    scene = Scene()
    scene.directory(entry(1, 1))
    scene.put(2)
    scene.fetch(2, 1)
    scene.say(events.Welcomed(1, 0, None, 2 * PAGE, None, 0, 0.0))
    answer = scene.take(effects.FetchAnswered)[0]
    assert (answer.status, len(answer.chunks)) == (Status.UNAVAILABLE, 1)
    assert not scene.core.fetches.arrivals.under_way
    scene.close()
