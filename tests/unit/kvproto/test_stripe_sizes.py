"""How large reliable reads are: whole pieces."""

from __future__ import annotations

import pytest

from kvchunk.ids import ChunkKey
from kvproto.events import ChunkWanted, HolderRef
from kvproto.ids import Address, NodeId
from kvproto.limits import MS
from kvproto.session.chunk import Chunk
from kvproto.session.pace import Pace
from kvproto.session.stripes import Stripes
from kvproto.session.timing import (
    STRIPE,
    STRIPE_ROUND_SEGMENTS,
    STRIPE_SEGMENTS_MAX,
    STRIPE_START_SEGMENTS,
)

HOLDER = HolderRef(NodeId("n1"), Address(1))


@pytest.mark.parametrize("per_ms", [1, 7, 33, 333])
def test_long_stripes_begin_and_end_with_the_pieces_that_chunks_are_hashed_in(per_ms: int) -> None:
    """Whatever the rate is. They stay near what it calls for."""
    stripes, chunk = Stripes(Pace()), Chunk(ChunkWanted(ChunkKey(bytes(16)), 1 << 16, 1 << 28, (HOLDER,), 1))
    at, now_ns, sizes = 0, 0, []
    for _ in range(8):
        sizes.append(stripes.next_size(fresh=False))
        stripe = stripes.start(chunk, HOLDER, at, sizes[-1], now_ns)
        now_ns += sizes[-1] * MS // per_ms
        at += sizes[-1]
        stripes.finish(stripe, now_ns)
    called_for = min(STRIPE_SEGMENTS_MAX, max(STRIPE_START_SEGMENTS, per_ms * STRIPE.ceiling_ns // MS))
    assert 0.85 * called_for <= sizes[-1] <= called_for
    if called_for >= 8 * STRIPE_ROUND_SEGMENTS:
        assert sizes[-1] % STRIPE_ROUND_SEGMENTS == 0
