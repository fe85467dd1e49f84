"""Named limits of the protocol core and the relations between them. One truth; nothing else hard-codes a figure."""

from typing import Final

MS: Final = 1_000_000
"""Nanoseconds in a millisecond."""

# --- formats -------------------------------------------------------------------------------------------------------
MEMBERS_MAX: Final = 64
SEGMENT_BYTES_DEFAULT: Final = 4096
SEGMENT_BYTES_MAX: Final = 8192
SEGMENT_BLOCK_BYTES: Final = 256
"""The switch program stores segments in blocks: its SEGMENT_BYTES is a multiple (BLOCK_BYTES in p4/v1model)."""
"""With its headers and an Ethernet header it still fits a jumbo frame of 9000 bytes."""
CHUNK_SEGMENTS_MAX: Final = 1 << 20
"""4 GiB of 4 KiB segments; bounds what one bitmap costs (1 MiB)."""
GET_COUNT_MAX: Final = 0xFFFF
"""Width of the count field."""

# --- a node's reader --------------------------------------------------------------------------------------------------
JOINED_MAX: Final = 128
"""Chunks joined at a time: far more than a window spans, far fewer than a switch has interest entries."""

# --- rails ------------------------------------------------------------------------------------------------------------
RAILS_MAX: Final = 8
"""NICs of a node that carry its chunks: servers have eight at most."""

# --- a holder ---------------------------------------------------------------------------------------------------------
HOLDER_QUEUE_SEGMENTS_MAX: Final = 16384
"""Segments asked for and not yet sent; beyond it GETs are dropped, and their askers ask again later."""
HOLDER_PEER_SEGMENTS_MAX: Final = 8192
"""Of these, one peer's: a datagram of 60 bytes may ask for 256 MiB, and no switch may be there that counts them. The
largest window of a reader with the default receive buffer."""
INTEREST_OF_MEMBER: Final = 512
"""Chunks for whose interest one member pays at a keeper, in a time to live; p4/include/sizes.p4 has the same."""
FILL_WINDOW: Final = 64
"""FILLs without FILL_ACK; the switch answers at once, so this only covers the sending host's own delays."""

# --- what agents tell the controller ----------------------------------------------------------------------------------
CHUNK_BYTES_MAX: Final = 1 << 32
"""A chunk of more would need more segments than a GET can name usefully."""
PREFIX_CHUNKS_MAX: Final = 1 << 17
"""Chunks from the root to a leaf: 33 million tokens of 256."""
NAMESPACE_BYTES_MAX: Final = 256
CLAIMS_PER_NODE_MAX: Final = 16_384
"""Chunks that the engines of one node may compute at a time."""
CLAIMED_BYTES_MIN: Final = 4096
"""What a claim counts for at least: a pool has pages."""
CLAIMERS_PER_CHUNK_MAX: Final = 32
"""Who says to compute one chunk: each fetch of it asks all of them."""
CLAIM_S_MAX: Final = 600.0
"""No claim is believed to take longer."""
FOLLOWED_PER_NODE_MAX: Final = 1 << 20
"""Chunks that one agent may follow, known or not. The controller has 4 bytes of each where their followers are alike,
and a row of 90 where nobody has them."""

assert SEGMENT_BYTES_DEFAULT <= SEGMENT_BYTES_MAX
assert SEGMENT_BYTES_MAX % 4 == 0
assert GET_COUNT_MAX <= CHUNK_SEGMENTS_MAX
assert 2 * HOLDER_PEER_SEGMENTS_MAX <= HOLDER_QUEUE_SEGMENTS_MAX, "one peer leaves as much to the others"
assert INTEREST_OF_MEMBER >= 4 * JOINED_MAX, "and as many again whose LEAVEs were lost"
assert FILL_WINDOW < HOLDER_QUEUE_SEGMENTS_MAX
