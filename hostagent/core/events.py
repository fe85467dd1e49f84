"""The events that an agent's shell feeds to its core. Values only; `now_ns` travels with them, never inside.

Events of the network are in `kvproto.events`; the others are here: engines, the controller, the disk, hashing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType, TypeAlias

from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.directory import Delta
from hostagent.core.work import Task
from hostagent.pool.chunks import Chunk
from hostagent.pool.index import Found
from hostagent.pool.tenants import EngineId as EngineId
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey, Digest
from kvchunk.parts import ByteRange
from kvclient.messages import Hint, Kind
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.form_costs import FormWork
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.tiers.prefill import Prefill
from kvproto import events as protocol
from kvproto.fanout import Fanout
from kvproto.ids import Address, Member, ReadId
from kvproto.integrity import NO_DIGEST, Integrity
from kvproto.wire.relay_messages import Message

LeaseId = NewType("LeaseId", int)
NO_LEASE = LeaseId(0)

# --- of engines: `request` is the engine's own number, which the answer bears -----------------------------------------


class AgentEvent:
    """What the core hears of the shell; what the protocol's machines hear, too, is in `kvproto.events`."""

    __slots__ = ()


class EngineEvent(AgentEvent):
    """What an engine of this node asks or says."""

    __slots__ = ()


class ControllerEvent(AgentEvent):
    """What the controller says."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ReserveRequested(EngineEvent):
    """Room for a chunk that the engine writes; answered by ReserveAnswered."""

    engine: EngineId
    request: int
    key: ChunkKey
    parent: ChunkKey | None
    size_bytes: int
    position: int | None
    namespace: str


@dataclass(frozen=True, slots=True)
class CommitRequested(EngineEvent):
    """A reserved chunk is written; answered by CommitAnswered."""

    engine: EngineId
    request: int
    lease: LeaseId
    region_offset: int | None = None
    """Where it lies in the engine's write region; None: in its place in the pool, where only the agent writes."""


@dataclass(frozen=True, slots=True)
class AbortRequested(EngineEvent):
    """A reserved chunk is given up."""

    engine: EngineId
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class ChunksRequested(EngineEvent):
    """The engine wants chunks, distinct, in prefix order; answered by FetchAnswered unless cancelled."""

    engine: EngineId
    request: int
    keys: tuple[ChunkKey, ...]
    deadline_s: float
    prefill: Prefill | None
    """What it would cost the engine to compute all of them; None: it does not say."""
    expected_s: float = 0.0
    """Chunks that nobody has or computes will be claimed or put within this time."""
    traceparent: str = ""
    """The engine's trace context, for the shell; the core makes nothing of it."""
    traced: bool = False
    """Whether FetchPlanned is wanted."""
    any_order: bool = False
    """Each chunk is of use by itself: one that is missing ends nothing."""
    streamed: bool = False
    """Leading chunks are answered as they come, by FetchPartAnswered, and FetchAnswered has the rest. Not with
    `any_order`."""


@dataclass(frozen=True, slots=True)
class ChunksNamed(EngineEvent):
    """Some chunks of a ChunksRequested with the same `request` that follows: those that are here are kept for it.
    Answered by ChunksKept."""

    engine: EngineId
    request: int
    first: int
    """Index of the first of them among the keys of the request."""
    keys: tuple[ChunkKey, ...]
    deadline_s: float
    """Of the request, from the first ChunksNamed on."""
    any_order: bool = False


@dataclass(frozen=True, slots=True)
class PartsRequested(EngineEvent):
    """The engine wants the same ranges of each of these chunks, distinct; answered by PartsAnswered."""

    engine: EngineId
    request: int
    keys: tuple[ChunkKey, ...]
    ranges: tuple[ByteRange, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class CancelRequested(EngineEvent):
    """A fetch is no longer wanted: FetchAnswered says CANCELLED, unless it was answered already."""

    engine: EngineId
    request: int


@dataclass(frozen=True, slots=True)
class LeaseReleased(EngineEvent):
    """The engine has read what a fetch gave it."""

    engine: EngineId
    lease: LeaseId
    count: int | None = None
    """Give back only so many of its chunks; LeaseLeft says that there are others. None: all of them."""


@dataclass(frozen=True, slots=True)
class KeysRequested(EngineEvent):
    """Something is wanted of each of some chunks; answered by KeysAnswered."""

    engine: EngineId
    request: int
    kind: Kind
    """CONTAINS: where it is. PIN: keep it in the pool until UNPIN, which takes a pin of this engine back. LOCK: keep it
    there for `hold_s` at most, or until UNLOCK, which takes the lock of this engine back that ends first. DROP: take it
    out of the pool and off the disk."""
    keys: tuple[ChunkKey, ...]
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HintGiven(EngineEvent):
    """An engine knows something of the future."""

    keys: tuple[ChunkKey, ...]
    hint: Hint
    within_ms: int


@dataclass(frozen=True, slots=True)
class WarmWished(EngineEvent):
    """An engine starts: it would like the hottest chunks of a namespace."""

    engine: EngineId
    namespace: str
    """As the engine calls it."""
    size_bytes: int
    """The most to bring."""
    nodes: int
    """So many nodes start such an engine about now; 0: unknown."""
    wait_ms: int
    """How long it waits for the others."""


@dataclass(frozen=True, slots=True)
class ClaimMade(EngineEvent):
    """The engine computes chunks, in prefix order; again with other times whenever these change."""

    engine: EngineId
    keys: tuple[ChunkKey, ...]
    size_bytes: int
    """Of each."""
    etas_s: tuple[float, ...]
    """From now on until each is there."""
    request: int = 0
    """Answered by KeysAnswered only where some may not be claimed."""


@dataclass(frozen=True, slots=True)
class ClaimWithdrawn(EngineEvent):
    """The engine does not compute these; None: nothing of what it has claimed."""

    engine: EngineId
    keys: tuple[ChunkKey, ...] | None


@dataclass(frozen=True, slots=True)
class EngineConnected(EngineEvent):
    """A connection begins; `tenant`: whose engine it is. Engines that never came are nobody's."""

    engine: EngineId
    tenant: str


@dataclass(frozen=True, slots=True)
class EngineDisconnected(EngineEvent):
    """A connection ended, whoever ended it: what its engine held is given back."""

    engine: EngineId


# --- of the controller ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FiguresWanted(AgentEvent):
    """Somebody is about to look at the figures: count what engines have read without asking first."""


@dataclass(frozen=True, slots=True)
class Welcomed(ControllerEvent):
    """The controller has accepted this node; a snapshot of the directory follows."""

    controller: int
    """Its incarnation."""
    node: int
    member: Member | None
    segment_bytes: int
    pool_address: Address | None
    """Where FILL goes; None: as before."""
    interest_ttl_ns: int
    """0: not said."""
    heartbeat_s: float
    """0: as usual."""
    integrity: Integrity = Integrity.BLAKE3
    """How the fabric's chunks are digested."""
    takes_loads: bool = True
    """It wants to hear what is queued for readers."""
    fanout: Fanout = Fanout.SWITCH
    unasked_weight: float = 0.0
    """See `kvproto.blocks.cover`."""
    takes_look_ups: bool = False
    """It may be asked for chunks."""
    follows: bool = False
    """It tells this node only of those that it follows, although this node did not ask for that."""


@dataclass(frozen=True, slots=True)
class LookedUp(ControllerEvent):
    """Answer to LookUp; number 0: this node will need them."""

    number: int
    found: Delta
    refused: bool = False
    elsewhere: bool = False
    """Another cell is home to the prefix."""


@dataclass(frozen=True, slots=True)
class DirectoryChanged(ControllerEvent):
    """The directory has news."""

    delta: Delta


@dataclass(frozen=True, slots=True)
class SwitchStateGiven(ControllerEvent):
    """The switch as the controller sees it: its epoch, or None where no switch answers."""

    epoch: int | None
    here: ChunkKey | None = None
    """What to say to the switch, so that the controller learns where this node is; None: nothing."""


@dataclass(frozen=True, slots=True)
class MemberGiven(ControllerEvent):
    """This node's index at its switch, once it was seen there; None: it takes part in no cast."""

    member: Member | None
    fanout: Fanout | None = None
    """How the fabric fans out from now on; None: as before."""
    unasked_weight: float = 0.0
    """Of that."""


@dataclass(frozen=True, slots=True)
class TaskGiven(ControllerEvent):
    """Work; answered by TaskEnded."""

    task: Task


@dataclass(frozen=True, slots=True)
class TaskCancelled(ControllerEvent):
    """The controller no longer wants a task."""

    number: int


@dataclass(frozen=True, slots=True)
class ControllerLost(ControllerEvent):
    """The stream to the controller ended."""


# --- of the disk and of hashing ---------------------------------------------------------------------------------------


class LoadOutcome(enum.Enum):
    """How reading a stored chunk ended."""

    DONE = "done"
    ABSENT = "absent"
    DAMAGED = "damaged"
    """The bytes do not match their digest; the copy is gone now."""
    FAILED = "failed"
    """The disk did not deliver."""


class SaveOutcome(enum.Enum):
    """How storing a chunk ended."""

    STORED = "stored"
    FAILED = "failed"
    REFUSED = "refused"
    """Nothing was written: there is no room, or it is being stored already."""


@dataclass(frozen=True, slots=True)
class LoadEnded(AgentEvent):
    """Answer to LoadChunk."""

    into: Chunk
    outcome: LoadOutcome
    hashed: Hashed
    """Of what was read; NOT_HASHED where nothing was."""


@dataclass(frozen=True, slots=True)
class SaveEnded(AgentEvent):
    """Answer to SaveChunk."""

    chunk: Chunk
    outcome: SaveOutcome


@dataclass(frozen=True, slots=True)
class ChunkTaken(AgentEvent):
    """Answer to TakeChunk. `hashed` None: the engine's write region does not have those bytes."""

    chunk: Chunk
    hashed: Hashed | None


class DigestUse(enum.Enum):
    """What a digest is computed for: the part that asks for it gets the answer."""

    ARRIVAL = "arrival"
    """A chunk came from elsewhere."""
    PARTS = "parts"
    """Pieces of a chunk came from another node."""
    PUT = "put"
    """An engine wrote a chunk in its place."""
    ADOPTION = "adoption"
    """A chunk lay in the pool of the agent before."""
    RECHECK = "recheck"
    """A chunk that is READY is doubted."""


@dataclass(frozen=True, slots=True)
class DigestComputed(AgentEvent):
    """Answer to ComputeDigest."""

    chunk: Chunk
    hashed: Hashed
    use: DigestUse


@dataclass(frozen=True, slots=True)
class LeavesRead(AgentEvent):
    """Answer to ReadLeaves, as the holder gave it."""

    read: ReadId
    leaves: bytes


@dataclass(frozen=True, slots=True)
class ReadProven:
    """A reliable read is over, and was hashed on its way."""

    read: ReadId
    offset: int
    """Of its first byte in the chunk, which begins a piece."""
    leaves: bytes


@dataclass(frozen=True, slots=True)
class ReadsProven(AgentEvent):
    """Reliable reads that ended together."""

    reads: tuple[ReadProven, ...]


@dataclass(frozen=True, slots=True)
class FormMeasured(AgentEvent):
    """A chunk was turned into a form of fewer bytes, or back."""

    work: FormWork


# --- of the cold store ------------------------------------------------------------------------------------------------


class ColdState(enum.Enum):
    """Which operations of the store work at present."""

    AWAY = "away"
    """It does not answer, or has not been tried: the agent sends it nothing but trials."""
    READING = "reading"
    """Writes fail, reads work."""
    ON = "on"


@dataclass(frozen=True, slots=True)
class ColdStateGiven(AgentEvent):
    """What the cold store is good for from now on; it begins as AWAY."""

    state: ColdState


@dataclass(frozen=True, slots=True)
class ColdProbed(AgentEvent):
    """A trial object was read in `seconds`, and a look took `lookup_s`, nothing else being under way."""

    size_bytes: int
    seconds: float
    lookup_s: float


@dataclass(frozen=True, slots=True)
class ColdLookedUp(AgentEvent):
    """Answer to LookUpCold; what the store did not say is in none of them."""

    number: int
    found: tuple[ChunkEntry, ...]
    absent: tuple[ChunkKey, ...] = ()
    damaged: tuple[ChunkKey, ...] = ()
    """Something is there that is not this chunk."""


@dataclass(frozen=True, slots=True)
class ColdLoadEnded(AgentEvent):
    """Answer to LoadCold."""

    into: Chunk
    outcome: LoadOutcome
    hashed: Hashed


@dataclass(frozen=True, slots=True)
class ColdSaveEnded(AgentEvent):
    """Answer to SaveCold."""

    chunk: Chunk
    outcome: SaveOutcome
    stored: StoredForm | None = None
    """How it lies there; None: as it is."""
    digest: Digest = NO_DIGEST
    """Of what a load will give, where that is not what was saved."""


@dataclass(frozen=True, slots=True)
class TwinEncoded(AgentEvent):
    """Answer to EncodeTwin."""

    chunk: Chunk
    form: Form
    """That it got: RAW where none is smaller."""
    content: bytes | memoryview
    work: FormWork | None


@dataclass(frozen=True, slots=True)
class TwinPlaced(AgentEvent):
    """Answer to PlaceTwin."""

    into: Chunk
    hashed: Hashed


@dataclass(frozen=True, slots=True)
class TwinDecoded(AgentEvent):
    """Answer to DecodeTwin."""

    into: Chunk
    whole: bool
    """Whether the twin was one."""
    hashed: Hashed
    """Of the chunk; NOT_HASHED where there is none."""
    work: FormWork | None


# --- of peers, time and the process -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlsReceived(AgentEvent):
    """Control datagrams that came together, in order."""

    arrivals: tuple[protocol.ControlReceived, ...]


@dataclass(frozen=True, slots=True)
class CastsPlaced(AgentEvent):
    """Segments of chunks with expected casts lie at their places; duplicates are among them."""

    arrivals: tuple[protocol.SegmentsReceived, ...]


@dataclass(frozen=True, slots=True)
class CastsUnexpected(AgentEvent):
    """Segments of chunks without expected casts came; they are lost."""

    arrivals: tuple[protocol.SegmentsReceived, ...]


@dataclass(frozen=True, slots=True)
class FillSent(AgentEvent):
    """The transport is done with segments of a fill."""

    key: ChunkKey
    count: int


@dataclass(frozen=True, slots=True)
class PeerLoadRequested(AgentEvent):
    """A peer wants to read a chunk that is on this node's disk; answered by PeerLoadEnded."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class PeerReadEnded(AgentEvent):
    """A peer has read a chunk that `AgentCore.lend` gave out, or PeerLoadEnded."""

    chunk: Chunk


@dataclass(frozen=True, slots=True)
class PeersRead(AgentEvent):
    """Peers read chunks, from the first byte on: a reader reads a chunk in stripes, and counts once."""

    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class Started(AgentEvent):
    """The shell's sockets are open, and its disk, if it has one."""

    receive_buffer_bytes: int
    """Of casts, as really granted."""
    casts_by_nic: bool = False
    """An RDMA NIC may make this node's casts: datagrams with other contents it does not make."""
    read_endpoint: str = ""
    """Where peers read from this node."""


@dataclass(frozen=True, slots=True)
class Moved(AgentEvent):
    """The data network changed: peers read from this node elsewhere from now on."""

    read_endpoint: str


@dataclass(frozen=True, slots=True)
class HolderTold(AgentEvent):
    """A holder says, with the answer to a read, what it has queued for others than this node."""

    node: str
    load: HolderLoad


@dataclass(frozen=True, slots=True)
class PathProbed(AgentEvent):
    """A connection to a node was tried."""

    node: str
    reached: bool | None
    """None: this node could not even try."""


@dataclass(frozen=True, slots=True)
class PoolFound(AgentEvent):
    """The memory is that of the agent before; `found`: what that had given out. Before Started: nothing else has
    been given out yet."""

    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class FlushRequested(AgentEvent):
    """The process is about to end: write unsaved chunks to disk; answered by Flushed."""


@dataclass(frozen=True, slots=True)
class Stopped(AgentEvent):
    """The shell's sockets are closed: whatever is under way is given up and given back."""


@dataclass(frozen=True, slots=True)
class TimerFired(AgentEvent):
    """The time of `next_timeout_ns` has come (or not: being early is allowed)."""


@dataclass(frozen=True, slots=True)
class RelayHeard(AgentEvent):
    """A relay link brought messages in order, of those that its peer may send."""

    link: str | int
    """Endpoint of the parent that this node made it to, or the number of one that another node made."""
    messages: tuple[Message, ...] = ()
    lost: bool = False
    """It could not be made, or has ended."""


@dataclass(frozen=True, slots=True)
class RelayReadEnded(AgentEvent):
    """A RelayRead is over."""

    read: ReadId
    key: ChunkKey
    first: int
    """Piece."""
    leaves: bytes | None
    """Of what came; None: not all of it came."""


@dataclass(frozen=True, slots=True)
class RelaysHappened(AgentEvent):
    """What the relays' links and reads brought in one turn of the event loop, in order: it is decided once of all."""

    events: tuple[RelayHeard | RelayReadEnded, ...]


@dataclass(frozen=True, slots=True)
class LoneGot(AgentEvent):
    """An engine has a chunk by a lone get. Its bytes, which have this digest, are kept until TakeLone."""

    engine: EngineId
    key: ChunkKey
    size_bytes: int
    digest: Digest
    node: str
    took_s: float
    buffer: int


@dataclass(frozen=True, slots=True)
class LoneTaken(AgentEvent):
    """A chunk lies at its place in the pool, and this is what it is."""

    chunk: Chunk
    hashed: Hashed


Event: TypeAlias = (
    AgentEvent
    | protocol.SegmentsReceived
    | protocol.ReadProgress
    | protocol.ReadDone
    | protocol.ReadFailed
    | protocol.SegmentsSent
    | protocol.SendFailed
)
