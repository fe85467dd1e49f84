"""The end of a fetch: who gets its chunks, and what the gate, the pools and the metrics learn from how it went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hostagent.core import effects
from hostagent.core.fetch import Fetch, FetchObserver, FetchResult, Purpose
from hostagent.core.node import Node
from hostagent.core.plan import FetchPlan, FetchPlanner
from hostagent.pool.chunks import Chunk
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.gate import Gate
from kvpolicy.value import Tier
from kvproto.commands import DeliverFetch, Outcome

_OUTCOMES = {Outcome.GONE: Status.UNAVAILABLE, Outcome.LATE: Status.DEADLINE}
_TIERS = {
    ChunkSource.HOLDER: Tier.REMOTE_DRAM,
    ChunkSource.CAST: Tier.REMOTE_DRAM,
    ChunkSource.SWITCH: Tier.SWITCH,
    ChunkSource.DISK: Tier.LOCAL_DISK,
    ChunkSource.COLD: Tier.COLD,
}
"""The tier whose costs a chunk teaches, by how it came; REMOTE_DRAM also stands for a node that had it on disk."""


class Deliveries:
    """One node's."""

    def __init__(
        self,
        node: Node,
        gate: Gate,
        planner: FetchPlanner,
        observer: FetchObserver,
        busy: Callable[[], bool],
    ) -> None:
        """`busy()`: whether an engine waits for something."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self._gate = gate
        self._planner = planner
        self._observer = observer
        self._busy = busy
        self._untaught: list[FetchPlan] = []
        self._teach_soon = node.alarms.add(self.teach)

    def local(self, plan: FetchPlan, ended: Callable[[FetchResult], None]) -> None:
        """All of a plan's chunks are here."""
        ended(FetchResult(plan.stopped, tuple((plan.pinned[key], ChunkSource.LOCAL) for key in plan.keys)))
        for chunk in plan.pinned.values():
            self._observer.chunk_came(chunk.key, ChunkSource.LOCAL, chunk.size_bytes, 0.0, 0)
        self.count(plan.stopped, 0.0, [(ChunkSource.LOCAL, plan.pinned[key].size_bytes) for key in plan.keys])

    def learn_soon(self, plan: FetchPlan) -> None:
        """The pools learn from a plan once its engine has been answered, or a holder asked: others go on meanwhile."""
        if plan.untaught:
            self._untaught.append(plan)
            self._teach_soon.set(self._clock.now_ns)

    def teach(self) -> None:
        """Have the pools learn from the fetches before, if they have not."""
        if not self._untaught:
            return
        self._teach_soon.cancel()
        plans, self._untaught = self._untaught, []
        for plan in plans:
            self._planner.teach(plan.untaught)

    def over(self, fetch: Fetch, command: DeliverFetch, forget: Callable[[Fetch], None]) -> None:
        """A fetch is over, and is none of those under way any more. `forget` gives back its own pins before whoever
        asked hears of it; the chunks delivered are pinned once for them."""
        now_ns = self._clock.now_ns
        seconds = (now_ns - fetch.started_ns) / 1e9
        places = range(command.leading) if command.places is None else command.places
        delivered, arrived = self._delivered(fetch, [fetch.keys[place] for place in places], command.sources)
        status = fetch.stopped if command.leading == len(fetch.keys) else _OUTCOMES[command.outcome]
        if fetch.purpose is Purpose.TWIN:
            self._gate.heard(fetch.ticket, arrived, seconds, now_ns)
        elif fetch.probe is None:
            self._gate.ended(fetch.ticket, arrived, seconds, now_ns, brought=command.leading)
        else:
            self._gate.cancelled(fetch.ticket)
            alone = fetch.ticket.alone and not fetch.ticket.contended
            self._gate.probed(fetch.probe, seconds if arrived else None, now_ns, alone=alone)
        forget(fetch)
        fetch.ended(FetchResult(status, delivered))
        for chunk, source in delivered:
            address = fetch.came_from.get(chunk.key)
            holder = self._directory.node_at(address) if address is not None else None
            number = holder.node if holder is not None else 0
            # Of what was decoded, the twin crossed the network: that is told of the twin.
            told = ChunkSource.LOCAL if chunk.key in fetch.decoded else source
            self._observer.chunk_came(chunk.key, told, chunk.size_bytes, seconds, number)
        came = set(places)
        for place, key in enumerate(fetch.keys):
            if place not in came:
                self._observer.chunk_missed(key, seconds)
        if command.leading < len(fetch.keys):
            self._directory.failed(fetch.keys[command.leading])
        if fetch.purpose is not Purpose.TWIN:
            self.count(status, seconds, [(source, chunk.size_bytes) for chunk, source in delivered])

    def _delivered(
        self, fetch: Fetch, keys: Sequence[ChunkKey], sources: Sequence[ChunkSource]
    ) -> tuple[tuple[tuple[Chunk, ChunkSource], ...], Counter[Tier]]:
        """The chunks, pinned, with how they came, and the bytes that arrived by tier; the fetch of the twins tells
        of those that were decoded."""
        delivered: list[tuple[Chunk, ChunkSource]] = []
        arrived: Counter[Tier] = Counter()
        for key, source in zip(keys, sources, strict=True):
            chunk, route = fetch.pinned[key], fetch.routes.get(key)
            self._pool.pin(chunk)
            source = fetch.source_of(key, source)
            if source is not ChunkSource.LOCAL and key not in fetch.decoded:
                tier = Tier.REMOTE_DISK if route is Tier.REMOTE_DISK else _TIERS[source]
                reckoned = fetch.reckoned.get(key) if route is tier else None
                arrived[tier] += chunk.size_bytes if reckoned is None else reckoned
            delivered.append((chunk, source))
        return tuple(delivered), arrived

    def count(self, status: Status, seconds: float, delivered: Sequence[tuple[ChunkSource, int]]) -> None:
        """For the metrics; background work goes on if no engine waits any more."""
        self._emit(effects.FetchEnded(status, seconds, tuple(delivered)))
        if not self._busy():
            self._observer.engines_served()
