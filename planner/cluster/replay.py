"""Replays a trace on a simulated cluster.

A request arrives at a node, whose engine asks the agent for its chunks, computes what it does not get, and keeps all.
Each agent is the shipped core (`hostagent.core.AgentCore`), and so is the controller (`controlplane.core.core.Core`).
Engine, disk, links and what runs over them are models (`planner.hardware`, `planner.network`, `FetchSimulation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from hostagent.core import effects
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvproto.commands import SendControl
from kvproto.rpc import control_pb2 as rpc
from planner.cluster.agent import Agent, Surroundings
from planner.cluster.background import Background
from planner.cluster.clock import VirtualClock
from planner.cluster.controller import VirtualController
from planner.cluster.fetch_simulation import FetchSimulation, Transfers
from planner.cluster.figures import Management, Measured, ReplayFigures, Uplinks, figures_of
from planner.cluster.options import Scenario, Sharing
from planner.cluster.requests import Outcome, Request
from planner.cluster.routing import Router
from planner.cluster.serial import Gpu, Job
from planner.cluster.switch import VirtualSwitch
from planner.network.delivery import Delivery
from planner.network.terms import WireTerms
from planner.network.topology import Topology

_STALLED_S = 36_000.0
"""No fetch and no computation takes this long: the model has a mistake, and says so instead of running for ever."""
_NOTHING_HELD: Final[Mapping[int, Sequence[Sequence[ChunkKey]]]] = MappingProxyType({})
_CASTING = (Sharing.CAST, Sharing.CAST_SWITCH)


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A request between its arrival and its first token."""

    request: Request
    agent: Agent
    local: int
    """Leading chunks that were in the node's pool on its arrival."""
    answer: effects.FetchAnswered | None = None
    refused: int = 0
    """Tokens that the pool had and the gate left to the engine."""
    fetch_s: float = 0.0
    at_hand_s: float = 0.0
    """When everything that could be had was here."""
    queue_s: float = 0.0
    prefill_s: float = 0.0

    @property
    def cached(self) -> int:
        """Leading chunks that the engine need not compute."""
        return 0 if self.answer is None else len(self.answer.chunks)


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
                self.clock,
                cluster.nodes,
                cluster.local_dram_bytes,
                switch,
                cluster.local_disk_bytes,
                casts=self._sharing in _CASTING,
            )
        self._transfers = Transfers(self.clock, self.delivery)
        self.agents: list[Agent] = []
        relays = self._sharing is Sharing.RELAY
        self._fetches = FetchSimulation(self.delivery, self._transfers, self.controller, self.agents, relays=relays)
        self._background = Background(self.topology, self._transfers, self.agents)
        self.agents += [self._agent(node) for node in range(cluster.nodes)]
        self.gpus = [Gpu(self.clock, agent, self._engine, scenario.merging, self._job_ended) for agent in self.agents]
        """Used where engines look prefixes up again."""
        self.router = Router(cluster.routing, self.agents)
        self.outcomes: list[Outcome] = []
        """Of the requests that have their first token, in the order in which they got it."""
        self._happened_s = 0.0
        """When a request last arrived or made progress."""
        self._uplinks = Uplinks(self.topology, self.delivery)

    def _agent(self, node: int) -> Agent:
        return Agent(
            node,
            self.clock,
            self.scenario,
            Surroundings(
                partial(self._say, node),
                self._fetches.bring,
                self._fetches.abandon,
                lambda key: self.delivery.left_bytes(node, key, self.clock.now_s),
                self._background.fill,
                partial(self._to_switch, node),
            ),
        )

    def _say(self, node: int, message: rpc.FromAgent) -> None:
        """An agent's message reaches the controller after whatever the agent is doing at this moment."""
        if self.controller is not None:
            self.clock.call_later(0.0, self.controller.message, node, message)

    def _to_switch(self, node: int, said: SendControl) -> None:
        """HERE: the switch reports it."""
        if self.controller is not None:
            self.clock.call_later(0.0, self.controller.here, node, said.message.key)

    # -- time

    def run(
        self,
        requests: Sequence[Request],
        progress: Callable[[float], None] = lambda _: None,
        held: Mapping[int, Sequence[Sequence[ChunkKey]]] = _NOTHING_HELD,
    ) -> ReplayFigures:
        """Replay the requests (in order of arrival) until each has its first token.

        `progress`: share done; `held`: prefixes that nodes have at the beginning."""
        if self.controller is not None:
            self.controller.attach(self.agents)
        for node, prefixes in held.items():
            for keys in prefixes:
                self.agents[node].store(keys)
        arrivals = iter(requests)
        self._arrive_next(arrivals)
        reported, last_s = 0, requests[-1].at_s if requests else 0.0
        self._sample(last_s)
        while len(self.outcomes) < len(requests):
            self.step()
            if len(self.outcomes) >= reported + 200:
                reported = len(self.outcomes)
                progress(reported / len(requests))
        self._uplinks.end(self.clock.now_s)
        return figures_of(self._sharing, self.scenario.cluster.link_rate, [self.measured()])

    def measured(self) -> Measured:
        """What was counted, once all requests have their first token."""
        gates = [agent.core.gate.counts for agent in self.agents]
        engines = [agent.engine.busy_s for agent in self.agents], [gpu.busy_s for gpu in self.gpus]
        return Measured(
            nodes=len(self.agents),
            duration_s=self.clock.now_s,
            outcomes=self.outcomes,
            saved_s=sum(counts.saved_s for counts in gates),
            regret_s=sum(sum(counts.regret_s.values()) for counts in gates),
            given_up=sum(counts.given_up for counts in gates),
            busy_s=sum(map(sum, engines)),
            uplink_bytes=self._uplinks.total_bytes,
            busiest_uplinks=self._uplinks.busiest,
            management=self._management(),
            core_cpu_s=self.controller.cpu_s if self.controller is not None else 0.0,
        )

    def _management(self) -> Management:
        packets, size = self.delivery.control_packets, round(sum(self.delivery.control_bytes))
        if self.controller is None:
            return Management(0, 0, packets, size, 0, {})
        accounting = self.controller.core.accounting
        return Management(
            accounting.messages.total(),
            accounting.message_bytes.total(),
            packets,
            size,
            accounting.switch_updates,
            {**accounting.decisions, **self.controller.core.switch_cache.decisions},
        )

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
        node = self.router.choose(request) if request.node is None else request.node
        self.router.in_flight[node] += 1
        if self.scenario.look_up_again:
            self.gpus[node].arrive(request)
            return
        agent = self.agents[node]
        way = _UnderWay(request, agent, agent.leading(request.keys))
        if not request.keys:
            self._compute(way)
            return
        here, whole = request.cached_tokens(way.local), request.cached_tokens(len(request.keys))
        recompute_s = self._engine.prefill_s(here, request.tokens) - self._engine.prefill_s(whole, request.tokens)
        agent.ask(request.keys, recompute_s, partial(self._answered, way), queue_s=agent.engine.backlog_s)

    def _answered(self, way: _UnderWay, answer: effects.FetchAnswered) -> None:
        request, count = way.request, len(answer.chunks)
        way.answer = answer
        way.fetch_s = self.clock.now_s - request.at_s
        if answer.status is Status.GATE:
            known = count + way.agent.known(request.keys[count:])
            way.refused = request.cached_tokens(known) - request.cached_tokens(count)
        self._compute(way)

    def _compute(self, way: _UnderWay) -> None:
        """Everything that could be had is here: queue for the engine."""
        way.at_hand_s = self.clock.now_s
        request = way.request
        expected_s = self._engine.prefill_s(request.cached_tokens(way.cached), request.tokens)
        way.agent.engine.submit(request.at_s, expected_s, lambda: self._begin(way), lambda: self._first_token(way))

    def _begin(self, way: _UnderWay) -> float:
        request = way.request
        way.queue_s = self.clock.now_s - way.at_hand_s
        way.prefill_s = self._engine.prefill_s(request.cached_tokens(way.cached), request.tokens)
        return self._engine.load_s(way.local * way.agent.chunk_bytes) + way.prefill_s

    def _first_token(self, way: _UnderWay) -> None:
        agent, request = way.agent, way.request
        self.router.in_flight[agent.node] -= 1
        stored = agent.store(request.keys)
        if self._sharing is Sharing.REPLICAS:
            self._background.replicate(agent, request.keys, stored, self.scenario.cluster.replicas)
        if way.answer is not None and way.answer.chunks:
            agent.release(way.answer.lease)
        self.outcomes.append(self._outcome(way))
        self._happened_s = self.clock.now_s

    def _job_ended(self, job: Job, node: int) -> None:
        self.router.in_flight[node] -= 1
        request = job.request
        granted_s = job.granted_s if job.granted_s is not None else self.clock.now_s
        chunks = job.answers[-1].chunks if job.answers else ()
        self.outcomes.append(
            Outcome(
                at_s=request.at_s,
                ttft_s=self.clock.now_s - request.at_s + self._engine.step_s,
                fetch_s=max(0.0, self.clock.now_s - granted_s - job.prefill_s),
                queue_s=granted_s - job.queued_s,
                prefill_s=job.prefill_s,
                tokens=request.tokens,
                refused_tokens=0,
                **_tokens_by_origin(request, [chunk.source for chunk in chunks]),
            )
        )
        self._happened_s = self.clock.now_s

    def _outcome(self, way: _UnderWay) -> Outcome:
        request = way.request
        chunks = () if way.answer is None else way.answer.chunks
        return Outcome(
            at_s=request.at_s,
            ttft_s=self.clock.now_s - request.at_s + self._engine.step_s,
            fetch_s=way.fetch_s,
            queue_s=way.queue_s,
            prefill_s=way.prefill_s,
            tokens=request.tokens,
            refused_tokens=way.refused,
            **_tokens_by_origin(request, [chunk.source for chunk in chunks]),
        )


def _tokens_by_origin(request: Request, sources: Sequence[ChunkSource]) -> dict[str, int]:
    """Tokens by where the KV of their chunks came from, as `Outcome` names them."""
    tokens: dict[ChunkSource, int] = {
        source: 0 for source in ChunkSource if source is not ChunkSource.COLD
    }  # no replay has that
    for place, source in enumerate(sources):
        tokens[source] += request.cached_tokens(place + 1) - request.cached_tokens(place)
    return {f"{source.name.lower()}_tokens": count for source, count in tokens.items()}
