"""Replays a trace on a simulated cluster.

A request comes to a node, which looks into its own pool, asks the directory for the rest, has its gate decide whether
to fetch, and computes what is missing; then it keeps what it computed. Pools, directory, values, switch admission,
gate and reports are the daemons' own classes; engine and links are models (`planner.hardware`, `planner.network`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hostagent.api.messages import ChunkSource
from hostagent.pool.chunks import Chunk, Refusal
from kvproto.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc
from kvproto.tiers.gate import Offer, Ticket
from kvproto.value.costs import Source
from planner.cluster.agent import Agent
from planner.cluster.clock import VirtualClock
from planner.cluster.controller import VirtualController
from planner.cluster.figures import ReplayFigures, Uplinks, figures_of
from planner.cluster.options import Scenario, Sharing
from planner.cluster.requests import Outcome, Request
from planner.cluster.routing import Router
from planner.cluster.switch import VirtualSwitch
from planner.network.delivery import Delivered, Delivery, Origin, Piece, Work
from planner.network.terms import WireTerms
from planner.network.topology import SWITCH, Topology

_SOURCE = {Origin.HOLDER: ChunkSource.HOLDER, Origin.CAST: ChunkSource.CAST, Origin.SWITCH: ChunkSource.SWITCH}
_STALLED_S = 36_000.0
"""No fetch and no computation takes so long: the model has a mistake, and says so instead of running for ever."""
_COST = {Origin.HOLDER: Source.REMOTE_DRAM, Origin.CAST: Source.REMOTE_DRAM, Origin.SWITCH: Source.SWITCH}
_CASTING = (Sharing.CAST, Sharing.CAST_SWITCH)


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A request between its arrival and its first token."""

    request: Request
    agent: Agent
    pinned: list[Chunk] = field(default_factory=list)
    """Leading chunks at hand, in the node's pool."""
    filling: dict[ChunkKey, Chunk] = field(default_factory=dict)
    lent: list[tuple[Agent, Chunk]] = field(default_factory=list)
    """Copies that holders keep while they are read."""
    wanted: tuple[Piece, ...] = ()
    ticket: Ticket | None = None
    local: int = 0
    """Chunks that were here when it came."""
    origins: dict[ChunkKey, Origin] = field(default_factory=dict)
    refused: int = 0
    """Tokens that the pool had and the gate left to the engine."""
    fetch_s: float = 0.0
    at_hand_s: float = 0.0
    """When everything that could be had was here."""
    queue_s: float = 0.0
    prefill_s: float = 0.0


class Replay:
    """One scenario. `run` may be called once."""

    def __init__(self, scenario: Scenario) -> None:
        cluster = scenario.cluster
        self.scenario = scenario
        self.clock = VirtualClock()
        self._sharing = scenario.sharing
        self._engine = cluster.engine
        terms = WireTerms(cluster.segment_bytes, cluster.mtu_bytes, cluster.rtt_s)
        self.topology = Topology(cluster.nodes, cluster.link_rate)
        self.delivery = Delivery(
            self.topology, terms, casts=self._sharing in _CASTING, relays=self._sharing is Sharing.RELAY
        )
        with_switch = self._sharing is Sharing.CAST_SWITCH and cluster.switch_bytes >= cluster.chunk_bytes
        switch = VirtualSwitch(cluster.switch_bytes, cluster.segment_bytes) if with_switch else None
        self.controller: VirtualController | None = None
        if self._sharing is not Sharing.NONE:
            self.controller = VirtualController(self.clock, cluster.nodes, cluster.local_dram_bytes, switch)
        self.agents = [self._agent(node) for node in range(cluster.nodes)]
        self.router = Router(cluster.routing, self.agents)
        self._work = itertools.count()
        self._arrived: dict[int, Callable[[Delivered], None]] = {}
        self._outcomes: list[Outcome] = []
        self._happened_s = 0.0
        """When a request last came or got on."""
        self._uplinks = Uplinks(self.topology, self.delivery)

    def _agent(self, node: int) -> Agent:
        cluster = self.scenario.cluster
        send = None if self.controller is None else self._sender(self.controller, node)
        return Agent(
            node, self.clock, cluster.local_dram_bytes, cluster.chunk_bytes, cluster.link_rate, send, self._task
        )

    @staticmethod
    def _sender(controller: VirtualController, node: int) -> Callable[[rpc.FromAgent], None]:
        return lambda message: controller.message(node, message)

    # -- time

    def run(self, requests: Sequence[Request], progress: Callable[[float], None] = lambda _: None) -> ReplayFigures:
        """Replay the requests (in order of arrival) until each has its first token. `progress`: share done."""
        if self.controller is not None:
            self.controller.attach(self.agents)
        arrivals = iter(requests)
        self._arrive_next(arrivals)
        told, last_s = 0, requests[-1].at_s if requests else 0.0
        self._sample(last_s)
        while len(self._outcomes) < len(requests):
            self.step()
            if len(self._outcomes) >= told + 200:
                told = len(self._outcomes)
                progress(told / len(requests))
        self._uplinks.end(self.clock.now_s)
        return figures_of(self, self._outcomes, self._uplinks)

    def step(self) -> None:
        """Go to the next moment when something happens, and let it happen."""
        now_s = min(self.clock.next_s, self.delivery.next_s())
        if now_s > self._happened_s + _STALLED_S:
            raise AssertionError(f"nothing has happened to {len(self._arrived)} fetches since {self._happened_s:.3f} s")
        for delivered in self.delivery.advance(now_s):
            self.clock.advance(now_s)
            self._arrived.pop(delivered.work.id)(delivered)
            self._happened_s = now_s
        self.clock.advance(now_s)
        self._report_heat()

    def _arrive_next(self, arrivals: Iterator[Request]) -> None:
        request = next(arrivals, None)
        if request is not None:
            self._happened_s = max(self._happened_s, request.at_s)
            self.clock.call_at(request.at_s, self._arrive, request, arrivals)

    def _sample(self, until_s: float) -> None:
        self._uplinks.sample(self.clock.now_s)
        if self.clock.now_s < until_s:
            self.clock.call_later(1.0, self._sample, until_s)

    def _report_heat(self) -> None:
        joined, self.delivery.casts_joined = self.delivery.casts_joined, []
        if self.controller is not None:
            for key, members in joined:
                if isinstance(key, bytes):
                    self.controller.heat(ChunkKey(key), sum(1 << member for member in members))

    # -- a request

    def _arrive(self, request: Request, arrivals: Iterator[Request]) -> None:
        self._arrive_next(arrivals)
        node = self.router.choose(request)
        self.router.in_flight[node] += 1
        way = _UnderWay(request, self.agents[node])
        self._look_up(way)
        if way.wanted:
            self._fetch(way)
        else:
            self._compute(way)

    def _look_up(self, way: _UnderWay) -> None:
        """Leading chunks that are here are pinned; then those that others have are wanted, if the gate agrees."""
        agent = way.agent
        agent.asked(way.request.keys)
        for key in way.request.keys:
            chunk = agent.find(key)
            if chunk is None:
                break
            agent.use(chunk)
            way.pinned.append(chunk)
        way.local = len(way.pinned)
        if self.controller is not None:
            self._ask_the_gate(way)

    def _ask_the_gate(self, way: _UnderWay) -> None:
        """How much of what others have is worth bringing."""
        offers = self._offers(way)
        if all(Source.LOCAL_DRAM in offer.sources for offer in offers):
            return
        agent, request = way.agent, way.request
        recompute_s = self._engine.prefill_s(request.cached_tokens(way.local), request.tokens)
        verdict = agent.gate.decide(offers, recompute_s, self.clock.now_ns)
        brought = len(verdict.routes)
        way.refused = request.cached_tokens(len(offers)) - request.cached_tokens(max(way.local, brought))
        self._make_room(way, brought)
        if way.wanted:
            way.ticket = agent.gate.started(verdict)

    def _offers(self, way: _UnderWay) -> list[Offer]:
        """Leading chunks of the request and where each can be had."""
        agent = way.agent
        offers = [Offer(agent.chunk_bytes, (Source.LOCAL_DRAM,))] * way.local
        for key in way.request.keys[way.local :]:
            if agent.find(key) is not None:
                offers.append(Offer(agent.chunk_bytes, (Source.LOCAL_DRAM,)))
            elif self.delivery.is_receiving(agent.node, key):
                offers.append(Offer(agent.chunk_bytes, (Source.REMOTE_DRAM,), coming=True))
            elif sources := self._sources(agent.node, key):
                offers.append(Offer(agent.chunk_bytes, sources))
            else:
                break
        return offers

    def _sources(self, node: int, key: ChunkKey) -> tuple[Source, ...]:
        if self.controller is None:
            raise AssertionError("no directory without a controller")
        entry = self.controller.core.directory.get(key)
        if entry is None:
            return ()
        others = any(holder != node for holder in entry.holders)
        return (Source.SWITCH,) * entry.served + (Source.REMOTE_DRAM,) * others

    def _holder(self, way: _UnderWay, key: ChunkKey, order: int) -> int | None:
        """Who is asked for a chunk: the switch if it serves it, else the least busy copy. Among equals every reader
        begins at another one and chunks do too, as `kvproto.session.holders` has it."""
        if self.controller is None:
            raise AssertionError("no directory without a controller")
        entry = self.controller.core.directory.get(key)
        if entry is None:
            return None
        if entry.served:
            return SWITCH
        node = way.agent.node
        holders = [int(holder) for holder in sorted(entry.holders) if holder != node]
        if self._sharing is Sharing.RELAY:
            holders += self.delivery.receiving(key, node)
        start = (node + order) % max(1, len(holders))
        holders = sorted(holders[start:] + holders[:start], key=self.delivery.load)
        for holder in holders:
            chunk = self.agents[holder].find(key)
            if chunk is not None:
                self.agents[holder].use(chunk)
                self.agents[holder].pool.touch(key)
                way.lent.append((self.agents[holder], chunk))
                return holder
            if self.delivery.is_receiving(holder, key):
                return holder
        return None

    def _make_room(self, way: _UnderWay, count: int) -> None:
        """Choose holders for the chunks up to `count` that are not here, and reserve memory for them."""
        agent, keys = way.agent, way.request.keys
        wanted: list[Piece] = []
        for place in range(way.local, count):
            key = keys[place]
            chunk = agent.find(key)
            holder = agent.node if chunk is not None else self._holder(way, key, place)
            if holder is None:
                break
            if chunk is not None:
                # A gap in the prefix: what lies behind it is here already.
                agent.use(chunk)
                way.lent.append((agent, chunk))
            else:
                room = agent.reserve(key, keys[place - 1] if place else None, place)
                if isinstance(room, Chunk):
                    way.filling[key] = room
                elif room is not Refusal.FILLING:
                    break
            wanted.append(Piece(key, agent.chunk_bytes, holder))
        if any(piece.holder != agent.node for piece in wanted):
            way.wanted = tuple(wanted)

    def _fetch(self, way: _UnderWay) -> None:
        pieces = tuple(piece for piece in way.wanted if piece.holder != way.agent.node)
        work = Work(next(self._work), way.agent.node, pieces)
        self._arrived[work.id] = lambda delivered: self._fetched(way, delivered)
        self.delivery.fetch(work, self.clock.now_s)

    def _fetched(self, way: _UnderWay, delivered: Delivered) -> None:
        agent = way.agent
        way.fetch_s = self.clock.now_s - way.request.at_s
        if way.ticket is not None:
            arrived: Counter[Source] = Counter()
            for origin in delivered.origins.values():
                arrived[_COST[origin]] += agent.chunk_bytes
            agent.gate.ended(way.ticket, arrived, way.fetch_s, self.clock.now_ns)
        self._commit(agent, way.filling)
        for piece in way.wanted:
            chunk = agent.find(piece.key)
            if chunk is None:
                break
            agent.use(chunk)
            way.pinned.append(chunk)
            if piece.key in delivered.origins:
                origin = way.origins[piece.key] = delivered.origins[piece.key]
                agent.used(piece.key, _SOURCE[origin], way.fetch_s, max(0, piece.holder))
        self._compute(way)

    def _commit(self, agent: Agent, filling: dict[ChunkKey, Chunk]) -> None:
        """Copies that came are here. Who may learn of them depends on the kind of pool."""
        for key, chunk in filling.items():
            agent.commit(chunk)
            if self._sharing in (Sharing.UNICAST, Sharing.REPLICAS):
                agent.keep_private(key)
            elif self._sharing is not Sharing.RELAY:
                agent.fetched_copy(key)
        agent.changed()

    def _compute(self, way: _UnderWay) -> None:
        """Everything that could be had is here: queue for the engine."""
        for holder, chunk in way.lent:
            holder.release([chunk])
        way.lent.clear()
        way.at_hand_s = self.clock.now_s
        way.agent.engine.submit(lambda: self._begin(way), lambda: self._first_token(way))

    def _begin(self, way: _UnderWay) -> float:
        request = way.request
        cached = request.cached_tokens(len(way.pinned))
        way.queue_s = self.clock.now_s - way.at_hand_s
        way.prefill_s = self._engine.prefill_s(cached, request.tokens)
        return self._engine.load_s(way.local * way.agent.chunk_bytes) + way.prefill_s

    def _first_token(self, way: _UnderWay) -> None:
        agent, request = way.agent, way.request
        self.router.in_flight[agent.node] -= 1
        for chunk in way.pinned[: way.local]:
            agent.used(chunk.key, ChunkSource.LOCAL, 0.0, agent.node)
        for key in request.keys[len(way.pinned) :]:
            agent.used(key, None, 0.0, 0)
        stored = agent.store(request.keys)
        if self._sharing is Sharing.REPLICAS:
            self._replicate(agent, request, stored)
        agent.release(way.pinned)
        self._outcomes.append(self._outcome(way))
        self._happened_s = self.clock.now_s

    def _outcome(self, way: _UnderWay) -> Outcome:
        request = way.request
        by_origin = dict.fromkeys(Origin, 0)
        local = 0
        for place, chunk in enumerate(way.pinned):
            tokens = request.cached_tokens(place + 1) - request.cached_tokens(place)
            origin = way.origins.get(chunk.key)
            if origin is None:
                local += tokens
            else:
                by_origin[origin] += tokens
        return Outcome(
            at_s=request.at_s,
            ttft_s=self.clock.now_s - request.at_s + self._engine.step_s,
            fetch_s=way.fetch_s,
            queue_s=way.queue_s,
            prefill_s=way.prefill_s,
            tokens=request.tokens,
            local_tokens=local,
            holder_tokens=by_origin[Origin.HOLDER],
            cast_tokens=by_origin[Origin.CAST],
            switch_tokens=by_origin[Origin.SWITCH],
            refused_tokens=way.refused,
        )

    # -- in the background

    def _replicate(self, agent: Agent, request: Request, stored: Sequence[ChunkKey]) -> None:
        """Write new chunks to the next nodes, as many as make up the copies."""
        if not stored:
            return
        nodes = len(self.agents)
        for step in range(1, min(self.scenario.cluster.replicas, nodes)):
            self._copy(self.agents[(agent.node + step) % nodes], agent, request.keys, set(stored))

    def _copy(self, target: Agent, source: Agent, keys: Sequence[ChunkKey], wanted: set[ChunkKey]) -> None:
        filling, pieces, lent = {}, [], []
        for place, key in enumerate(keys):
            if key not in wanted:
                continue
            room = target.reserve(key, keys[place - 1] if place else None, place)
            chunk = source.find(key)
            if not isinstance(room, Chunk):
                continue
            if chunk is None:
                target.pool.abort(room)
                continue
            source.pool.pin(chunk)
            lent.append(chunk)
            filling[key] = room
            pieces.append(Piece(key, target.chunk_bytes, source.node))

        def arrived(_: Delivered) -> None:
            for chunk in filling.values():
                target.commit(chunk)
            target.changed()
            source.release(lent)

        self._in_background(target.node, pieces, arrived)

    def _in_background(self, node: int, pieces: Sequence[Piece], arrived: Callable[[Delivered], None]) -> None:
        work = Work(next(self._work), node, tuple(pieces), background=True)
        self._arrived[work.id] = arrived
        self.delivery.fetch(work, self.clock.now_s)

    def _task(self, node: int, task: rpc.Task) -> None:
        """Work that the controller gives an agent."""
        agent = self.agents[node]
        match task.WhichOneof("work"):
            case "fill":
                self._fill(agent, task)
            case "fetch":
                self._bring(agent, task)
            case "drop":
                failed = agent.drop([ChunkKey(key) for key in task.drop.keys])
                self.clock.call_later(0.0, agent.answer, task.task, len(task.drop.keys), 0, failed)
            case other:
                raise AssertionError(f"nothing in a replay leads to a task of kind {other}")

    def _fill(self, agent: Agent, task: rpc.Task) -> None:
        """Send a chunk into the switch."""
        key = ChunkKey(task.fill.key)
        chunk = agent.find(key)
        if chunk is None:
            self.clock.call_later(0.0, agent.answer, task.task, 0, 0, [key])
            return
        agent.pool.pin(chunk)

        def filled(_: Delivered) -> None:
            agent.release([chunk])
            agent.answer(task.task, task.fill.segments, chunk.size_bytes)

        self._in_background(self.topology.sink, [Piece((key, "fill"), chunk.size_bytes, agent.node)], filled)

    def _bring(self, agent: Agent, task: rpc.Task) -> None:
        """Fetch chunks for the pool: pushes, spills."""
        way = _UnderWay(Request(self.clock.now_s, 1, tuple(ChunkKey(key) for key in task.fetch.keys)), agent)
        pieces: list[Piece] = []
        for key in way.request.keys:
            holder = None if agent.find(key) is not None else self._holder(way, key, len(pieces))
            if holder is None:
                continue
            entry = self.controller.core.directory.get(key) if self.controller is not None else None
            room = agent.reserve(key, entry.facts.parent if entry else None, entry.facts.position if entry else 0)
            if isinstance(room, Chunk):
                way.filling[key] = room
                pieces.append(Piece(key, agent.chunk_bytes, holder))

        def arrived(delivered: Delivered) -> None:
            for holder, chunk in way.lent:
                holder.release([chunk])
            for chunk in way.filling.values():
                agent.commit(chunk)
            agent.changed()
            agent.answer(task.task, len(delivered.work.pieces), len(delivered.work.pieces) * agent.chunk_bytes)

        self._in_background(agent.node, pieces, arrived)
