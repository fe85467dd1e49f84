"""Replays a trace on a simulated cluster.

A request comes to a node, which looks into its own pool, asks the directory for the rest, has its gate decide whether
to fetch, and computes what is missing; then it keeps what it computed. Pools, directory, values, switch admission,
gate and reports are the daemons' own classes; engine and links are models (`planner.hardware`, `planner.network`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hostagent.api.messages import ChunkSource
from kvproto.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc
from planner.cluster.agent import Agent
from planner.cluster.background import Background
from planner.cluster.bringing import Bringing, Transfers, UnderWay
from planner.cluster.clock import VirtualClock
from planner.cluster.controller import VirtualController
from planner.cluster.figures import ReplayFigures, Uplinks, figures_of
from planner.cluster.options import Scenario, Sharing
from planner.cluster.requests import Outcome, Request
from planner.cluster.routing import Router
from planner.cluster.switch import VirtualSwitch
from planner.network.delivery import Delivery
from planner.network.terms import WireTerms
from planner.network.topology import Topology

_STALLED_S = 36_000.0
"""No fetch and no computation takes so long: the model has a mistake, and says so instead of running for ever."""
_CASTING = (Sharing.CAST, Sharing.CAST_SWITCH)


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
            self.controller = VirtualController(
                self.clock, cluster.nodes, cluster.local_dram_bytes, switch, cluster.local_disk_bytes
            )
        self._transfers = Transfers(self.clock, self.delivery)
        self.agents: list[Agent] = []
        self._bringing = Bringing(
            self._sharing,
            self._engine,
            self.clock,
            self.delivery,
            self._transfers,
            self.controller,
            self.agents,
        )
        self._background = Background(
            self.clock, self.topology, self._transfers, self._bringing, self.controller, self.agents
        )
        self.agents += [self._agent(node) for node in range(cluster.nodes)]
        self.router = Router(cluster.routing, self.agents)
        self._outcomes: list[Outcome] = []
        self._happened_s = 0.0
        """When a request last came or got on."""
        self._uplinks = Uplinks(self.topology, self.delivery)

    def _agent(self, node: int) -> Agent:
        send = None if self.controller is None else self._sender(self.controller, node)
        cluster, elsewhere = self.scenario.cluster, self._bringing.elsewhere
        return Agent(node, self.clock, cluster, send, self._background.task, elsewhere)

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
            raise AssertionError(
                f"nothing has happened to {len(self._transfers)} fetches since {self._happened_s:.3f} s"
            )
        for delivered in self.delivery.advance(now_s):
            self.clock.advance(now_s)
            self._transfers.ended(delivered)
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
        way = UnderWay(request, self.agents[node])
        self._bringing.look_up(way)
        if way.routes:
            self._bringing.fetch(way, self._compute)
        else:
            self._compute(way)

    def _compute(self, way: UnderWay) -> None:
        """Everything that could be had is here: queue for the engine."""
        for holder, chunk in way.lent:
            holder.release([chunk])
        way.lent.clear()
        way.at_hand_s = self.clock.now_s
        way.agent.engine.submit(lambda: self._begin(way), lambda: self._first_token(way))

    def _begin(self, way: UnderWay) -> float:
        request = way.request
        cached = request.cached_tokens(len(way.pinned))
        way.queue_s = self.clock.now_s - way.at_hand_s
        way.prefill_s = self._engine.prefill_s(cached, request.tokens)
        return self._engine.load_s(way.local * way.agent.chunk_bytes) + way.prefill_s

    def _first_token(self, way: UnderWay) -> None:
        agent, request = way.agent, way.request
        self.router.in_flight[agent.node] -= 1
        for chunk in way.pinned[: way.local]:
            agent.used(chunk.key, ChunkSource.LOCAL, 0.0, agent.node)
        for key in request.keys[len(way.pinned) :]:
            agent.used(key, None, 0.0, 0)
        stored = agent.store(request.keys)
        if self._sharing is Sharing.REPLICAS:
            self._background.replicate(agent, request, stored, self.scenario.cluster.replicas)
        agent.release(way.pinned)
        self._outcomes.append(self._outcome(way))
        self._happened_s = self.clock.now_s

    def _outcome(self, way: UnderWay) -> Outcome:
        request = way.request
        by_origin = dict.fromkeys(ChunkSource, 0)
        for place, chunk in enumerate(way.pinned):
            tokens = request.cached_tokens(place + 1) - request.cached_tokens(place)
            by_origin[way.origins.get(chunk.key, ChunkSource.LOCAL)] += tokens
        return Outcome(
            at_s=request.at_s,
            ttft_s=self.clock.now_s - request.at_s + self._engine.step_s,
            fetch_s=way.fetch_s,
            queue_s=way.queue_s,
            prefill_s=way.prefill_s,
            tokens=request.tokens,
            local_tokens=by_origin[ChunkSource.LOCAL],
            disk_tokens=by_origin[ChunkSource.DISK],
            holder_tokens=by_origin[ChunkSource.HOLDER],
            cast_tokens=by_origin[ChunkSource.CAST],
            switch_tokens=by_origin[ChunkSource.SWITCH],
            refused_tokens=way.refused,
        )
