"""What the window of GETs covers: late processes where a holder sends, its own target where the switch does."""

import numpy as np
import pytest

from kvchunk.ids import ChunkKey
from kvproto.events import ChunkWanted, HolderRef
from kvproto.ids import Address, NodeId
from kvproto.limits import MS
from kvproto.session.chunk import Chunk
from kvproto.session.pace import Pace
from kvproto.session.pull import Pull
from kvproto.session.timing import WINDOW_DELAY, WINDOW_DELAY_MAX_NS


def measured(answer_ns: int) -> Pace:
    """A reader whose answers always take the same time, at 100 Mbit/s."""
    pace = Pace()
    for _ in range(100):
        pace.note_answer(answer_ns)
        pace.note_late(0)
    pace.segment_ns = 336_000.0
    return pace


@pytest.mark.parametrize(
    ("answer_ns", "cached", "more_ns"),
    [
        (MS, False, 0),
        (3 * MS, False, 3 * MS // 2),
        (3 * MS, True, 0),
        (40 * MS, False, WINDOW_DELAY_MAX_NS - WINDOW_DELAY.ceiling_ns),
    ],
    ids=["quick", "late", "from the switch", "very late"],
)
def test_a_holders_window_covers_long_reactions(answer_ns: int, cached: bool, more_ns: int) -> None:
    chunk = Chunk(ChunkWanted(ChunkKey(bytes(16)), 64, 64 * 4096, (HolderRef(NodeId("a"), Address(1)),), 0))
    chunk.interest.cached = cached
    pull = Pull(1024, measured(answer_ns))
    pull.ask(chunk, NodeId("a"), 0, 8, 0)
    pull.keep_pace()
    assert pull.window.target_ns == pytest.approx(WINDOW_DELAY.ceiling_ns + more_ns, abs=0.1 * MS)


def asked_twice(*, early: bool) -> Pull:
    """GETs for eight segments each of two chunks; of the second, all have come."""
    pull = Pull(1024, measured(MS))
    first, second = (
        Chunk(ChunkWanted(ChunkKey(bytes([number]) * 16), 64, 64 * 4096, (HolderRef(NodeId("a"), Address(1)),), 0))
        for number in range(2)
    )
    pull.ask(first, NodeId("a"), 0, 8, 0)
    pull.ask(second, NodeId("a"), 0, 8, 0, early=early)
    pull.arrived(second.progress.arrive(np.arange(8, dtype=np.uint32)), 5 * MS)
    return pull


def test_what_a_later_get_overtook_is_lost() -> None:
    assert asked_twice(early=False).find_lost(20 * MS) == 8


def test_what_came_because_another_member_had_asked_before_overtakes_nothing() -> None:
    assert asked_twice(early=True).find_lost(20 * MS) == 0


def test_a_leader_that_another_one_deposes_takes_nothing_for_overtaken() -> None:
    pull = Pull(1024, measured(MS))
    first, second = (
        Chunk(ChunkWanted(ChunkKey(bytes([number]) * 16), 64, 64 * 4096, (HolderRef(NodeId("a"), Address(1)),), 0))
        for number in range(2)
    )
    pull.ask(first, NodeId("a"), 0, 8, 0)
    pull.ask(second, NodeId("a"), 0, 8, 0)
    pull.shared(second)
    pull.arrived(second.progress.arrive(np.arange(8, dtype=np.uint32)), 5 * MS)
    assert pull.find_lost(20 * MS) == 0
    assert pull.loss == 0
