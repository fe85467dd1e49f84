"""Where chunks that are not in this node's pool can be had: its disk, other nodes, the switch, the cold store."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.cold import ColdIndex
from hostagent.core.directory import NO_COPIES, Copies
from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk
from kvchunk.ids import ChunkKey
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.holder_load import IDLE, HolderLoad, HolderLoads
from kvpolicy.value import Tier
from kvproto.events import HolderRef
from kvproto.ids import NodeId

_AS_IT_IS: Final[Mapping[Tier, StoredForm]] = MappingProxyType({})
SWITCH_NODE = NodeId("@switch")
"""Stands for the switch where it holds the only copy: asked at the pool address, never read from."""
_IN_DRAM = 0.0
_BUSY_MAX = 0.9
_ON_DISK = 1.0
"""Load of a copy on a disk: as good as any once it is in that node's DRAM, but asked only if there is no other."""


class StandIn(NamedTuple):
    """A chunk of fewer bytes that crosses the network in place of another, which is decoded from it."""

    key: ChunkKey
    form: Form
    size_bytes: int
    """Still to come; 0: it is in this node's pool."""


class Found(NamedTuple):
    """A chunk that can be had."""

    entry: ChunkEntry
    tiers: tuple[Tier, ...]
    """At least one."""
    holders: tuple[HolderRef, ...]
    load: HolderLoad = IDLE
    """What the least busy of them has queued for its readers."""
    stored: Mapping[Tier, StoredForm] = _AS_IT_IS
    """By tier: how it lies there, where in fewer bytes than it has."""
    stand_in: StandIn | None = None
    """By which it should come; None: as it is."""


class Elsewhere(NamedTuple):
    """Where else chunks with the same copies can be had."""

    tiers: tuple[Tier, ...]
    holders: tuple[HolderRef, ...]
    load: HolderLoad


_NOWHERE: Final = Elsewhere((), (), IDLE)
Known = dict[tuple[bool, Copies], Elsewhere]
"""By whether the switch serves a chunk, and its copies: true for one moment."""


class Sources:
    """Asks the disk, the directory's replica, and what is known of the cold store."""

    def __init__(self, node: Node, loads: HolderLoads, cold: ColdIndex) -> None:
        self._clock = node.clock
        self.cold = cold
        self._directory = node.directory
        self._disk = node.disk
        self._loads = loads
        self._fabric = node.fabric

    def find(self, key: ChunkKey, *, from_disk_only: bool = False, known: Known | None = None) -> Found | None:
        """Where a chunk can be had; None: nowhere. Where disk and directory differ, the disk is right. `known`: what
        was found of others at this moment, to be added to."""
        stored = self._disk.find(key) if self._disk is not None else None
        forms = {} if stored is None else _forms(Tier.LOCAL_DISK, stored)
        entry, copies = (None, NO_COPIES) if from_disk_only else self._directory.find_with_copies(key)
        if stored is not None and (entry is None or entry.size_bytes != stored.size_bytes):
            own = ChunkEntry(
                key, stored.parent, stored.size_bytes, stored.digest, stored.position, (), namespace=stored.namespace
            )
            return Found(own, (Tier.LOCAL_DISK,), (), stored=forms)
        cold = self.cold.find(key) if self.cold.has_store and not from_disk_only else None
        if entry is None:
            return None if cold is None else _in_cold(cold)
        found = None if known is None else known.get((entry.served, copies))
        if found is None:
            found = self._elsewhere(copies, served=entry.served)
            if known is not None:
                known[entry.served, copies] = found
        tiers, refs, load = found
        if stored is not None:
            tiers = (Tier.LOCAL_DISK, *tiers)
        if cold is not None and not tiers:
            return _in_cold(cold)
        if cold is not None and (cold.size_bytes, cold.digest) == (entry.size_bytes, entry.digest):
            tiers = (*tiers, Tier.COLD)
            forms |= _forms(Tier.COLD, cold)
        return Found(entry, tiers, refs, load, forms) if tiers else None

    def holders(self, entry: ChunkEntry) -> tuple[HolderRef, ...]:
        """Other nodes with a copy, or the switch where it alone has one."""
        return self._elsewhere(self._directory.copies(entry.key), served=entry.served).holders

    def _elsewhere(self, copies: Copies, *, served: bool) -> Elsewhere:
        in_dram, on_disk = self._directory.nodes_with(copies)
        refs: list[HolderRef] = []
        least = None
        for node in (*in_dram, *on_disk):
            load = self._loads.of(node.name, self._clock.now_ns) if self._loads.by_name else IDLE
            from_disk = len(refs) >= len(in_dram)
            if (least is None or load.queued_bytes < least.queued_bytes) and not (from_disk and in_dram):
                least = load
            # A share below 1 tells holders apart whose queues differ by a factor, from a MiB on.
            busy = min(_BUSY_MAX, (load.queued_bytes >> 20).bit_length() / 32)
            rank = (_ON_DISK if from_disk else _IN_DRAM) + node.draining + busy
            refs.append(
                HolderRef(
                    NodeId(node.name),
                    node.address,
                    rank,
                    castable=node.member is not None,
                    rail_addresses=node.rail_addresses,
                )
            )
        if not refs:
            pool_address = self._fabric.pool_address
            if not served or pool_address is None:
                return _NOWHERE
            return Elsewhere((Tier.SWITCH,), (HolderRef(SWITCH_NODE, pool_address, readable=False),), IDLE)
        remote = Tier.REMOTE_DRAM if in_dram else Tier.REMOTE_DISK
        return Elsewhere((Tier.SWITCH, remote) if served else (remote,), tuple(refs), least or IDLE)


def _forms(tier: Tier, found: Chunk | ChunkEntry | None) -> dict[Tier, StoredForm]:
    return {} if found is None or found.stored is None else {tier: found.stored}


def _in_cold(entry: ChunkEntry) -> Found:
    """A chunk that only the cold store has."""
    return Found(entry, (Tier.COLD,), (), stored=_forms(Tier.COLD, entry))
