"""The chunks that a reader brings: which wait, which are open, how each ends, and what follows when a copy fails."""

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
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
)
from kvproto.errors import LocalProtocolError
from kvproto.events import ChunkWanted, HolderRef
from kvproto.ids import NodeId, ReadId
from kvproto.limits import CHUNK_SEGMENTS_MAX, JOINED_MAX
from kvproto.session.chunk import Chunk, Proof
from kvproto.session.membership import Membership
from kvproto.session.parameters import ReaderParameters
from kvproto.session.phases import Cause, Phase
from kvproto.session.pull import Pull
from kvproto.session.schedule import Schedule
from kvproto.session.stripes import Stripe, Stripes
from kvproto.session.timing import READ_STALL_NS


class Chunks:
    """All chunks of one reader. Commands go to `out`, which the reader hands over."""

    def __init__(
        self, schedule: Schedule, membership: Membership, pull: Pull, stripes: Stripes, out: list[ReaderCommand]
    ) -> None:
        self._schedule = schedule
        self._membership = membership
        self._pull = pull
        self._stripes = stripes
        self._out = out
        self.wanted: dict[ChunkKey, Chunk] = {}
        """Every chunk that is wanted and not here."""
        self.open: dict[ChunkKey, Chunk] = {}
        """Those being fetched, at most JOINED_MAX."""
        self.waiting: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        """Those that are not open yet."""

    def want(self, wanted: ChunkWanted) -> None:
        """Add a chunk to what the node fetches. One that is wanted already may have holders again."""
        chunk = self.wanted.get(wanted.key)
        if chunk is None:
            if not 1 <= wanted.segments <= CHUNK_SEGMENTS_MAX:
                raise LocalProtocolError(f"chunk {wanted.key.hex()} has {wanted.segments} segments")
            self.wanted[wanted.key] = self.waiting[wanted.key] = Chunk(wanted)
        elif chunk.segments != wanted.segments:
            raise LocalProtocolError(f"chunk {wanted.key.hex()} has {chunk.segments} segments, not {wanted.segments}")
        elif wanted.holders and chunk.phase is Phase.GONE:
            self.revive(chunk, wanted.holders)

    def unwant(self, key: ChunkKey, now_ns: int) -> None:
        """Nobody wants this chunk any more, or it is here by other means."""
        chunk = self.wanted.pop(key, None)
        if chunk is not None:
            self.waiting.pop(key, None)
            self.close(chunk, now_ns)

    def here(self, chunk: Chunk) -> None:
        """It is whole and right, and closed already: whoever wants it has it."""
        del self.wanted[chunk.key]
        self._out.append(ChunkHere(chunk.key, chunk.provenance.source()))

    def is_fetched(self, chunk: Chunk) -> bool:
        """Whether holders still matter for it: it is open, or it waits."""
        return chunk.key in self.open or chunk.key in self.waiting

    def open_next(self) -> Chunk | None:
        """The first waiting chunk (there must be one), open from now on; None: too many are open already."""
        if len(self.open) >= JOINED_MAX:
            return None
        chunk = self.waiting.pop(next(iter(self.waiting)))
        self.open[chunk.key] = chunk
        return chunk

    def queue(self, chunk: Chunk) -> None:
        """It waits until it may be opened."""
        self.waiting[chunk.key] = chunk

    def revive(self, chunk: Chunk, holders: tuple[HolderRef, ...]) -> None:
        """The directory names holders for a chunk that had none left."""
        chunk.provenance.offer(holders)
        chunk.provenance.relax()
        if chunk.provenance.usable:
            chunk.move(Cause.FOUND)
            self.waiting[chunk.key] = chunk

    def exhaust(self, chunk: Chunk, now_ns: int) -> None:
        """No holder is left."""
        self.waiting.pop(chunk.key, None)
        chunk.move(Cause.EXHAUSTED)
        self.close(chunk, now_ns)

    def close(self, chunk: Chunk, now_ns: int) -> None:
        """Nothing more is asked for this chunk: end its reads, leave its interest set."""
        self.open.pop(chunk.key, None)
        if self._schedule.led:
            self._schedule.deposed(chunk)
        if self._pull.outstanding:
            self._pull.forget(chunk)
        for stripe in self._stripes.of_chunk(chunk) if self._stripes.reads else ():
            self.abort(stripe)
        if chunk.proof is not None:
            self._out.append(AbortRead(chunk.proof.read))
            chunk.proof = None
        if chunk.interest.at is not None:
            self._out += self._membership.leave(chunk, now_ns)

    def abort(self, stripe: Stripe) -> None:
        """End a reliable read."""
        self._stripes.end(stripe)
        self._out.append(AbortRead(stripe.read))


class Copies:
    """What follows when a holder's copy is missing, wrong or out of reach: turn to another one, or give the chunk up.

    Commands go to `out`, which the reader hands over."""

    def __init__(
        self, parameters: ReaderParameters, chunks: Chunks, stripes: Stripes, out: list[ReaderCommand]
    ) -> None:
        self.parameters = parameters
        self._chunks = chunks
        self._stripes = stripes
        self.proofs: dict[ReadId, tuple[Chunk, Proof]] = {}
        """Leaves that holders are asked for, and some that nobody wants any more."""
        self._out = out

    # --- reads and checks --------------------------------------------------------------------------------------------

    def broke(self, stripe: Stripe, now_ns: int) -> None:
        """A read broke. A holder whose reads break again and again is out for everything."""
        node = stripe.holder.node
        stripe.chunk.provenance.fail(node)
        self._out.append(DoubtHolder(node))
        if not self._stripes.health.failed(node, stripe.started_ns, now_ns):
            return
        for chunk in list(self._chunks.wanted.values()):
            if chunk.key in self._chunks.wanted and chunk.provenance.names(node):
                chunk.provenance.exclude(node)
                self._excluded(chunk, node, now_ns)

    def give_up_stalled(self, now_ns: int) -> None:
        """Reads that made no progress for long begin again, from another holder if there is one.

        A slow holder is not a gone one: others are preferred from now on, but only the deadline ends waiting for it.
        """
        for read, (chunk, proof) in list(self.proofs.items()):
            if chunk.proof is not proof:
                del self.proofs[read]
            elif proof.due_ns <= now_ns:
                self._out.append(AbortRead(read))
                self.not_judged(read, gone=False, now_ns=now_ns)
        for stripe in self._stripes.stalled(now_ns):
            if self._stripes.reads.get(stripe.read) is not None:
                self._chunks.abort(stripe)
                stripe.chunk.provenance.fail(stripe.holder.node)

    def absent(self, chunk: Chunk, node: NodeId, now_ns: int) -> None:
        """The holder said, over its read connection, that it has no such chunk."""
        chunk.provenance.exclude(node)
        self._out.append(ReportBadCopy(chunk.key, node, Blame.ABSENT))
        self._excluded(chunk, node, now_ns)

    # --- bytes that are wrong ----------------------------------------------------------------------------------------

    def wrong(self, chunk: Chunk, now_ns: int, *, has_tree: bool) -> None:
        """The digest is wrong. Report the holder to blame, if there is one; find out which segments are wrong, and read
        them from one holder, or all of the chunk where nobody can tell."""
        chunk.move(Cause.BAD)
        for node in chunk.provenance.to_blame():
            self._blame(chunk, node)
        if not has_tree or not self._ask_for_leaves(chunk, now_ns):
            self._distrust(chunk, now_ns)

    def judged(self, read: ReadId, wrong: npt.NDArray[np.uint32] | None, now_ns: int) -> None:
        """A holder's leaves tell which segments are wrong; None: they are not the chunk's, and the holder lied."""
        holder = self._asked_of(read)
        chunk = self._proven(read)
        if chunk is None or holder is None:
            return
        if wrong is None:
            self._blame(chunk, holder)
            if not self._ask_for_leaves(chunk, now_ns):
                self._distrust(chunk, now_ns)
        elif not len(wrong):
            # What lies in memory is right, and yet its digest was wrong: do not trust that memory.
            self._distrust(chunk, now_ns)
        else:
            self._out.append(SegmentsDropped(chunk.key, len(wrong)))
            chunk.progress.lose(wrong)
            self._read_strictly(chunk, now_ns)

    def not_judged(self, read: ReadId, *, gone: bool, now_ns: int) -> bool:
        """The holder did not answer with leaves. Returns whether it was asked by this read."""
        holder = self._asked_of(read)
        chunk = self._proven(read)
        if chunk is None or holder is None:
            return False
        chunk.provenance.fail(holder)
        if gone:
            chunk.provenance.exclude(holder)
        if not self._ask_for_leaves(chunk, now_ns, but=holder):
            self._distrust(chunk, now_ns)
        return True

    def next_timeout_ns(self) -> int:
        """When the next holder has been asked for leaves for too long; one must have been asked."""
        return min(proof.due_ns for _, proof in self.proofs.values())

    def _proven(self, read: ReadId) -> Chunk | None:
        """The chunk that this read was to judge, if that is still wanted."""
        chunk, proof = self.proofs.pop(read, (None, None))
        if chunk is None or chunk.proof is not proof:
            return None
        chunk.proof = None
        return chunk

    def _asked_of(self, read: ReadId) -> NodeId | None:
        """Who is asked for leaves by this read."""
        _, proof = self.proofs.get(read, (None, None))
        return proof.holder if proof is not None else None

    def _blame(self, chunk: Chunk, node: NodeId) -> None:
        chunk.provenance.exclude(node)
        self._out.append(ReportBadCopy(chunk.key, node, Blame.DIGEST))

    def _ask_for_leaves(self, chunk: Chunk, now_ns: int, but: NodeId | None = None) -> bool:
        """Ask the next holder that can be asked; False: there is none."""
        holder = chunk.provenance.choose_strictly(self.parameters)
        if holder is None or not holder.readable or holder.node == but:
            return False
        proof = chunk.proof = Proof(self._stripes.next_read(), holder.node, now_ns + READ_STALL_NS)
        self.proofs[proof.read] = (chunk, proof)
        self._out.append(ReadLeaves(proof.read, chunk.key, holder.node))
        return True

    def _distrust(self, chunk: Chunk, now_ns: int) -> None:
        """Nobody knows which segments are wrong: all of them are missing.

        Where only the switch has the chunk, all there is to do is to ask it once more.
        """
        chunk.wipe()
        if not chunk.provenance.any_readable and chunk.provenance.once_more():
            chunk.move(Cause.AGAIN)
            self._chunks.queue(chunk)
            return
        self._read_strictly(chunk, now_ns)

    def _read_strictly(self, chunk: Chunk, now_ns: int) -> None:
        """Read what is missing from one holder, with nothing else that may be written."""
        chunk.move(Cause.JUDGED)
        chunk.alone = True
        self._choose_strictly(chunk, now_ns)

    # --- the directory -----------------------------------------------------------------------------------------------

    def offer(self, key: ChunkKey, holders: tuple[HolderRef, ...], now_ns: int) -> None:
        """The directory names other holders of a chunk."""
        chunk = self._chunks.wanted.get(key)
        if chunk is None:
            return
        if chunk.phase is Phase.GONE:
            self._chunks.revive(chunk, holders)
            return
        chunk.provenance.offer(holders)
        self._drop_reads_of_others(chunk, now_ns)

    def lose(self, node: NodeId, now_ns: int) -> None:
        """A node is gone."""
        for chunk in list(self._chunks.wanted.values()):
            if chunk.key in self._chunks.wanted and chunk.provenance.names(node):
                chunk.provenance.lose(node)
                self._drop_reads_of_others(chunk, now_ns)

    def exhaust(self, chunk: Chunk, now_ns: int) -> None:
        """No holder is left: the chunk is closed, and whoever wants it hears of it."""
        self._chunks.exhaust(chunk, now_ns)
        self._out.append(ChunkGone(chunk.key))

    # --- what follows ------------------------------------------------------------------------------------------------

    def _excluded(self, chunk: Chunk, node: NodeId, now_ns: int) -> None:
        """A holder of a chunk may be out: turn to the next one, or give the chunk up."""
        if not self._chunks.is_fetched(chunk):
            return
        usable = {holder.node for holder in chunk.provenance.usable}
        if not usable:
            self.exhaust(chunk, now_ns)
            return
        if node not in usable:
            for stripe in self._stripes.of_chunk(chunk):
                if stripe.holder.node == node:
                    self._chunks.abort(stripe)
            if chunk.provenance.strict == node:
                self._abort_all(chunk)
                self._restart_strictly(chunk, now_ns)

    def _drop_reads_of_others(self, chunk: Chunk, now_ns: int) -> None:
        """The list of holders changed: reads from nodes that are no longer on it end."""
        usable = {holder.node for holder in chunk.provenance.usable}
        for stripe in self._stripes.of_chunk(chunk):
            if stripe.holder.node not in usable:
                self._chunks.abort(stripe)
        if self._chunks.is_fetched(chunk):
            if not usable:
                self.exhaust(chunk, now_ns)
            elif chunk.phase is Phase.STRICT and chunk.provenance.strict not in usable:
                self._abort_all(chunk)
                self._restart_strictly(chunk, now_ns)

    def _abort_all(self, chunk: Chunk) -> None:
        for stripe in self._stripes.of_chunk(chunk):
            self._chunks.abort(stripe)

    def _restart_strictly(self, chunk: Chunk, now_ns: int) -> None:
        """Begin the chunk again, all of it from one holder."""
        chunk.wipe()
        self._choose_strictly(chunk, now_ns)

    def _choose_strictly(self, chunk: Chunk, now_ns: int) -> None:
        holder = chunk.provenance.choose_strictly(self.parameters)
        self._chunks.open[chunk.key] = chunk
        if holder is None:
            self.exhaust(chunk, now_ns)
