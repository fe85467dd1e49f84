"""Lone gets: which small chunks engines may get without the core, and what becomes of those that they got. Pure.

An engine that wants one small chunk of one other node waits longer for this process than for the network. So a thread
of the shell serves such requests (`hostagent.lone_gets`), from what this part says ahead: chunks in the DRAM of exactly
one other node, about which there is nothing to decide. Everything else is declined there, and comes here as a request.
What the thread brought has the digest that the directory named; here it becomes a chunk of the pool like any other,
after its engine has it. The gate learns nothing of it: its costs are those of the way through the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.directory import NodeEntry
from hostagent.core.fetch import FetchObserver
from hostagent.core.fetches import Fetches
from hostagent.core.forms import Forms
from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk, Refusal
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey, Digest
from kvchunk.sources import ChunkSource
from kvclient.lone import SLOT_BYTES
from kvclient.messages import Status
from kvpolicy.value import Tier, Touch
from kvpolicy.value.costs import SourceCost
from kvproto.integrity import Integrity, algorithm_of


class LoneChunks:
    """Owns what the shell's thread was told ahead. What the thread does with it, the core hears afterwards."""

    def __init__(
        self,
        node: Node,
        fetches: Fetches,
        observer: FetchObserver,
        forms: Forms,
        tenant_of: Callable[[events.EngineId], str],
    ) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self._disk = node.disk
        self._fetches = fetches
        self._observer = observer
        self._forms = forms
        self._costs = node.costs
        self._tenant_of = tenant_of
        self._is_on = node.options.lone_gets
        self.offered: dict[ChunkKey, tuple[Digest, str, str]] = {}
        """What was said: digest, node and endpoint."""
        self._told: SourceCost | None = None

    # ------------------------------------------------------------------ ahead

    def directory_changed(self, keys: Iterable[ChunkKey]) -> None:
        """Look again at who may be asked for these."""
        if not self._is_on:
            return
        for key in keys:
            self._look(key)
        self.costs_changed()

    def costs_changed(self) -> None:
        """Tell what a chunk costs, if that is news."""
        if not self.offered:
            return
        cost = self._costs.cost(Tier.REMOTE_DRAM)
        if cost != self._told:
            self._told = cost
            self._emit(effects.TellLoneCosts(cost))

    def _look(self, key: ChunkKey) -> None:
        entry = self._directory.find(key)
        node = self._only_holder(entry) if entry is not None else None
        if entry is None or node is None:
            if self.offered.pop(key, None) is not None:
                self._emit(effects.WithdrawLone(key))
            return
        offer = entry.digest, node.name, node.read_endpoint
        if self.offered.get(key) != offer:
            self.offered[key] = offer
            self._emit(effects.OfferLone(key, entry.size_bytes, *offer))

    def _only_holder(self, entry: ChunkEntry) -> NodeEntry | None:
        """The node that a chunk comes from without a decision; None: there is none, or something to decide."""
        if not 0 < entry.size_bytes <= SLOT_BYTES or entry.served or entry.others or entry.stored is not None:
            return None
        if not entry.digest or algorithm_of(entry.digest) is not Integrity.BLAKE3 or self._forms.reads_encoded:
            return None
        if self._disk is not None and self._disk.find(entry.key) is not None:
            return None
        in_dram, _ = self._directory.holders_elsewhere(entry.key)
        return in_dram[0] if len(in_dram) == 1 and not in_dram[0].draining else None

    # ------------------------------------------------------------------ afterwards

    def chunk_fetched(self, event: events.LoneGot) -> None:
        """An engine has a chunk: what other fetches teach, this one does, too, and the pool takes the chunk."""
        entry = self._directory.find(event.key)
        if entry is None or entry.digest != event.digest:
            # The directory knows others by now: this one was right when its engine got it, and is nobody else's.
            self._emit(effects.TakeLone(event.buffer, None))
        else:
            touches = [Touch(entry.key, entry.parent, entry.position, entry.size_bytes)]
            self._pool.fetched(touches)
            if self._disk is not None:
                self._disk.pool.fetched(touches)
            self._emit(effects.TakeLone(event.buffer, self._room_for(entry, self._tenant_of(event.engine))))
        node = self._directory.node_named(event.node)
        number = node.node if node is not None else 0
        now_ns = self._clock.now_ns
        use = effects.ChunkUse(event.key, ChunkSource.HOLDER, event.size_bytes, event.took_s, number, now_ns)
        self._observer.chunks_used((use,))
        self._emit(effects.FetchEnded(Status.OK, event.took_s, ((ChunkSource.HOLDER, 1, event.size_bytes),)))

    def _room_for(self, entry: ChunkEntry, tenant: str) -> Chunk | None:
        """None: the pool has the chunk or is about to, or has no room for it."""
        if self._fetches.is_arriving(entry.key):
            return None
        made = self._pool.reserve(
            entry.key, entry.parent, entry.size_bytes, entry.position, entry.namespace, tenant=tenant
        )
        return None if isinstance(made, Refusal) else made

    def chunk_placed(self, chunk: Chunk, hashed: Hashed) -> None:
        """A chunk lies in the pool."""
        entry = self._directory.find(chunk.key)
        if entry is None or entry.digest != hashed.digest:
            self._pool.abort(chunk)
            return
        self._pool.commit(chunk, hashed)
        self._observer.copy_arrived(chunk, asked_for=False)
        self._observer.fetch_over((chunk.key,))
