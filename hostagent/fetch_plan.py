"""How far the keys of a fetch are brought, and from where: the gate's verdict carried into the pool.

Pins what is here and reserves room for what is to come. What is under way belongs to `fetching`, which says what
arrives already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hostagent.api.messages import Status
from hostagent.arriving import Arriving
from hostagent.directory import ChunkEntry, DirectoryReplica
from hostagent.pool.chunks import Chunk, ChunkPool, Refusal
from hostagent.sources import LocalDisk, Sources
from kvproto.ids import ChunkKey
from kvproto.tiers.gate import Gate, Offer, Verdict
from kvproto.value import Source, Touch


@dataclass(slots=True)
class FetchPlan:
    """What is done about a fetch."""

    verdict: Verdict
    stopped: Status
    """Why the keys asked for go no further than `keys`; OK when they do."""
    untaught: Sequence[Offer] = ()
    """All offers, when the pools are to learn of the fetch after it."""
    keys: tuple[ChunkKey, ...] = ()
    pinned: dict[ChunkKey, Chunk] = field(default_factory=dict)
    to_load: list[ChunkKey] = field(default_factory=list)
    """Chunks whose way from the disk is to be begun."""
    to_come: list[tuple[ChunkEntry, Chunk, Source]] = field(default_factory=list)
    """Chunks with room in the pool, FILLING, and where each is asked of."""


class FetchPlanner:
    """One node's. `arriving`: chunks under way; `kept(key)`: one whose bytes a fetch under way still has although the
    pool dropped it."""

    def __init__(
        self,
        pool: ChunkPool,
        directory: DirectoryReplica,
        disk: LocalDisk,
        sources: Sources,
        gate: Gate,
        arriving: Mapping[ChunkKey, Arriving],
        kept: Callable[[ChunkKey], Chunk | None],
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._disk = disk
        self._sources = sources
        self._gate = gate
        self._arriving = arriving
        self._kept = kept

    def plan(
        self, keys: Sequence[ChunkKey], recompute_s: float | None, *, from_disk_only: bool, is_engines: bool
    ) -> FetchPlan:
        """Local chunks are pinned and room is reserved for the others when it returns."""
        offers: list[Offer] = []
        stopped = Status.OK
        for key in keys:
            offer = self._offer(key, from_disk_only=from_disk_only)
            if offer is None:
                stopped = Status.NOT_FOUND
                break
            offers.append(offer)
        untaught: Sequence[Offer] = offers if is_engines and not from_disk_only else ()
        if any(Source.LOCAL_DRAM not in offer.sources for offer in untaught):
            # Before room is made for what comes. What is all here is handed over first.
            self.teach(keys, untaught)
            untaught = ()
        verdict = self._gate.decide(offers, recompute_s, time.monotonic_ns(), len(keys) - len(offers))
        plan = FetchPlan(verdict, stopped if len(verdict.routes) == len(offers) else Status.GATE, untaught)
        plan.keys = tuple(keys[: len(verdict.routes)])
        # Pinned first, all of them: room for one chunk must not be made of another one of the same fetch.
        for key in plan.keys:
            chunk = self._here(key)
            if chunk is not None:
                self._pool.pin(chunk)
                plan.pinned[key] = chunk
        for key, route in zip(plan.keys, verdict.routes, strict=True):
            if key in plan.pinned or key in self._arriving:
                continue
            refusal = self._make_room(plan, key, route)
            if refusal is not None:
                self._cut(plan, key, refusal)
                break
        return plan

    def teach(self, keys: Sequence[ChunkKey], offers: Sequence[Offer]) -> None:
        """An engine asks for these: the pools learn what they are worth. What nobody has is put here later, and counts
        then."""
        touches = []
        parent: ChunkKey | None = None
        for at, (key, offer) in enumerate(zip(keys, offers, strict=False)):
            known = self._pool.find(key) or self._directory.find(key)
            position = known.position if known is not None else at
            touches.append(Touch(key, known.parent if known is not None else parent, position, offer.size_bytes))
            parent = key
        if touches:
            self._pool.fetched(touches)
            self._disk.fetched(touches)

    def _here(self, key: ChunkKey) -> Chunk | None:
        return self._pool.find(key) or self._kept(key)

    def _cut(self, plan: FetchPlan, key: ChunkKey, why: Status) -> None:
        """End a plan before `key`, giving back pins behind it."""
        place = plan.keys.index(key)
        for behind in plan.keys[place:]:
            chunk = plan.pinned.pop(behind, None)
            if chunk is not None:
                self._pool.unpin(chunk)
        plan.keys, plan.stopped = plan.keys[:place], why

    def _offer(self, key: ChunkKey, *, from_disk_only: bool) -> Offer | None:
        """Where a chunk can be had; None: nowhere."""
        chunk = self._here(key)
        if chunk is not None:
            return Offer(chunk.size_bytes, (Source.LOCAL_DRAM,))
        arriving = self._arriving.get(key)
        if arriving is not None:
            return Offer(arriving.entry.size_bytes, (arriving.route,), coming=True)
        return self._sources.offer(key, from_disk_only=from_disk_only)

    def _make_room(self, plan: FetchPlan, key: ChunkKey, route: Source) -> Status | None:
        """Memory for an arriving chunk; the reason when there is none."""
        entry = self._sources.entry(key)
        made = self._pool.reserve(key, entry.parent, entry.size_bytes, entry.position)
        if isinstance(made, Refusal):
            # FILLING: an engine here is putting this very chunk; it will be there by itself in a moment.
            return Status.FILLING if made is Refusal.FILLING else Status.POOL_FULL
        plan.to_come.append((entry, made, route))
        if route is Source.LOCAL_DISK:
            plan.to_load.append(key)
        return None
