"""How a request's chunks come to its node: where they are, what the gate says, and the fetch itself.

Chunks come from the node's own disk, from other nodes (from their disks by way of their DRAM) and from the switch, all
at the same time; the request goes on when the last of them is here.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from hostagent.api.messages import ChunkSource
from hostagent.pool.chunks import Chunk, Refusal
from kvproto.ids import ChunkKey
from kvproto.tiers.gate import Offer, Ticket
from kvproto.value.costs import Source
from planner.cluster.agent import Agent
from planner.cluster.clock import VirtualClock
from planner.cluster.controller import VirtualController
from planner.cluster.options import Sharing
from planner.cluster.requests import Request
from planner.hardware import Engine
from planner.network.delivery import Delivered, Delivery, Origin, Piece, Work
from planner.network.topology import SWITCH

_SOURCE = {Origin.HOLDER: ChunkSource.HOLDER, Origin.CAST: ChunkSource.CAST, Origin.SWITCH: ChunkSource.SWITCH}
_COST = {Origin.HOLDER: Source.REMOTE_DRAM, Origin.CAST: Source.REMOTE_DRAM, Origin.SWITCH: Source.SWITCH}


@dataclass(slots=True, eq=False)
class UnderWay:
    """A request between its arrival and its first token."""

    request: Request
    agent: Agent
    pinned: list[Chunk] = field(default_factory=list)
    """Leading chunks at hand, in the node's pool."""
    filling: dict[ChunkKey, Chunk] = field(default_factory=dict)
    lent: list[tuple[Agent, Chunk]] = field(default_factory=list)
    """Copies that holders keep while they are read."""
    routes: dict[ChunkKey, Source] = field(default_factory=dict)
    """Chunks that are brought, in prefix order, and what the gate takes each for; LOCAL_DRAM: it is here."""
    left: int = 0
    """Transfers that have not ended."""
    ticket: Ticket | None = None
    local: int = 0
    """Chunks that were here when it came."""
    origins: dict[ChunkKey, ChunkSource] = field(default_factory=dict)
    holders: dict[ChunkKey, int] = field(default_factory=dict)
    refused: int = 0
    """Tokens that the pool had and the gate left to the engine."""
    fetch_s: float = 0.0
    at_hand_s: float = 0.0
    """When everything that could be had was here."""
    queue_s: float = 0.0
    prefill_s: float = 0.0


class Transfers:
    """Works on the simulated network, each with who is told of its end."""

    def __init__(self, clock: VirtualClock, delivery: Delivery) -> None:
        self._clock = clock
        self._delivery = delivery
        self._numbers = itertools.count()
        self._then: dict[int, Callable[[Delivered], None]] = {}

    def __len__(self) -> int:
        return len(self._then)

    def start(
        self, node: int, pieces: Sequence[Piece], then: Callable[[Delivered], None], *, background: bool = False
    ) -> None:
        """Begin to bring pieces to a node."""
        work = Work(next(self._numbers), node, tuple(pieces), background=background)
        self._then[work.id] = then
        self._delivery.fetch(work, self._clock.now_s)

    def ended(self, delivered: Delivered) -> None:
        self._then.pop(delivered.work.id)(delivered)


class Bringing:
    """Of all nodes."""

    def __init__(
        self,
        sharing: Sharing,
        engine: Engine,
        clock: VirtualClock,
        delivery: Delivery,
        transfers: Transfers,
        controller: VirtualController | None,
        agents: Sequence[Agent],
    ) -> None:
        self._sharing = sharing
        self._engine = engine
        self._clock = clock
        self._delivery = delivery
        self._transfers = transfers
        self._controller = controller
        self._agents = agents

    # -- what there is

    def look_up(self, way: UnderWay) -> None:
        """Leading chunks that are here are pinned; of what else there is, so much as the gate agrees to is reserved
        room for: `way.routes`."""
        agent = way.agent
        agent.asked(way.request.keys)
        for key in way.request.keys:
            chunk = agent.find(key)
            if chunk is None:
                break
            agent.use(chunk)
            way.pinned.append(chunk)
        way.local = len(way.pinned)
        if self._controller is not None or agent.disk is not None:
            self._ask_the_gate(way)

    def _ask_the_gate(self, way: UnderWay) -> None:
        """How much of what others have is worth bringing."""
        offers = self._offers(way)
        if all(Source.LOCAL_DRAM in offer.sources for offer in offers):
            return
        agent, request = way.agent, way.request
        # What lies behind the offers is computed in any case.
        here, there = request.cached_tokens(way.local), request.cached_tokens(len(offers))
        recompute_s = self._engine.prefill_s(here, request.tokens) - self._engine.prefill_s(there, request.tokens)
        verdict = agent.gate.decide(offers, recompute_s, self._clock.now_ns)
        brought = len(verdict.routes)
        way.refused = request.cached_tokens(len(offers)) - request.cached_tokens(max(way.local, brought))
        self._make_room(way, verdict.routes)
        if any(route is not Source.LOCAL_DRAM for route in way.routes.values()):
            way.ticket = agent.gate.started(verdict)
        else:
            way.routes.clear()

    def _offers(self, way: UnderWay) -> list[Offer]:
        """Leading chunks of the request and where each can be had."""
        agent = way.agent
        offers = [Offer(agent.chunk_bytes, (Source.LOCAL_DRAM,))] * way.local
        for key in way.request.keys[way.local :]:
            if agent.find(key) is not None:
                offers.append(Offer(agent.chunk_bytes, (Source.LOCAL_DRAM,)))
            elif agent.disk is not None and agent.disk.is_loading(key):
                offers.append(Offer(agent.chunk_bytes, (Source.LOCAL_DISK,), coming=True))
            elif self._delivery.is_receiving(agent.node, key):
                offers.append(Offer(agent.chunk_bytes, (Source.REMOTE_DRAM,), coming=True))
            elif sources := self._sources(agent, key):
                offers.append(Offer(agent.chunk_bytes, sources))
            else:
                break
        return offers

    def _sources(self, agent: Agent, key: ChunkKey) -> tuple[Source, ...]:
        stored = agent.disk is not None and agent.disk.find(key) is not None
        return (Source.LOCAL_DISK,) * stored + self.elsewhere(agent.node, key)

    def elsewhere(self, node: int, key: ChunkKey) -> tuple[Source, ...]:
        """Where a chunk is besides this node, as the directory knows."""
        entry = self._controller.core.directory.get(key) if self._controller is not None else None
        if entry is None:
            return ()
        in_dram = any(holder != node for holder in entry.holders)
        on_disk = not in_dram and any(holder != node for holder in entry.disk_holders)
        return (Source.SWITCH,) * entry.served + (Source.REMOTE_DRAM,) * in_dram + (Source.REMOTE_DISK,) * on_disk

    def holder(self, way: UnderWay, key: ChunkKey, order: int) -> int | None:
        """Who is asked for a chunk: the switch if it serves it, else the least busy copy. Among equals every reader
        begins at another one and chunks do too, as `kvproto.session.holders` has it."""
        if self._controller is None:
            raise AssertionError("no directory without a controller")
        entry = self._controller.core.directory.get(key)
        if entry is None:
            return None
        if entry.served:
            return SWITCH
        node = way.agent.node
        holders = [int(holder) for holder in sorted(entry.holders) if holder != node]
        if self._sharing is Sharing.RELAY:
            holders += self._delivery.receiving(key, node)
        for holder in self._by_load(holders, node + order):
            chunk = self._agents[holder].find(key)
            if chunk is not None:
                self.lend(way, self._agents[holder], chunk)
                return holder
            if self._delivery.is_receiving(holder, key):
                return holder
        return None

    def _disk_holder(self, way: UnderWay, key: ChunkKey, order: int) -> Agent | None:
        """Who loads a chunk from its disk for this request."""
        entry = self._controller.core.directory.get(key) if self._controller is not None else None
        others = [int(one) for one in sorted(entry.disk_holders) if one != way.agent.node] if entry is not None else []
        for holder in self._by_load(others, way.agent.node + order):
            disk = self._agents[holder].disk
            if disk is not None and disk.find(key) is not None:
                return self._agents[holder]
        return None

    def _by_load(self, holders: Sequence[int], start: int) -> list[int]:
        start %= max(1, len(holders))
        return sorted([*holders[start:], *holders[:start]], key=self._delivery.load)

    @staticmethod
    def lend(way: UnderWay, holder: Agent, chunk: Chunk) -> None:
        """A holder keeps its copy while it is read, and counts the read."""
        holder.use(chunk)
        holder.pool.touch(chunk.key)
        way.lent.append((holder, chunk))

    def _make_room(self, way: UnderWay, routes: Sequence[Source]) -> None:
        """Choose holders for the chunks that are brought and not here, and reserve memory for them."""
        agent, keys = way.agent, way.request.keys
        for place in range(way.local, len(routes)):
            key, route = keys[place], routes[place]
            chunk = agent.find(key)
            if chunk is not None:
                # A gap in the prefix: what lies behind it is here already.
                agent.use(chunk)
                way.lent.append((agent, chunk))
                way.routes[key] = Source.LOCAL_DRAM
                continue
            if route in (Source.SWITCH, Source.REMOTE_DRAM):
                holder = self.holder(way, key, place)
                if holder is None:
                    return
                way.holders[key] = holder
            if route is not Source.LOCAL_DISK and not self._reserve(way, place):
                return
            way.routes[key] = route

    @staticmethod
    def _reserve(way: UnderWay, place: int) -> bool:
        keys = way.request.keys
        room = way.agent.reserve(keys[place], keys[place - 1] if place else None, place)
        if isinstance(room, Chunk):
            way.filling[keys[place]] = room
        return isinstance(room, Chunk) or room is Refusal.FILLING

    # -- the fetch

    def fetch(self, way: UnderWay, then: Callable[[UnderWay], None]) -> None:
        """Bring `way.routes`; `then` comes when it has ended, with what has come in `way.pinned`."""
        agent = way.agent
        agent.fetching += 1
        way.left = 1
        ended = partial(self._part_ended, way, then)
        pieces = [Piece(key, agent.chunk_bytes, holder) for key, holder in way.holders.items()]
        if pieces:
            way.left += 1
            self._transfers.start(agent.node, pieces, partial(self._received, way, ended))
        for place, (key, route) in enumerate(way.routes.items()):
            if route is Source.LOCAL_DISK:
                self._load(way, key, ended)
            elif route is Source.REMOTE_DISK:
                self._prepare(way, key, place, ended)
        ended()

    def _load(self, way: UnderWay, key: ChunkKey, ended: Callable[[], None]) -> None:
        """From this node's disk."""

        def loaded() -> None:
            way.origins[key] = ChunkSource.DISK
            chunk = way.agent.find(key)
            if chunk is not None:
                way.agent.use(chunk)
                way.lent.append((way.agent, chunk))
            ended()

        disk = way.agent.disk
        if disk is not None and disk.load(key, loaded):
            way.left += 1

    def _prepare(self, way: UnderWay, key: ChunkKey, order: int, ended: Callable[[], None]) -> None:
        """From another node's disk: it loads the chunk, then sends it."""
        holder = self._disk_holder(way, key, order)

        def ready() -> None:
            chunk = holder.find(key) if holder is not None else None
            if holder is None or chunk is None:
                ended()
                return
            self.lend(way, holder, chunk)
            way.holders[key] = holder.node
            piece = Piece(key, way.agent.chunk_bytes, holder.node)
            self._transfers.start(way.agent.node, [piece], partial(self._received, way, ended))

        if holder is not None and holder.disk is not None and holder.disk.load(key, ready):
            way.left += 1

    @staticmethod
    def _received(way: UnderWay, ended: Callable[[], None], delivered: Delivered) -> None:
        for key, origin in delivered.origins.items():
            way.origins[key] = _SOURCE[origin]
        ended()

    def _part_ended(self, way: UnderWay, then: Callable[[UnderWay], None]) -> None:
        way.left -= 1
        if way.left:
            return
        agent = way.agent
        way.fetch_s = self._clock.now_s - way.request.at_s
        if way.ticket is not None:
            agent.gate.ended(way.ticket, self._arrived(way), way.fetch_s, self._clock.now_ns)
        agent.fetch_ended()
        self._commit(way)
        for key in way.routes:
            chunk = agent.find(key)
            if chunk is None:
                break
            agent.use(chunk)
            way.pinned.append(chunk)
            if key in way.origins:
                agent.used(key, way.origins[key], way.fetch_s, max(0, way.holders.get(key, agent.node)))
        then(way)

    @staticmethod
    def _arrived(way: UnderWay) -> Mapping[Source, int]:
        """Bytes by the source that they came from."""
        arrived: Counter[Source] = Counter()
        for key, origin in way.origins.items():
            route = way.routes[key]
            source = {ChunkSource.DISK: Source.LOCAL_DISK, ChunkSource.SWITCH: Source.SWITCH}.get(origin)
            by_disk = Source.REMOTE_DISK if route is Source.REMOTE_DISK else Source.REMOTE_DRAM
            arrived[source or by_disk] += way.agent.chunk_bytes
        return arrived

    def _commit(self, way: UnderWay) -> None:
        """Copies that came are here. Who may learn of them depends on the kind of pool."""
        agent = way.agent
        for key, chunk in way.filling.items():
            if key not in way.origins:
                agent.pool.abort(chunk)
                continue
            agent.commit(chunk)
            if self._sharing in (Sharing.UNICAST, Sharing.REPLICAS):
                agent.keep_private(key)
            elif self._sharing is not Sharing.RELAY:
                agent.fetched_copy(key)
        agent.changed()
