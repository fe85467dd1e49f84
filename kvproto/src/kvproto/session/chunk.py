"""One chunk that a reader is fetching. Its parts have one writer each: see progress.py, interest.py, holders.py."""

from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvproto.events import HolderRef
from kvproto.ids import FetchId, NodeId, ReadId
from kvproto.session.holders import Provenance
from kvproto.session.interest import Interest
from kvproto.session.phases import PHASES, Cause, Phase
from kvproto.session.progress import Progress

_CASTABLE = frozenset({Phase.JOINING, Phase.JOINED, Phase.DIRECT})
_READABLE = frozenset({Phase.JOINED, Phase.DIRECT, Phase.STRICT})


@dataclass(frozen=True, slots=True)
class Proof:
    """A holder is asked for the leaves of the chunk's tree."""

    read: ReadId
    holder: NodeId
    due_ns: int
    """When that has taken too long."""


class Chunk:
    """Phase of one chunk, and its parts. Compared by identity."""

    __slots__ = (
        "alone",
        "castable",
        "fetches",
        "interest",
        "joined",
        "key",
        "order",
        "phase",
        "progress",
        "proof",
        "provenance",
        "read_alone",
        "readable",
        "segments",
        "size_bytes",
    )

    def __init__(
        self,
        key: ChunkKey,
        segments: int,
        size_bytes: int,
        order: int,
        holders: tuple[HolderRef, ...],
        *,
        read_alone: bool = False,
    ) -> None:
        self.key = key
        self.segments = segments
        self.size_bytes = size_bytes
        self.order = order
        """Place among all chunks of the node: fetches in order of arrival, chunks in prefix order."""
        self.read_alone = read_alone
        """Without company it is read from a holder, not asked of the switch."""
        self.phase = Phase.WAITING
        """Changed by `move` only."""
        self.alone = False
        """It is read reliably, at once, whatever others do or say."""
        self.castable = False
        """The phase is one in which cast segments are welcome."""
        self.readable = False
        """The phase is one in which segments may be asked for."""
        self.joined = False
        """The phase is JOINED."""
        self.fetches: set[FetchId] = set()
        """Fetches that want it."""
        self.progress = Progress(segments)
        self.proof: Proof | None = None
        """Under way while the phase is PROVING; written by `Copies`, ended by `Chunks`."""
        self.interest = Interest()
        self.provenance = Provenance(holders, order)

    def wipe(self) -> None:
        """Nothing of it is here."""
        self.progress.wipe()
        self.provenance.wipe()

    def move(self, cause: Cause) -> None:
        """Take a transition of the table. Raises StateError when it has none."""
        phase = self.phase = PHASES.next(self.phase, cause)
        self.castable, self.readable, self.joined = phase in _CASTABLE, phase in _READABLE, phase is Phase.JOINED
