"""Chunks on their way into the pool: runs the protocol's reader, which decides whom to ask for what, and when.

Owns their memory until they are whole, and the reads under way. Whose fetches they are for, and what becomes of those,
is `Fetches`' affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

import numpy as np

from hostagent.core import effects
from hostagent.core.clock import Alarm
from hostagent.core.directory import NodeEntry
from hostagent.core.early_pieces import PIECES_MIN, EarlyPieces
from hostagent.core.events import LeavesRead, ReadProven
from hostagent.core.fetch import MakeReader, Wanted
from hostagent.core.inbound import InboundChunk
from hostagent.core.node import Node
from hostagent.core.outgoing_reads import OutgoingReads
from hostagent.core.wrong_bytes import WrongBytes
from hostagent.tree import PIECE_BYTES, Hashed, root_of
from kvchunk.ids import ChunkKey
from kvproto import events
from kvproto.commands import (
    AbortRead,
    DeliverFetch,
    DropChunk,
    FetchProgress,
    ReaderCommand,
    ReadLeaves,
    ReportBadCopy,
    SegmentsDropped,
    SendControl,
    StartRead,
    VerifyChunk,
)
from kvproto.integrity import algorithm_of
from kvproto.session.parameters import ReaderParameters
from kvproto.wire.control import Op


class FetchesOfArrivals(Protocol):
    """Whoever wants the chunks."""

    def progressed(self, command: FetchProgress) -> None:
        """More leading chunks of a fetch are here."""
        ...

    def deliver(self, command: DeliverFetch) -> None:
        """A fetch is over."""
        ...

    def proven(self, inbounds: Sequence[InboundChunk]) -> None:
        """Chunks are whole, and it is `found` already what their bytes are."""
        ...

    def given_up(self, inbound: InboundChunk) -> None:
        """A chunk does not become whole; its memory is about to go back to the pool."""
        ...


class Arrivals:
    """One node's."""

    def __init__(self, node: Node, make_reader: MakeReader, fetches: FetchesOfArrivals) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._fetches = fetches
        self.parameters = node.options.reader
        self._make_reader = make_reader
        self._reader = make_reader(self.parameters)
        self._reader_alarm: Alarm = node.alarms.add(self._reader_due)
        self._reads = OutgoingReads(node, self.read_event)
        self._wrong_bytes = WrongBytes(node)
        self._early = EarlyPieces(node.emit)
        self._wanted: dict[int, int] = {}
        """Bytes still to come from a node, as reads that begin together say it."""
        self.under_way: dict[ChunkKey, InboundChunk] = {}

    # ------------------------------------------------------------------ figures

    def left_bytes(self, inbound: InboundChunk) -> int:
        """Bytes of a chunk still to come; all of them while it is loaded from disk."""
        if inbound.whole:
            return 0
        if inbound.twin is not None:
            twin = self.under_way.get(inbound.twin.key)
            return 0 if twin is None else self.left_bytes(twin)
        missing = self._reader.missing(inbound.chunk.key)
        size_bytes = inbound.entry.size_bytes
        if missing is None:
            return size_bytes if inbound.reckoned_bytes is None else inbound.reckoned_bytes
        return min(size_bytes, int(np.count_nonzero(missing)) * self.parameters.segment_bytes)

    def left_of(self, key: ChunkKey) -> int:
        """The same of the chunk with this key; 0: it is not on its way."""
        inbound = self.under_way.get(key)
        return 0 if inbound is None else self.left_bytes(inbound)

    @property
    def led_count(self) -> int:
        """Chunks that this node pulls for everybody at the moment."""
        return self._reader.led_count

    @property
    def patient(self) -> bool:
        """Whether cast segments may be reported some milliseconds late."""
        return self._reader.patient

    @property
    def half_window(self) -> int:
        """How many of the segments that were asked for may wait to be reported."""
        return self._reader.half_window

    def is_here(self, key: ChunkKey) -> bool:
        """Whether the reader counts a chunk as here."""
        return self._reader.is_here(key)

    # ------------------------------------------------------------------ the network

    def wanted(self, key: ChunkKey) -> Wanted | None:
        """The chunk of this key and which of its cast segments may be placed; None: they are not wanted."""
        inbound = self.under_way.get(key)
        missing = self._reader.missing(key) if inbound is not None else None
        return None if inbound is None or missing is None else Wanted(inbound.chunk, inbound.segments_count, missing)

    def controls_received(self, arrivals: Sequence[events.ControlReceived]) -> None:
        """NOTICEs and NAKs."""
        self._carry_out(self._reader.handle_all(arrivals, self._clock.now_ns))

    def casts_placed(self, arrivals: Sequence[events.SegmentsReceived]) -> None:
        """Casts came; those that were wanted lie in the pool. For an unwanted chunk a LEAVE may have been lost: the
        reader sends another while the switch still counts us as a reader."""
        for arrived in arrivals:
            inbound = self.under_way.get(arrived.key)
            if inbound is not None and self._reader.missing(arrived.key) is not None:
                inbound.last_source = arrived.source
                inbound.from_switch += arrived.from_switch
                inbound.from_casts += len(arrived.segments)
                inbound.unlooked += len(arrived.segments)
        self._carry_out(self._reader.handle_all(arrivals, self._clock.now_ns))
        enough = PIECES_MIN * PIECE_BYTES // self.parameters.segment_bytes
        for key in {arrived.key for arrived in arrivals}:
            inbound = self.under_way.get(key)
            if inbound is not None and inbound.unlooked >= enough:
                self._hash_early(key)

    def casts_unexpected(self, arrivals: Sequence[events.SegmentsReceived]) -> None:
        """Casts of chunks that the transport did not expect came, and are lost."""
        unwanted = []
        for arrived in arrivals:
            if self._reader.missing(arrived.key) is None:
                unwanted.append(arrived)
            else:
                # It is read by other means; casts that follow are welcome.
                self._expect_casts(arrived.key)
        if unwanted:
            self._emit(effects.DatagramsDropped("cast_unwanted", sum(len(one.segments) for one in unwanted)))
            self._carry_out(self._reader.handle_all(unwanted, self._clock.now_ns))

    def _expect_casts(self, key: ChunkKey) -> None:
        inbound, missing = self.under_way.get(key), self._reader.missing(key)
        if inbound is not None and missing is not None:
            inbound.is_cast = True
            self._emit(effects.ExpectCasts(inbound.chunk, missing))

    def read_event(self, event: events.ReadProgress | events.ReadDone | events.ReadFailed) -> None:
        """A reliable read progressed or ended; events of an aborted read come too late."""
        key = self._reads.key_of(event.read)
        if self._reads.heard(event):
            self.handle(event)
            if key is not None and isinstance(event, events.ReadDone):
                self._hash_early(key)

    def reads_proven(self, reads: Sequence[ReadProven]) -> None:
        """Reads are over that were hashed on their way."""
        done: list[events.ReaderEvent] = []
        for one in reads:
            key = self._reads.key_of(one.read)
            if not self._reads.heard(one):
                continue
            done.append(events.ReadDone(one.read))
            inbound = self.under_way.get(key) if key is not None else None
            if inbound is not None:
                inbound.proven[one.offset] = one.leaves
        if done:
            self.handle_all(done)

    def _hash_early(self, key: ChunkKey) -> None:
        """Some of a chunk came: what nobody writes any more is hashed while the rest comes."""
        inbound, unsettled = self.under_way.get(key), self._reader.unsettled(key)
        if inbound is not None and unsettled is not None:
            inbound.unlooked = 0
            self._early.look(inbound, unsettled, self.parameters.segment_bytes)

    def leaves_read(self, event: LeavesRead) -> None:
        """A holder's leaves: those that belong to the chunk's digest tell which segments are wrong."""
        key = self._wrong_bytes.unasked(event.read)
        inbound = self.under_way.get(key) if key is not None else None
        if self._reads.heard(event) and inbound is not None:
            wrong = self._wrong_bytes.judged(inbound, event, self.parameters.segment_bytes)
            self.handle(events.ChunkJudged(event.read, wrong))

    def judges_silence(self, now_ns: int) -> bool:
        """Whether the reader is about to draw conclusions from silence: first report everything that has come."""
        due_ns = self._reader_alarm.due_ns
        return due_ns is not None and due_ns <= now_ns

    def _reader_due(self) -> None:
        self._carry_out(self._reader.handle_timer(self._clock.now_ns))

    # ------------------------------------------------------------------ the machine

    def handle(self, event: events.ReaderEvent) -> None:
        """Something concerns the reader."""
        self._carry_out(self._reader.handle(event, self._clock.now_ns))

    def handle_all(self, happened: Sequence[events.ReaderEvent]) -> None:
        """Several things concern the reader."""
        self._carry_out(self._reader.handle_all(happened, self._clock.now_ns))

    def _carry_out(self, commands: list[ReaderCommand]) -> None:
        proven: list[InboundChunk] = []
        self._wanted.clear()
        for command in commands:
            match command:
                case SendControl(message):
                    if message.op is Op.JOIN:
                        self._expect_casts(message.key)
                    self._emit(command)
                case StartRead():
                    self._start_read(command)
                case ReadLeaves():
                    self._wrong_bytes.asked(command)
                    self._reads.start_leaves(command, self.under_way[command.key])
                case SegmentsDropped():
                    self._wrong_bytes.dropped(command, self.under_way[command.key])
                case AbortRead(read):
                    self._wrong_bytes.unasked(read)
                    self._reads.abort(command)
                case VerifyChunk(key):
                    inbound = self.under_way[key]
                    if not self._verify(inbound):
                        proven.append(inbound)
                case DropChunk(key):
                    dropped = self.under_way.pop(key, None)
                    if dropped is not None:
                        self.give_up(dropped)
                case FetchProgress():
                    self._fetches.progressed(command)
                case DeliverFetch():
                    self._fetches.deliver(command)
                case ReportBadCopy():
                    self._wrong_bytes.report(command, self.under_way.get(command.key))
                case _:
                    assert_never(command)
        due_ns = self._reader.next_timeout_ns()
        if due_ns != self._reader_alarm.due_ns:
            self._reader_alarm.set(due_ns)
        if proven:
            self._fetches.proven(proven)

    def _verify(self, inbound: InboundChunk) -> bool:
        """A chunk is whole. Returns whether it has to be hashed; else it is `found` already what its bytes are."""
        chunk, leaves = inbound.chunk, inbound.leaves()
        inbound.whole = True
        if inbound.is_cast:
            self._emit(effects.ForgetCasts(chunk.key))
        if leaves:
            inbound.found = Hashed(root_of(leaves, chunk.size_bytes), leaves)
            self._early.forget(inbound)
            self._emit(effects.ChunkProven(chunk))
            return False
        self._pool.pin(chunk)
        self._early.used(inbound)
        self._emit(effects.ComputeDigest(chunk, algorithm_of(inbound.entry.digest)))
        return True

    def _start_read(self, command: StartRead) -> None:
        inbound, segment_bytes = self.under_way[command.key], self.parameters.segment_bytes
        before = inbound.last_source
        self._reads.start(command, inbound, segment_bytes, self._wanted_of)
        if inbound.last_source != before and (before is not None or len(inbound.entry.holders) > 1):
            self._wanted.clear()

    def _wanted_of(self, holder: NodeEntry) -> int:
        """About what is still to come from a holder: chunks that have begun count whole."""
        wanted_bytes = self._wanted.get(holder.node)
        if wanted_bytes is None:
            wanted_bytes = self._wanted[holder.node] = sum(
                inbound.entry.size_bytes
                for inbound in self.under_way.values()
                if not inbound.whole and inbound.twin is None and self.comes_from(inbound, holder)
            )
        return wanted_bytes

    @staticmethod
    def comes_from(inbound: InboundChunk, holder: NodeEntry) -> bool:
        """Whether a holder sends a chunk, or may be asked for it as long as nobody has been."""
        if inbound.last_source is None:
            return holder.node in inbound.entry.holders
        return inbound.last_source == holder.address

    def give_up(self, inbound: InboundChunk) -> None:
        """A chunk that did not become whole: nothing writes to it any more, and its memory goes back to the pool."""
        self._fetches.given_up(inbound)
        if inbound.is_cast:
            self._emit(effects.ForgetCasts(inbound.chunk.key))
        self._early.forget(inbound)
        self._pool.abort(inbound.chunk)

    def configure(self, parameters: ReaderParameters) -> None:
        """The node's parameters changed, but not its segment size."""
        self.parameters = parameters
        self._carry_out(self._reader.configure(parameters, self._clock.now_ns))

    def abort_reads(self) -> None:
        """Nobody waits for any of them."""
        self._reads.abort_all()

    def abort_chunks(self) -> None:
        """Give up every chunk on its way."""
        for inbound in self.under_way.values():
            self.give_up(inbound)
        self.under_way.clear()

    def restart(self, parameters: ReaderParameters) -> None:
        """Nothing is wanted any more; begin with a fresh reader."""
        self.abort_chunks()
        self.parameters = parameters
        self._reader = self._make_reader(parameters)
