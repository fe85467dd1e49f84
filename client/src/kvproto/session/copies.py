"""Copies that are missing, wrong, or out of reach: turn to another holder, or give the chunk up."""

from kvproto.commands import Blame, ReaderCommand, ReportBadCopy
from kvproto.events import HolderRef
from kvproto.ids import Address, ChunkKey, NodeId
from kvproto.session.chunk import Chunk
from kvproto.session.chunks import Chunks
from kvproto.session.fetches import Fetches
from kvproto.session.holders import Health
from kvproto.session.parameters import ReaderParameters
from kvproto.session.phases import Cause, Phase
from kvproto.session.stripes import Stripe, Stripes


class Copies:
    """What follows when a holder's copy fails. Commands go to `out`, which the reader hands over."""

    def __init__(
        self,
        parameters: ReaderParameters,
        chunks: Chunks,
        fetches: Fetches,
        stripes: Stripes,
        out: list[ReaderCommand],
    ) -> None:
        self.parameters = parameters
        self._chunks = chunks
        self._fetches = fetches
        self._stripes = stripes
        self._health = Health()
        self._out = out

    # --- reads and checks --------------------------------------------------------------------------------------------

    def worked(self, node: NodeId) -> None:
        """A reliable read from this holder is complete."""
        self._health.worked(node)

    def broke(self, stripe: Stripe, now_ns: int) -> None:
        """A read broke. A holder whose reads break again and again is out for everything."""
        node = stripe.holder.node
        stripe.chunk.provenance.fail(node)
        if not self._health.failed(node, stripe.started_ns, now_ns):
            return
        for chunk in list(self._chunks.wanted.values()):
            if chunk.key in self._chunks.wanted and chunk.provenance.names(node):
                chunk.provenance.exclude(node)
                self._excluded(chunk, node, now_ns)

    def give_up_stalled(self, now_ns: int) -> None:
        """Reads that made no progress for long begin again, from another holder if there is one.

        A slow holder is not a gone one: others are preferred from now on, but only the deadline ends waiting for it.
        """
        for stripe in self._stripes.stalled(now_ns):
            if self._stripes.get(stripe.read) is not None:
                self._chunks.abort(stripe)
                stripe.chunk.provenance.fail(stripe.holder.node)

    def refused(self, key: ChunkKey, source: Address, now_ns: int) -> bool:
        """The holder at this address says that it has no such chunk. Returns whether it was asked."""
        chunk = self._chunks.get(key)
        nodes = [holder.node for holder in chunk.provenance.usable() if holder.address == source] if chunk else []
        for node in nodes:
            if chunk is not None:
                self.absent(chunk, node, now_ns)
        return bool(nodes)

    def absent(self, chunk: Chunk, node: NodeId, now_ns: int) -> None:
        """The holder said that it has no such chunk."""
        chunk.provenance.exclude(node)
        self._out.append(ReportBadCopy(chunk.key, node, Blame.ABSENT))
        self._excluded(chunk, node, now_ns)

    def wrong(self, chunk: Chunk, now_ns: int) -> None:
        """The checksum is wrong. Report the holder to blame, if it is known; read all of the chunk from one holder."""
        chunk.move(Cause.BAD)
        for node in chunk.provenance.to_blame():
            chunk.provenance.exclude(node)
            self._out.append(ReportBadCopy(chunk.key, node, Blame.CHECKSUM))
        self._restart_strictly(chunk, now_ns)

    # --- the directory -----------------------------------------------------------------------------------------------

    def offer(self, key: ChunkKey, holders: tuple[HolderRef, ...], now_ns: int) -> None:
        """The directory names other holders of a chunk."""
        chunk = self._chunks.get(key)
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
        """No holder is left: the chunk is closed, and its fetches hear of it."""
        self._chunks.exhaust(chunk, now_ns)
        self._fetches.chunk_gone(chunk, now_ns)

    # --- what follows ------------------------------------------------------------------------------------------------

    def _excluded(self, chunk: Chunk, node: NodeId, now_ns: int) -> None:
        """A holder of a chunk may be out: turn to the next one, or give the chunk up."""
        if not self._chunks.is_fetched(chunk):
            return
        usable = {holder.node for holder in chunk.provenance.usable()}
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
        usable = {holder.node for holder in chunk.provenance.usable()}
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
        holder = chunk.provenance.choose_strictly(self.parameters)
        self._chunks.reopen(chunk)
        if holder is None:
            self.exhaust(chunk, now_ns)
