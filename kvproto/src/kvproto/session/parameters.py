"""What a shell tells the state machines once about its node and its fabric."""

from dataclasses import dataclass

from kvproto.ids import Member
from kvproto.limits import MS, SEGMENT_BYTES_DEFAULT


@dataclass(frozen=True, slots=True)
class ReaderParameters:
    """What the rules of the reader depend on."""

    member: Member | None
    """This node's index at its switch; None: not known, then everything is read reliably."""
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    receive_window_segments: int = 1024
    """Segments that may be on their way at once: half of what the socket's receive buffer really holds, at most."""
    interest_ttl_ns: int = 10_000 * MS
    """After this time without GET, DATA or JOIN the switch forgets a chunk's interest."""
    link_rate_bytes_per_s: int | None = None
    """Rate of this node's link if the configuration gives it; None: it is learnt."""
    rails: int = 1
    """NICs that bring chunks to this node, each by a network of its own."""
    cast_rails: int = 1
    """Of these, the first ones that bring casts, too."""
    by_keepers: bool = False
    """Holders keep the interest in their chunks: all readers of a chunk join at the same one."""
    chooses: bool = True
    """Chunks that several want are read by each where that was measured to end sooner; False: they are always cast."""


@dataclass(frozen=True, slots=True)
class HolderParameters:
    """What the rules of the holder depend on."""

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    send_burst_segments: int = 64
    """Segments handed to the shell and not yet reported sent, at least (see `Burst`); the rest waits in the queue."""
