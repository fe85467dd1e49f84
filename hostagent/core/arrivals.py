"""Chunks on their way into the pool: runs the protocol's reader, which decides whom to ask for what, and when.

Owns their memory until they are whole or given up, the reads under way, which pieces are hashed early, and what is
found out about wrong bytes. Who wants a chunk, and what becomes of those, is the affair of `Fetches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from hostagent.core import effects
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.clock import Alarm
from hostagent.core.directory import NodeEntry
from hostagent.core.events import DigestUse, LeavesRead, ReadsProven
from hostagent.core.fetch import MakeReader, Wanted
from hostagent.core.node import Node
from hostagent.core.relays import Relays, found_of
from hostagent.core.sources import SWITCH_NODE, StandIn
from hostagent.pool.chunks import Chunk
from hostagent.tree import LEAF_BYTES, NOT_HASHED, PIECE_BYTES, ROOT_CODE, Hashed, leaves_bytes, root_of, wrong_segments
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvpolicy.value import Tier
from kvproto import events
from kvproto.commands import (
    AbortRead,
    Blame,
    ChunkGone,
    ChunkHere,
    DoubtHolder,
    ReaderCommand,
    ReadLeaves,
    ReportBadCopy,
    SegmentsDropped,
    SendControl,
    StartRead,
    VerifyChunk,
)
from kvproto.ids import Address, FetchId, ReadId
from kvproto.integrity import NO_DIGEST, algorithm_of
from kvproto.session.parameters import ReaderParameters
from kvproto.wire.control import Op

PIECES_MIN: Final = 4
"""A way to a hashing thread and back costs as much as hashing two pieces."""
CHUNK_PIECES_MIN: Final = 3 * PIECES_MIN
"""Of smaller chunks, the whole digest takes no longer than that way."""


@dataclass(slots=True, eq=False)
class InboundChunk:
    """A chunk on its way into the pool."""

    chunk: Chunk
    """FILLING, with room for all its bytes."""
    entry: ChunkEntry
    segments_count: int
    route: Tier
    """Where it was asked of first; REMOTE_DRAM once this node's disk has failed to deliver it."""
    order: int
    """Place among all chunks on their way: fetches in order of their beginning, chunks in prefix order."""
    fetches: set[FetchId] = field(default_factory=set)
    """Who wants it."""
    last_source: Address | None = None
    """Who sent the last of it."""
    whole: bool = False
    """All of it came; it is being verified."""
    from_switch: int = 0
    """Segments that came from the switch's memory."""
    pieces_given: npt.NDArray[np.bool_] | None = None
    """Pieces that are being hashed already; None: none."""
    unlooked: int = 0
    """Segments that came since it was last looked whether pieces of it can be hashed."""
    reckoned_bytes: int | None = None
    """What the gate reckons with, where the source has the chunk in fewer bytes; None: the chunk's own."""
    from_casts: int = 0
    """Segments that came by cast, those from the switch's memory included."""
    stand_in: StandIn | None = None
    """By which it comes; None: as it is."""
    decoded_from: ChunkSource | None = None
    """Where its stand-in came from, once that is here."""
    found: Hashed = NOT_HASHED
    """What its bytes turned out to be."""
    is_cast: bool = False
    """Casts of it are expected, or came: others than reads may write to it."""
    is_asked: bool = False
    """The reader or a relay brings it; else this node's disk, the cold store or a stand-in does."""
    is_relay_over: bool = False
    """It could not come by relays, or was left to reads."""
    readers: int = 0
    """Relays left it to reads because so many want it and each has it sooner so; 0: they did not."""
    holders: tuple[events.HolderRef, ...] = ()
    """Of one that comes by relays."""
    proven: dict[int, bytes] = field(default_factory=dict)
    """Leaves of reads that were hashed on their way, by where they begin in the chunk."""

    def proves(self) -> bool:
        """Whether reads that nobody else wrote beside brought it whole, and their leaves make its digest. Then it is
        `found`, too."""
        if self.is_cast or self.from_casts or self.found is not NOT_HASHED:
            return False
        leaves, at_bytes = b"", 0
        for offset in sorted(self.proven):
            if offset != at_bytes:
                return False
            leaves += self.proven[offset]
            at_bytes = len(leaves) // LEAF_BYTES * PIECE_BYTES
        if at_bytes < self.chunk.size_bytes or root_of(leaves, self.chunk.size_bytes) != self.entry.digest:
            return False
        self.found = Hashed(self.entry.digest, leaves)
        return True

    def pieces_to_hash(self, unsettled: npt.NDArray[np.bool_], segment_bytes: int) -> tuple[int, ...]:
        """Pieces (`hostagent.tree`) that may be hashed while the rest comes: each is given once, a few at a time.

        A piece is settled when none of its segments is among the `unsettled` (one entry for each of the chunk): nobody
        writes to it any more, unless the chunk turns out to be wrong as a whole.
        """
        per_piece = PIECE_BYTES // segment_bytes
        if (
            self.chunk.size_bytes < CHUNK_PIECES_MIN * PIECE_BYTES
            or per_piece * segment_bytes != PIECE_BYTES
            or not self.is_tree
        ):
            return ()
        if self.pieces_given is None:
            self.pieces_given = np.zeros(-(-len(unsettled) // per_piece), np.bool_)
        # `reduceat` ORs each run of a piece's segments; the last piece may be short.
        busy = np.logical_or.reduceat(unsettled, np.arange(0, len(unsettled), per_piece))
        ready = np.flatnonzero(~(busy | self.pieces_given))
        if len(ready) < PIECES_MIN:
            return ()
        self.pieces_given[ready] = True
        return tuple(ready.tolist())

    def forget_pieces(self) -> bool:
        """What was begun with pieces is of no use. Returns whether any had been given."""
        given, self.pieces_given = self.pieces_given, None
        return given is not None and bool(given.any())

    @property
    def is_tree(self) -> bool:
        """Whether its digest is the root of its leaves."""
        return self.entry.digest.startswith(ROOT_CODE)

    @property
    def came_as(self) -> ChunkSource:
        """How most of it came, of those that come over the network."""
        if 2 * self.from_switch > self.segments_count:
            return ChunkSource.SWITCH
        return ChunkSource.CAST if 2 * self.from_casts > self.segments_count else ChunkSource.HOLDER


Wish = tuple[InboundChunk, tuple[events.HolderRef, ...]]
"""A chunk that is wanted, and who has it."""
Ended = Callable[[Sequence[tuple[InboundChunk, ChunkSource | None]]], None]
"""Takes chunks that are whole and right, with how they came; None for the source: nobody has the chunk any more."""


class Arrivals:
    """Of one node."""

    def __init__(self, node: Node, make_reader: MakeReader, ended: Ended, doubted: Callable[[str], None]) -> None:
        """`doubted(name)`: find out whether a holder can be reached."""
        self._doubted = doubted
        self._directory = node.directory
        self._pool = node.pool
        self._clock = node.clock
        self._emit = node.emit
        self._ended = ended
        self.parameters = node.options.reader
        self._make_reader = make_reader
        self.reader = make_reader(self.parameters)
        self.reader_alarm: Alarm = node.alarms.add(self._reader_due)
        """Due when the reader is about to draw conclusions from silence."""
        self._reads: dict[ReadId, ChunkKey] = {}
        """Reads under way, and the chunks that they are of."""
        self._unstarted: list[ReadId] = []
        """Reads from nodes that have left the directory."""
        self._unstarted_alarm: Alarm = node.alarms.add(self._unstarted_failed)
        self._judging: dict[ReadId, ChunkKey] = {}
        """Leaves that are being read because bytes were wrong, and the chunks that they are of."""
        self._left_at: dict[int, int] = {}
        """Bytes still to come from a node, as reads that begin together say it."""
        self._order = 0
        self.under_way: dict[ChunkKey, InboundChunk] = {}
        self.relays = Relays(
            node,
            self._relayed,
            lambda: self.reader.choice,
            lambda: sum(one.readers > 0 for one in self.under_way.values()),
        )

    # ------------------------------------------------------------------ figures

    def left_bytes(self, inbound: InboundChunk) -> int:
        """Bytes of a chunk still to come; all of them while it is loaded from disk."""
        if inbound.whole:
            return 0
        if inbound.stand_in is not None:
            return self.left_of(inbound.stand_in.key)
        if self.relays.coming and inbound.chunk.key in self.relays.coming:
            return self.relays.left_bytes(inbound.chunk.key)
        missing = self.reader.missing(inbound.chunk.key)
        size_bytes = inbound.entry.size_bytes
        if missing is None:
            return size_bytes if inbound.reckoned_bytes is None else inbound.reckoned_bytes
        return min(size_bytes, int(np.count_nonzero(missing)) * self.parameters.segment_bytes)

    def left_of(self, key: ChunkKey) -> int:
        """The same of the chunk with this key; 0: it is not on its way."""
        inbound = self.under_way.get(key)
        return 0 if inbound is None else self.left_bytes(inbound)

    # ------------------------------------------------------------------ what is wanted

    def begin(self, chunk: Chunk, entry: ChunkEntry, route: Tier) -> InboundChunk:
        """A chunk with room in the pool is on its way from now on; `want` it of the reader, or load it."""
        self._order += 1
        segments_count = -(-entry.size_bytes // self.parameters.segment_bytes)
        inbound = self.under_way[chunk.key] = InboundChunk(chunk, entry, segments_count, route, self._order)
        return inbound

    def want(self, wanted: Sequence[Wish]) -> None:
        """Have the reader bring chunks from these holders, or have them come by relays."""
        asked: list[events.ReaderEvent] = []
        if self.relays.is_way or self.relays.coming:
            wanted = self._without_relayed(wanted)
        for inbound, holders in wanted:
            inbound.is_asked = True
            entry = inbound.entry
            read_alone = entry.served and inbound.route is Tier.REMOTE_DRAM
            asked.append(
                events.ChunkWanted(
                    entry.key,
                    inbound.segments_count,
                    entry.size_bytes,
                    holders,
                    inbound.order,
                    read_alone,
                    inbound.readers,
                )
            )
        self._tell(asked)

    def _without_relayed(self, wanted: Sequence[Wish]) -> Sequence[Wish]:
        """Those that do not come by relays."""
        for inbound, holders in wanted:
            inbound.is_asked, inbound.holders = True, holders
        fresh = [wish for wish in wanted if wish[0].chunk.key not in self.relays.coming]
        taken = self.relays.take(
            (inbound.chunk, inbound.entry, holders)
            for inbound, holders in fresh
            if self.relays.is_way and inbound.route is Tier.REMOTE_DRAM and not inbound.is_relay_over
        )
        return [wish for wish in fresh if wish[0].chunk.key not in taken]

    def _relayed(self, key: ChunkKey, leaves: bytes | None, readers: int) -> None:
        """A chunk came by relays; None: it could not, or was left to reads, and its holders are read as ever."""
        inbound = self.under_way.get(key)
        if inbound is None:
            return
        if leaves is None:
            inbound.is_relay_over, inbound.readers = True, readers
            self.want([(inbound, inbound.holders)])
            return
        inbound.found = found_of(inbound.entry, leaves)
        self._ended([(self._chunk_arrived(key), ChunkSource.HOLDER)])

    def give_up(self, inbounds: Sequence[InboundChunk]) -> None:
        """Nobody wants these any more: nothing writes to them, and their memory goes back to the pool."""
        for inbound in inbounds:
            del self.under_way[inbound.chunk.key]
        self.unwant(inbounds)
        for inbound in inbounds:
            self._pool.abort(inbound.chunk)

    def unwant(self, inbounds: Sequence[InboundChunk]) -> None:
        """Nothing of these comes over the network any more."""
        if self.relays.coming:
            self.relays.give_up([inbound.chunk.key for inbound in inbounds])
        asked = [events.ChunkUnwanted(inbound.chunk.key) for inbound in inbounds if inbound.is_asked]
        if asked:
            self._tell(asked)
        for inbound in inbounds:
            if inbound.is_cast:
                self._emit(effects.ForgetCasts(inbound.chunk.key))
            if inbound.forget_pieces():
                self._emit(effects.ForgetPieces(inbound.chunk))

    def directory_changed(
        self, holders: dict[ChunkKey, tuple[events.HolderRef, ...]], nodes_lost: Iterable[events.HolderLost]
    ) -> None:
        """Other nodes hold chunks that are on their way, or nodes are gone."""
        lost = list(nodes_lost)
        news: list[events.ReaderEvent] = [events.HoldersChanged(holders)] if holders else []
        news += lost
        if news:
            self._tell(news)
        if self.relays.coming:
            for key, refs in holders.items():
                if key in self.under_way:
                    self.under_way[key].holders = refs
                self.relays.holders_changed(key, refs)
        if lost:
            self.relays.nodes_lost(one.node for one in lost)

    def switch_restarted(self) -> None:
        """Its tables are empty."""
        self._tell((events.SwitchChanged(),))

    # ------------------------------------------------------------------ casts

    def wanted(self, key: ChunkKey) -> Wanted | None:
        """The chunk of this key and which of its cast segments may be placed; None: they are not wanted."""
        inbound = self.under_way.get(key)
        missing = self.reader.missing(key) if inbound is not None else None
        return None if inbound is None or missing is None else Wanted(inbound.chunk, inbound.segments_count, missing)

    def controls_received(self, arrivals: Sequence[events.ControlReceived]) -> None:
        """NOTICEs and NAKs."""
        self._tell(arrivals)

    def casts_placed(self, arrivals: Sequence[events.SegmentsReceived]) -> None:
        """Casts came; those that were wanted lie in the pool. For an unwanted chunk a LEAVE may have been lost: the
        reader sends another while the switch still counts us as a reader."""
        for arrived in arrivals:
            inbound = self.under_way.get(arrived.key)
            if inbound is not None and self.reader.missing(arrived.key) is not None:
                inbound.last_source = arrived.source
                if arrived.rail and (sender := self._directory.node_at(arrived.source)) is not None:
                    inbound.last_source = sender.address
                inbound.from_switch += arrived.from_switch
                inbound.from_casts += len(arrived.segments)
                inbound.unlooked += len(arrived.segments)
        self._tell(arrivals)
        enough = PIECES_MIN * PIECE_BYTES // self.parameters.segment_bytes
        for key in {arrived.key for arrived in arrivals}:
            inbound = self.under_way.get(key)
            if inbound is not None and inbound.unlooked >= enough:
                self._hash_early(key)

    def casts_unexpected(self, arrivals: Sequence[events.SegmentsReceived]) -> None:
        """Casts of chunks that the transport did not expect came, and are lost."""
        unwanted = []
        for arrived in arrivals:
            if self.reader.missing(arrived.key) is None:
                unwanted.append(arrived)
            else:
                # It is read by other means; casts that follow are welcome.
                self._expect_casts(arrived.key)
        if unwanted:
            self._emit(effects.DatagramsDropped("cast_unwanted", sum(len(one.segments) for one in unwanted)))
            self._tell(unwanted)

    def _expect_casts(self, key: ChunkKey) -> None:
        inbound, missing = self.under_way.get(key), self.reader.missing(key)
        if inbound is not None and missing is not None:
            inbound.is_cast = True
            self._emit(effects.ExpectCasts(inbound.chunk, missing))

    def _expect_no_casts(self, key: ChunkKey) -> None:
        """This node has left a chunk: what it lacks is read, and proven as it comes."""
        inbound = self.under_way.get(key)
        if inbound is not None and inbound.is_cast and not inbound.whole:
            inbound.is_cast = False
            self._emit(effects.ForgetCasts(key))

    # ------------------------------------------------------------------ reads

    def read_event(self, event: events.ReadProgress | events.ReadDone | events.ReadFailed) -> None:
        """A reliable read progressed or ended; events of an aborted read come too late."""
        key = self._reads.get(event.read)
        if key is None:
            return
        if not isinstance(event, events.ReadProgress):
            del self._reads[event.read]
        self._tell((event,))
        if isinstance(event, events.ReadDone):
            self._hash_early(key)

    def reads_proven(self, event: ReadsProven) -> None:
        """Reads are over that were hashed on their way."""
        done: list[events.ReaderEvent] = []
        for one in event.reads:
            key = self._reads.pop(one.read, None)
            if key is None:
                continue
            inbound = self.under_way[key]
            inbound.proven[one.offset] = one.leaves
            done.append(events.ReadDone(one.read, inbound.proves()))
        if done:
            self._tell(done)

    def leaves_read(self, event: LeavesRead) -> None:
        """A holder's leaves: those that belong to the chunk's digest tell which segments are wrong."""
        key = self._judging.pop(event.read, None)
        inbound = self.under_way.get(key) if key is not None else None
        if self._reads.pop(event.read, None) is None or inbound is None:
            return
        entry, wrong = inbound.entry, None
        if root_of(event.leaves, entry.size_bytes) == entry.digest:
            segment_bytes = self.parameters.segment_bytes
            wrong = wrong_segments(event.leaves, inbound.found.leaves, entry.size_bytes, segment_bytes)
        self._tell((events.ChunkJudged(event.read, wrong),))

    def _start_read(self, command: StartRead) -> None:
        """Ask a holder for segments of a chunk on its way."""
        inbound, segment_bytes = self.under_way[command.key], self.parameters.segment_bytes
        node = self._reading_from(command)
        if node is None:
            return
        if inbound.last_source != node.address and (inbound.last_source or len(inbound.entry.holders) > 1):
            self._left_at.clear()
        inbound.last_source = node.address
        offset = command.first * segment_bytes
        left_bytes = inbound.entry.size_bytes - offset
        size_bytes = min(command.count * segment_bytes, left_bytes)
        is_whole_pieces = not offset % PIECE_BYTES and (size_bytes == left_bytes or not size_bytes % PIECE_BYTES)
        self._emit(
            effects.StartRead(
                command.read,
                node.name,
                node.read_endpoint,
                inbound.chunk,
                command.first,
                command.count,
                offset,
                size_bytes,
                self._left_at_holder(node),
                segment_bytes,
                is_provable=is_whole_pieces and not inbound.is_cast and inbound.is_tree,
            )
        )

    def _left_at_holder(self, holder: NodeEntry) -> int:
        """About what is still to come from a holder: chunks that have begun count whole."""
        left_bytes = self._left_at.get(holder.node)
        if left_bytes is None:
            left_bytes = self._left_at[holder.node] = sum(
                [one.entry.size_bytes for one in self.coming_from(holder) if one.stand_in is None]
            )
        return left_bytes

    def coming_from(self, holder: NodeEntry) -> list[InboundChunk]:
        """Chunks that a holder sends, or may be asked for as long as nobody has been."""
        coming, number, address = [], holder.node, holder.address
        for inbound in self.under_way.values():
            source = inbound.last_source
            if not inbound.whole and (source == address or (source is None and number in inbound.entry.holders)):
                coming.append(inbound)
        return coming

    def _reading_from(self, command: StartRead | ReadLeaves) -> NodeEntry | None:
        """The node to read from; a read from one that has left the directory fails."""
        self._reads[command.read] = command.key
        node = self._directory.node_named(command.holder)
        if node is None:
            self._unstarted.append(command.read)
            self._unstarted_alarm.set(self._clock.now_ns)
        return node

    def _unstarted_failed(self) -> None:
        reads, self._unstarted = self._unstarted, []
        for read in reads:
            self.read_event(events.ReadFailed(read, gone=False))

    def _read_leaves(self, command: ReadLeaves) -> None:
        """Ask a holder for the leaves of a chunk's tree."""
        self._judging[command.read] = command.key
        node = self._reading_from(command)
        if node is not None:
            size_bytes = leaves_bytes(self.under_way[command.key].entry.size_bytes)
            self._emit(effects.ReadLeaves(command.read, node.name, node.read_endpoint, command.key, size_bytes))

    def _abort_read(self, command: AbortRead) -> None:
        self._judging.pop(command.read, None)
        if self._reads.pop(command.read, None) is not None:
            self._emit(command)

    # ------------------------------------------------------------------ the machine

    def _reader_due(self) -> None:
        self._carry_out(self.reader.handle_timer(self._clock.now_ns))

    def _tell(self, happened: Sequence[events.ReaderEvent]) -> None:
        """Something concerns the reader."""
        self._carry_out(self.reader.handle_all(happened, self._clock.now_ns))

    def _carry_out(self, commands: list[ReaderCommand]) -> None:
        ended: list[tuple[InboundChunk, ChunkSource | None]] = []
        self._left_at.clear()
        for command in commands:
            match command:
                case StartRead():
                    self._start_read(command)
                case ChunkHere(key, source):
                    ended.append((self._chunk_arrived(key), source))
                case SendControl(message):
                    if message.op is Op.JOIN:
                        self._expect_casts(message.key)
                    elif message.op is Op.LEAVE:
                        self._expect_no_casts(message.key)
                    self._emit(command)
                case VerifyChunk(key):
                    self._verify(self.under_way[key])
                case ChunkGone(key):
                    ended.append((self.under_way[key], None))
                case ReadLeaves():
                    self._read_leaves(command)
                case SegmentsDropped():
                    self._segments_dropped(command, self.under_way[command.key])
                case AbortRead():
                    self._abort_read(command)
                case ReportBadCopy():
                    self._report(command, self.under_way.get(command.key))
                case DoubtHolder(holder):
                    self._doubted(holder)
                case _:
                    assert_never(command)
        due_ns = self.reader.wake_ns
        if due_ns is None:
            self.reader_alarm.due_ns = None
        elif due_ns != self.reader_alarm.due_ns:
            self.reader_alarm.set(due_ns)
        if ended:
            self._ended(ended)

    def _chunk_arrived(self, key: ChunkKey) -> InboundChunk:
        """A chunk is whole and right: it is no longer on its way."""
        inbound = self.under_way.pop(key)
        if not inbound.whole:  # nobody had to ask
            inbound.whole = True
            if inbound.pieces_given is not None and inbound.forget_pieces():
                self._emit(effects.ForgetPieces(inbound.chunk))
            self._emit(effects.ChunkProven(inbound.chunk))
        if inbound.readers:
            self.relays.chunk_read()
        return inbound

    def _verify(self, inbound: InboundChunk) -> None:
        """A chunk is whole: hash it. The digest of the whole chunk ends what was begun with its pieces."""
        inbound.whole = True
        inbound.pieces_given = None
        if inbound.is_cast:
            self._emit(effects.ForgetCasts(inbound.chunk.key))
        self._pool.pin(inbound.chunk)
        self._emit(effects.ComputeDigest(inbound.chunk, algorithm_of(inbound.entry.digest), DigestUse.ARRIVAL))

    def digest_computed(self, chunk: Chunk, hashed: Hashed) -> None:
        """The digest of a chunk that was on its way."""
        inbound = self.under_way.get(chunk.key)
        if inbound is None or inbound.chunk is not chunk:
            return
        inbound.found = hashed
        inbound.whole = hashed.digest == inbound.entry.digest
        self._tell((events.ChunkVerified(chunk.key, inbound.whole, bool(hashed.leaves)),))

    def had_from(self, key: ChunkKey, rail: int = 0) -> Address | None:
        """Where the interest was that brought a chunk, by this rail, which may be in flight still."""
        return self.reader.left_at(key, self._clock.now_ns, rail)

    def configure(self, parameters: ReaderParameters) -> None:
        """The node's parameters changed, but not its segment size."""
        self.parameters = parameters
        self._carry_out(self.reader.configure(parameters, self._clock.now_ns))

    def abort_reads(self) -> None:
        """Nobody waits for any of them."""
        for read in self._reads:
            self._emit(AbortRead(read))
        self._reads.clear()

    def restart(self, parameters: ReaderParameters) -> None:
        """Nothing is on its way any more; begin with a fresh reader."""
        self.parameters = parameters
        self.reader = self._make_reader(parameters)
        self.reader_alarm.due_ns = None

    def _hash_early(self, key: ChunkKey) -> None:
        """Some of a chunk came: what nobody writes any more is hashed while the rest comes."""
        inbound, unsettled = self.under_way.get(key), self.reader.unsettled(key)
        if inbound is not None and unsettled is not None:
            inbound.unlooked = 0
            pieces = inbound.pieces_to_hash(unsettled, self.parameters.segment_bytes)
            if pieces:
                self._emit(effects.HashPieces(inbound.chunk, pieces))

    # ------------------------------------------------------------------ bytes that are wrong

    def _segments_dropped(self, command: SegmentsDropped, inbound: InboundChunk) -> None:
        """Where the switch says to have sent some, its copy may be bad: the controller hears it from all who saw it."""
        self._emit(effects.DatagramsDropped("segment_wrong", command.count))
        if inbound.from_switch:
            inbound.from_switch = 0
            expected, found = inbound.entry.digest, inbound.found.digest
            self._emit(effects.ReportBadCopy(command.key, SWITCH_NODE, 0, Blame.DIGEST, expected, found, True))

    def _report(self, command: ReportBadCopy, inbound: InboundChunk | None) -> None:
        """The controller hears of a holder's copy."""
        node = self._directory.node_named(command.holder)
        self._emit(
            effects.ReportBadCopy(
                command.key,
                command.holder,
                node.node if node is not None else 0,
                command.blame,
                inbound.entry.digest if inbound is not None else NO_DIGEST,
                inbound.found.digest if inbound is not None else NO_DIGEST,
                from_switch=False,
            )
        )
