"""Reliable reads of a reader: at what rate they came, and when they are silent."""

import pytest

from kvchunk.ids import ChunkKey
from kvproto.events import ChunkWanted, HolderRef
from kvproto.ids import Address, NodeId
from kvproto.limits import MS
from kvproto.session.chunk import Chunk
from kvproto.session.pace import Pace
from kvproto.session.stripes import Stripe, Stripes
from kvproto.session.timing import READ_SILENCE, READ_STALL_NS

HOLDER, OTHER = HolderRef(NodeId("a"), Address(1)), HolderRef(NodeId("b"), Address(2))
SEGMENTS = 32


def begun(*starts_ms: int, holders: tuple[HolderRef, ...] = (HOLDER,)) -> tuple[Stripes, list[Stripe]]:
    """Reads of as many segments each, one after the other."""
    chunk = Chunk(ChunkWanted(ChunkKey(bytes(16)), 1024, 1024 * 4096, (HOLDER, OTHER), 0))
    stripes = Stripes(Pace())
    reads = [
        stripes.start(chunk, holders[number % len(holders)], number * SEGMENTS, SEGMENTS, start_ms * MS)
        for number, start_ms in enumerate(starts_ms)
    ]
    return stripes, reads


@pytest.mark.parametrize(
    ("ends_ms", "segments_per_s"),
    [
        ((10, 20, 30, 40), (3200, 3200, 3200, 3200)),
        ((20, 20, 40, 40), (1600, 3200, 2400, 3200)),
        ((10, 10, 10, 40), (3200, 6400, 9600, 3200)),
    ],
    ids=["one after the other", "two together", "with a burst that the network had queued"],
)
def test_reads_that_end_together_do_not_make_a_link_look_quick(ends_ms, segments_per_s) -> None:
    stripes, reads = begun(0, 0, 0, 0)
    rates = [stripes.finish(read, end_ms * MS) for read, end_ms in zip(reads, ends_ms, strict=True)]
    assert rates == pytest.approx(segments_per_s)


def test_a_pause_between_reads_is_not_the_links() -> None:
    stripes, (first,) = begun(0)
    assert stripes.finish(first, 10 * MS) == pytest.approx(3200)
    second = stripes.start(first.chunk, HOLDER, SEGMENTS, SEGMENTS, 500 * MS)
    assert stripes.finish(second, 510 * MS) == pytest.approx(3200)


def test_silence_is_a_holders_and_ends_with_anything_from_it() -> None:
    stripes, (first, second, other) = begun(0, 0, 0, holders=(HOLDER, HOLDER, OTHER))
    silence_ns = READ_SILENCE.ceiling_ns
    assert stripes.next_timeout_ns() == silence_ns
    stripes.progress(other, MS)
    assert stripes.fall_silent(silence_ns - 1) == []
    assert stripes.fall_silent(silence_ns) == [first, second] == stripes.silent
    assert stripes.next_timeout_ns() == silence_ns + MS, "the other one may fall silent next"
    assert stripes.fall_silent(silence_ns) == [], "once"
    stripes.progress(second, silence_ns)
    assert stripes.silent == []
    stripes.fall_silent(2 * silence_ns)
    assert stripes.silent == [first, second, other]
    assert stripes.next_timeout_ns() == READ_STALL_NS + MS
