"""What an agent's core asks of its shell. Values only. The shell carries them out in the order given.

A `Chunk` in an effect stays pinned by the core until the shell has answered as the effect says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hostagent.core.directory import ClaimedChunk
from hostagent.core.events import NO_LEASE, DigestUse, EngineId, LeaseId
from hostagent.core.work import TaskStatus
from hostagent.pool.chunks import Chunk, PoolUsage
from kvchunk.ids import ChunkKey, Digest
from kvchunk.sources import ChunkSource
from kvclient.messages import FetchedChunk, FetchedParts, Hint, Kind, Status
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.gate import Choice, Verdict
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.value import Measurement, PastFetches, Tier
from kvpolicy.value.costs import SourceCost
from kvproto.commands import AbortRead, Blame, SendControl
from kvproto.ids import Address, NodeId, ReadId
from kvproto.integrity import NO_DIGEST, Integrity
from kvproto.session.choice import Standing
from kvproto.session.relay.relay_commands import LinkCommand, ReadRun

# --- to engines -------------------------------------------------------------------------------------------------------


class AgentEffect:
    """What the shell does for the core; those that a peer or the reader is told are `kvproto.commands`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ReserveAnswered(AgentEffect):
    """OK: there is room at `offset` of the pool. Otherwise why there is none."""

    engine: EngineId
    request: int
    status: Status
    lease: LeaseId = NO_LEASE
    offset: int = 0


@dataclass(frozen=True, slots=True)
class CommitAnswered(AgentEffect):
    """OK: the chunk is READY and has this digest."""

    engine: EngineId
    request: int
    status: Status
    digest: Digest = NO_DIGEST


class FetchAnswered(NamedTuple):
    """Leading chunks, pinned for the lease, and why it stopped there."""

    engine: EngineId
    request: int
    status: Status
    lease: LeaseId = NO_LEASE
    chunks: tuple[FetchedChunk, ...] = ()
    places: tuple[int, ...] | None = None
    """Of a fetch in any order: the index of each chunk among the keys asked for."""


@dataclass(frozen=True, slots=True)
class FetchPartAnswered(AgentEffect):
    """Leading chunks of a fetch that streams, which follow on those of the parts before; pinned for the lease."""

    engine: EngineId
    request: int
    lease: LeaseId
    chunks: tuple[FetchedChunk, ...]


@dataclass(frozen=True, slots=True)
class PartsAnswered(AgentEffect):
    """Where ranges of chunks lie, pinned for the lease, and why the first chunk missing is missing."""

    engine: EngineId
    request: int
    status: Status
    lease: LeaseId = NO_LEASE
    parts: tuple[FetchedParts, ...] = ()
    outside: tuple[int, int] | None = None
    """With OUT_OF_CHUNK: index of a key, and the bytes that its chunk has."""


@dataclass(frozen=True, slots=True)
class KeysAnswered(AgentEffect):
    """One byte for each key: a `Where` for CONTAINS; for all others whether it was done."""

    engine: EngineId
    request: int
    kind: Kind
    values: bytes


@dataclass(frozen=True, slots=True)
class ChunksKept(AgentEffect):
    """What is here of the chunks that a ChunksNamed named is kept."""

    engine: EngineId
    request: int
    goes_on: bool
    """Whether more of the fetch should be named; else it should be requested now."""


@dataclass(frozen=True, slots=True)
class LeaseLeft(AgentEffect):
    """Chunks are left of a lease of which a LeaseReleased gave back some."""

    engine: EngineId
    lease: LeaseId


# --- to the network ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CastSegments(AgentEffect):
    """Send segments [first, first+count) to the fabric's group; answered by SegmentsSent or SendFailed."""

    chunk: Chunk
    first: int
    count: int
    blocks: tuple[int, ...] = ()
    """Of multicast: to the groups of these blocks of members, in place of the fabric's."""
    rail: int = 0
    """By which they leave."""


@dataclass(frozen=True, slots=True)
class FillSegments(AgentEffect):
    """Send segments [first, first+count) to the switch's pool address; answered by FillSent.

    With `cast_too` the switch casts them as well, and they are answered as CastSegments.
    """

    chunk: Chunk
    first: int
    count: int
    pool_address: Address
    cast_too: bool = False


@dataclass(frozen=True, slots=True)
class StartRead(AgentEffect):
    """Read a range of a chunk reliably into the pool; answered by ReadProgress and ReadDone, ReadsProven or
    ReadFailed."""

    read: ReadId
    node: str
    endpoint: str
    chunk: Chunk
    """FILLING; the bytes go to the same place in it."""
    first: int
    """Segment."""
    count: int
    offset: int
    """Bytes from the beginning of the chunk."""
    size_bytes: int
    wanted_bytes: int
    """What this node still wants of the holder, this included."""
    segment_bytes: int
    is_provable: bool = False
    """Nobody else writes there, and it is whole pieces: whoever hashes it on its way says so with ReadsProven."""


@dataclass(frozen=True, slots=True)
class ReadPieces(AgentEffect):
    """Read a range of a chunk reliably into memory that is no chunk; answered by ReadDone or ReadFailed, unless
    aborted."""

    read: ReadId
    node: str
    endpoint: str
    into: Chunk
    """FILLING apart, with the chunk's key."""
    pool_offset: int
    """Where the range's first byte goes, inside of `into`."""
    offset: int
    """Bytes from the beginning of the chunk."""
    size_bytes: int
    wanted_bytes: int
    """What this node wants of the chunk, this included."""


@dataclass(frozen=True, slots=True)
class RelayRead(AgentEffect):
    """Read pieces of a chunk that comes by relays to their place; answered by RelayReadEnded, unless aborted."""

    run: ReadRun
    chunk: Chunk
    """FILLING."""


@dataclass(frozen=True, slots=True)
class ShowPieces(AgentEffect):
    """Pieces of a chunk that comes by relays are proven: peers may read them."""

    chunk: Chunk
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class HidePieces(AgentEffect):
    """A chunk does not come by relays any more: it is READY, or given up."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class ReadLeaves(AgentEffect):
    """Read the leaves of a chunk's tree from a holder; answered by LeavesRead or ReadFailed, unless aborted."""

    read: ReadId
    node: str
    endpoint: str
    key: ChunkKey
    size_bytes: int
    """Of the leaves."""


@dataclass(frozen=True, slots=True)
class ExpectCasts(AgentEffect):
    """Cast segments of a chunk may come: those of `missing` go to their places in `chunk`, and all are reported.

    The core owns `missing` and clears entries as segments come, whichever way they come.
    """

    chunk: Chunk
    """FILLING."""
    missing: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ChunkProven(AgentEffect):
    """Reads brought a chunk whole, and what its bytes are was found out on their way: for whoever traces a fetch."""

    chunk: Chunk


@dataclass(frozen=True, slots=True)
class ForgetCasts(AgentEffect):
    """Write no more cast segments of this chunk."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class PeerLoadEnded(AgentEffect):
    """A chunk that a peer wanted from disk is in the pool (answered by PeerReadEnded), or is not."""

    key: ChunkKey
    chunk: Chunk | None


@dataclass(frozen=True, slots=True)
class DatagramsDropped(AgentEffect):
    """For the transport's counters."""

    reason: str
    count: int = 1


# --- to memory and disk -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeChunk(AgentEffect):
    """Copy a chunk from an engine's write region into its place in the pool, and hash the copy; answered by
    ChunkTaken."""

    chunk: Chunk
    engine: EngineId
    region_offset: int
    integrity: Integrity


@dataclass(frozen=True, slots=True)
class ComputeDigest(AgentEffect):
    """Hash a chunk, in a way that need not be the fabric's; answered by DigestComputed."""

    chunk: Chunk
    integrity: Integrity
    use: DigestUse

    @property
    def in_background(self) -> bool:
        """Nobody waits for it: it is not to hold anything up."""
        return self.use in (DigestUse.ADOPTION, DigestUse.RECHECK)


@dataclass(frozen=True, slots=True)
class HashPieces(AgentEffect):
    """Hash pieces of a FILLING chunk (`hostagent.tree`): nobody writes to them while it is awaited. ComputeDigest uses
    their leaves."""

    chunk: Chunk
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ForgetPieces(AgentEffect):
    """What HashPieces began for this chunk is of no use."""

    chunk: Chunk


@dataclass(frozen=True, slots=True)
class LoadChunk(AgentEffect):
    """Read a stored chunk into a FILLING one of the pool; answered by LoadEnded."""

    into: Chunk


@dataclass(frozen=True, slots=True)
class SaveChunk(AgentEffect):
    """Store a READY chunk on disk; answered by SaveEnded."""

    chunk: Chunk
    form: Form = Form.RAW


@dataclass(frozen=True, slots=True)
class ForgetStored(AgentEffect):
    """Take a chunk off the disk."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class LookUp(AgentEffect):
    """Ask the controller who has chunks, and tell it of which this node wants to hear no more; answered by LookedUp."""

    number: int
    keys: tuple[ChunkKey, ...]
    released: tuple[ChunkKey, ...] = ()
    root: ChunkKey | None = None
    """The first chunk of their prefix, where that is known."""


@dataclass(frozen=True, slots=True)
class AttachAgain(AgentEffect):
    """What this node said of itself to the controller is no longer true."""

    reason: str


@dataclass(frozen=True, slots=True)
class LookUpCold(AgentEffect):
    """Whether the cold store has chunks, and what it says of them; answered by ColdLookedUp."""

    number: int
    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class LoadCold(AgentEffect):
    """Read a chunk from the cold store into a FILLING one of the pool; answered by ColdLoadEnded."""

    into: Chunk
    digest: Digest
    """That its bytes must have."""
    stored: StoredForm | None = None
    """How it lies there, as far as is known; None: as it is."""


@dataclass(frozen=True, slots=True)
class SaveCold(AgentEffect):
    """Write a READY chunk to the cold store; answered by ColdSaveEnded."""

    chunk: Chunk
    form: Form = Form.RAW


@dataclass(frozen=True, slots=True)
class ForgetCold(AgentEffect):
    """Take a chunk out of the cold store, for everybody."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class EncodeTwin(AgentEffect):
    """Turn a READY chunk into a form of fewer bytes; answered by TwinEncoded."""

    chunk: Chunk
    form: Form


@dataclass(frozen=True, slots=True)
class PlaceTwin(AgentEffect):
    """Write a chunk in its form into a FILLING chunk, and hash that; answered by TwinPlaced."""

    into: Chunk
    content: bytes | memoryview
    integrity: Integrity


@dataclass(frozen=True, slots=True)
class DecodeTwin(AgentEffect):
    """Turn a READY twin back into a FILLING chunk, and hash that; answered by TwinDecoded."""

    twin: Chunk
    into: Chunk
    form: Form
    integrity: Integrity


@dataclass(frozen=True, slots=True)
class Flushed(AgentEffect):
    """Answer to FlushRequested: everything is on disk."""


# --- to the controller (which may be away) ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announce(AgentEffect):
    """What this node holds in its pool, or on its disk (part of the whole list), or how that changed."""

    added: Sequence[Chunk]
    removed: Sequence[ChunkKey]
    pinned: Sequence[ChunkKey]
    on_disk: bool = False
    snapshot: bool = False
    snapshot_end: bool = False


class ChunkUse(NamedTuple):
    """One chunk of a fetch."""

    key: ChunkKey
    source: ChunkSource | None
    """None: it did not come."""
    network_bytes: int
    waited_s: float
    holder: int
    """Number of the node that it came from; 0 where that means nothing."""
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReuseHint:
    """What an engine said of a chunk's future."""

    key: ChunkKey
    hint: Hint
    within_ms: int


@dataclass(frozen=True, slots=True)
class WarmWish:
    """A starting engine would like the hottest chunks of a namespace."""

    namespace: str
    """As the fabric calls it."""
    size_bytes: int
    """The most to bring."""
    nodes: int
    """So many nodes start such an engine about now; 0: unknown."""
    wait_ms: int
    """How long it waits for the others."""


@dataclass(frozen=True, slots=True)
class ReportUsage(AgentEffect):
    """What fetches used, what engines hinted, and what sources took since the last report."""

    uses: Sequence[ChunkUse]
    hints: Sequence[ReuseHint]
    measurements: Sequence[Measurement]
    at_ns: int
    past: Sequence[tuple[ChunkKey, PastFetches]] = ()
    """What other controllers were told of, for one that has just come to lead."""
    warms: Sequence[WarmWish] = ()
    """What starting engines would like to have."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """A chunk on its way into the pool."""

    key: ChunkKey
    size_bytes: int
    left_bytes: int
    """Still to come."""


@dataclass(frozen=True, slots=True)
class GateNews:
    """What the gate has decided since the agent started."""

    decisions: Mapping[str, int]
    """By choice."""
    saved_s: float
    """What engines would have waited longer, recomputing."""
    last: Verdict | None
    ways: Sequence[Standing] = ()
    """How chunks come that several want."""


@dataclass(frozen=True, slots=True)
class ReportClaims(AgentEffect):
    """What this node's engines compute, and what of that they do not compute any more."""

    made: Sequence[ClaimedChunk]
    withdrawn: Sequence[ChunkKey]


@dataclass(frozen=True, slots=True)
class ReportInterests(AgentEffect):
    """Namespaces that this node's engines use now; None: all that it may have."""

    patterns: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ProbePath(AgentEffect):
    """Try to connect to a node; answered by PathProbed."""

    node: str
    endpoint: str
    """Of its reads."""


@dataclass(frozen=True, slots=True)
class PathChanged(AgentEffect):
    """A node cannot be reached on the data network, or can be again."""

    node: str
    reached: bool


@dataclass(frozen=True, slots=True)
class ReportPaths(AgentEffect):
    """Tell the controller which nodes this one reaches, or not."""

    nodes: tuple[int, ...]
    reached: bool


@dataclass(frozen=True, slots=True)
class BeatHeart(AgentEffect):
    """Figures of this moment; the shell adds those of its transport."""

    usage: PoolUsage
    directory_sequence: int
    tasks_running: int
    next_victims: Sequence[ChunkKey]
    disk_used_bytes: int
    arriving: Sequence[Arriving]
    """Some of them."""
    gate: GateNews


@dataclass(frozen=True, slots=True)
class ReportTaskProgress(AgentEffect):
    """How far a task of the controller has come."""

    task: int
    done: int
    total: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class ReportTaskEnd(AgentEffect):
    """How a task of the controller ended."""

    task: int
    status: TaskStatus
    done: int
    """Chunks, or segments of a fill."""
    moved_bytes: int
    failed_keys: Sequence[ChunkKey]
    detail: str


@dataclass(frozen=True, slots=True)
class ReportBadCopy(AgentEffect):
    """A holder's copy was no good. With Blame.DIGEST the shell reports it to the controller."""

    key: ChunkKey
    holder: NodeId
    holder_node: int
    blame: Blame
    expected: Digest
    found: Digest
    from_switch: bool


@dataclass(frozen=True, slots=True)
class ReportLoad(AgentEffect):
    """What this node has queued for its readers has changed much."""

    load: HolderLoad


# --- for figures ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchPlanned(AgentEffect):
    """What was decided for the ChunksRequested under way, if it is traced: the leading chunks that will be here."""

    here: tuple[ChunkKey, ...]
    """In the pool."""
    to_come: tuple[tuple[ChunkKey, int, Tier], ...]
    """(key, bytes, where it is asked of), those included that are under way for other fetches."""
    awaited: tuple[ChunkKey, ...]
    """Those that are still being computed, and follow once they are there."""
    choice: Choice
    stopped: Status
    """Why the chunks asked for go no further; OK when they do."""
    expected_s: float
    recompute_s: float | None


class FetchEnded(NamedTuple):
    """Any fetch, whoever wanted it."""

    status: Status
    seconds: float
    delivered: tuple[tuple[ChunkSource, int, int], ...]
    """Of the leading chunks: (how they came, how many, bytes)."""


@dataclass(frozen=True, slots=True)
class PoolAdopted(AgentEffect):
    """The pool of the agent before is taken over."""

    chunks_count: int
    size_bytes: int
    lost_count: int
    """Whose bytes were not right."""


@dataclass(frozen=True, slots=True)
class ReservationEnded(AgentEffect):
    """An engine asked for room: "reserved", or why not."""

    outcome: str


# --- lone gets (`hostagent.core.lone_chunks`) ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfferLone(AgentEffect):
    """Engines may get this chunk from this node by a lone get, from now on; also instead of what was said before."""

    key: ChunkKey
    size_bytes: int
    digest: Digest
    node: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class WithdrawLone(AgentEffect):
    """And this one no more."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class TellLoneCosts(AgentEffect):
    """What a chunk from another node costs, for those who weigh that with computing."""

    cost: SourceCost


@dataclass(frozen=True, slots=True)
class TakeLone(AgentEffect):
    """Copy what a lone get brought to its place in the pool; answered by LoneTaken, in the course of this. None: nobody
    wants the bytes."""

    buffer: int
    chunk: Chunk | None


Effect: TypeAlias = AgentEffect | SendControl | FetchEnded | FetchAnswered | AbortRead | LinkCommand
