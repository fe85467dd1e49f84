"""What the controller says of others, and who must hear it: the replica first, then all that stand on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hostagent import limits
from hostagent.core import events
from hostagent.core.claims import Claims
from hostagent.core.directory import Applied, Delta
from hostagent.core.effects import AttachAgain
from hostagent.core.fetches import Fetches
from hostagent.core.node import Node
from hostagent.core.paths import Paths
from hostagent.core.waits import Waits
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoads

_STALE_NS = int(limits.STALE_DIRECTORY_S * 1e9)
_NEXT_SLICE_NS = 1_000_000


class DirectoryNews:
    """Owns the order in which the parts hear the news, and the time when stale entries are forgotten. What a part makes
    of the news it does not know."""

    def __init__(
        self,
        node: Node,
        loads: HolderLoads,
        fetches: Fetches,
        claims: Claims,
        waits: Waits,
        paths: Paths,
        lone_changed: Callable[[Iterable[ChunkKey]], None],
    ) -> None:
        """`lone_changed`: looks again at who may be asked for these."""
        self._clock, self._emit = node.clock, node.emit
        self._directory = node.directory
        self._pool = node.pool
        self._disk = node.disk
        self._loads = loads
        self._fetches = fetches
        self._claims = claims
        self._waits = waits
        self._paths = paths
        self._fabric = node.fabric
        self._lone_changed = lone_changed
        self._look_ups = fetches.look_ups
        self._forget_stale = node.alarms.add(self._stale_is_old)

    def directory_changed(self, event: events.DirectoryChanged) -> None:
        """Take a delta in. Raises SequenceGapError after a lost one."""
        applied = self._directory.apply(event.delta)
        self._loads_told(event.delta)
        self._news_of_chunks(event.delta, applied)
        if self._directory.has_stale and self._forget_stale.due_ns is None:
            self._forget_stale.set(self._clock.now_ns + _STALE_NS)

    def _news_of_chunks(self, delta: Delta, applied: Applied) -> None:
        for key in applied.changed:
            entry = self._directory.find(key)
            if entry is not None:
                self._pool.update_remote_score(key, entry.value)
                if self._disk is not None:
                    self._disk.pool.update_remote_score(key, entry.value)
        if delta.nodes or applied.nodes_lost:
            self._paths.nodes_changed(delta.nodes, applied.nodes_lost)
        if self._look_ups.is_partial:
            self._look_ups.told((chunk.key for chunk in delta.chunks), () if delta.snapshot else delta.chunks_gone)
            if delta.snapshot_end:
                self._look_ups.snapshot_ended(applied.changed)
        self._tell_fetches(applied)
        self._tell_waits(delta, applied)
        if evicted := self._look_ups.make_room():
            self._lone_changed(evicted)
        if self._look_ups.outgrown(count := self._directory.rows_count):
            self._emit(AttachAgain(f"the directory has {count} chunks: this node follows what its engines ask for"))

    def looked_up(self, event: events.LookedUp) -> None:
        """The controller says who has what this node asked for."""
        applied = self._directory.answered(event.found, event.number)
        self._news_of_chunks(event.found, applied)
        self._look_ups.answered(event)

    def holder_told(self, event: events.HolderTold) -> None:
        """A holder said with an answer what it has queued."""
        self._loads.load_reported(event.node, event.load, self._clock.now_ns)
        self._fetches.holder_told(event.node, event.load)

    def _loads_told(self, delta: Delta) -> None:
        for number, load in delta.loads:
            node = self._directory.node(number)
            if node is not None:
                self._loads.load_reported(node.name, load, self._clock.now_ns)
                self._fetches.holder_told(node.name, load, with_ours=True)

    def _tell_fetches(self, applied: Applied) -> None:
        for name in applied.nodes_lost:
            self._loads.forget(name)
        self._fetches.directory_changed(applied.changed, applied.nodes_lost)
        self._lone_changed(applied.changed)

    def _tell_waits(self, delta: Delta, applied: Applied) -> None:
        """What others compute, and what is there by now: in this order, because a claim may come with its chunk."""
        self._claims.others_claims_changed(delta.claims)
        if self._claims:
            for key in applied.changed:
                entry = self._directory.find(key)
                if entry is not None:
                    self._claims.kept_elsewhere(key, entry.holders)
            self._claims.nodes_lost(delta.nodes_gone)
        self._waits.chunks_available(applied.changed)
        for one in delta.claims:
            self._waits.claims_made([chunk.key for chunk in one.made])

    def _stale_is_old(self) -> None:
        if self._fabric.connected:
            applied = self._directory.forget_stale()
            self._paths.nodes_changed((), applied.nodes_lost)
            self._tell_fetches(applied)
            if self._directory.has_stale:
                self._forget_stale.set(self._clock.now_ns + _NEXT_SLICE_NS)
        else:
            self._forget_stale.set(self._clock.now_ns + _STALE_NS)
