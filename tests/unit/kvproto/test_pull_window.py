"""What the window of GETs covers: late processes where a holder sends, its own target where the switch does."""

import pytest

from kvproto.events import HolderRef
from kvproto.ids import Address, ChunkKey, NodeId
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
    chunk = Chunk(ChunkKey(bytes(16)), 64, 64 * 4096, 0, (HolderRef(NodeId("a"), Address(1)),))
    chunk.interest.cached = cached
    pull = Pull(1024, measured(answer_ns))
    pull.ask(chunk, NodeId("a"), 0, 8, 0)
    pull.keep_pace()
    assert pull.window.target_ns == pytest.approx(WINDOW_DELAY.ceiling_ns + more_ns, abs=0.1 * MS)
