"""What a node's relay asks of its shell. Values only; carried out in the order given."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kvchunk.ids import ChunkKey
from kvproto.ids import ReadId
from kvproto.wire.relay_messages import Message


class TellParent(NamedTuple):
    """Send a message over the link to a node that passes chunks on to this one; it is made if there is none."""

    endpoint: str
    message: Message


class TellChild(NamedTuple):
    """Send a message over a link that another node made."""

    link: int
    message: Message


class LeaveParent(NamedTuple):
    """End the link to a parent."""

    endpoint: str


class EndChild(NamedTuple):
    """End a link that another node made: it said what no child says."""

    link: int


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Read pieces of a chunk into its memory, and compare them with its leaves: `proven`, `wrong` or `failed` follows,
    unless it is aborted."""

    read: ReadId
    key: ChunkKey
    endpoint: str
    first: int
    count: int


class AbortRun(NamedTuple):
    """End a read. When this has been carried out it writes no more, and reports nothing."""

    read: ReadId


class Blamed(NamedTuple):
    """A parent gave bytes, or leaves, that are not the chunk's, over its own connection."""

    endpoint: str
    key: ChunkKey


class Whole(NamedTuple):
    """All pieces of a chunk are here and proven; the relay gathers it no more."""

    key: ChunkKey


class GaveUp(NamedTuple):
    """No way leads to a chunk by relays, or reading it ends sooner: it is to come another way. The relay gathers it no
    more."""

    key: ChunkKey
    readers: int = 0
    """So many nodes want it, of which each should read it for itself; 0: that was not chosen."""


LinkCommand: TypeAlias = TellParent | TellChild | LeaveParent | EndChild | AbortRun
"""Those that the shell carries out as they are."""
RelayCommand: TypeAlias = LinkCommand | ReadRun | Blamed | Whole | GaveUp
