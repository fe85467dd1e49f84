"""What nobody waits for: replicas of new chunks, and the tasks that the controller gives agents."""

from __future__ import annotations

from collections.abc import Sequence

from hostagent.pool.chunks import Chunk
from kvproto.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc
from planner.cluster.agent import Agent
from planner.cluster.bringing import Bringing, Transfers, UnderWay
from planner.cluster.clock import VirtualClock
from planner.cluster.controller import VirtualController
from planner.cluster.requests import Request
from planner.network.delivery import Delivered, Piece
from planner.network.topology import Topology


class Background:
    """Of all nodes."""

    def __init__(
        self,
        clock: VirtualClock,
        topology: Topology,
        transfers: Transfers,
        bringing: Bringing,
        controller: VirtualController | None,
        agents: Sequence[Agent],
    ) -> None:
        self._clock = clock
        self._topology = topology
        self._transfers = transfers
        self._bringing = bringing
        self._controller = controller
        self._agents = agents

    def replicate(self, agent: Agent, request: Request, stored: Sequence[ChunkKey], copies: int) -> None:
        """Write new chunks to the next nodes, as many as make up the copies."""
        if not stored:
            return
        nodes = len(self._agents)
        for step in range(1, min(copies, nodes)):
            self._copy(self._agents[(agent.node + step) % nodes], agent, request.keys, set(stored))

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

        self._transfers.start(target.node, pieces, arrived, background=True)

    def task(self, node: int, task: rpc.Task) -> None:
        """Work that the controller gives an agent."""
        agent = self._agents[node]
        match task.WhichOneof("work"):
            case "fill":
                self._fill(agent, task)
            case "fetch":
                self._bring(agent, task)
            case "drop":
                failed = agent.drop([ChunkKey(key) for key in task.drop.keys])
                self._clock.call_later(0.0, agent.answer, task.task, len(task.drop.keys), 0, failed)
            case other:
                raise AssertionError(f"nothing in a replay leads to a task of kind {other}")

    def _fill(self, agent: Agent, task: rpc.Task) -> None:
        """Send a chunk into the switch."""
        key = ChunkKey(task.fill.key)
        chunk = agent.find(key)
        if chunk is None:
            self._clock.call_later(0.0, agent.answer, task.task, 0, 0, [key])
            return
        agent.pool.pin(chunk)

        def filled(_: Delivered) -> None:
            agent.release([chunk])
            agent.answer(task.task, task.fill.segments, chunk.size_bytes)

        piece = Piece((key, "fill"), chunk.size_bytes, agent.node)
        self._transfers.start(self._topology.sink, [piece], filled, background=True)

    def _bring(self, agent: Agent, task: rpc.Task) -> None:
        """Fetch chunks for the pool: pushes, spills."""
        way = UnderWay(Request(self._clock.now_s, 1, tuple(ChunkKey(key) for key in task.fetch.keys)), agent)
        pieces: list[Piece] = []
        for key in way.request.keys:
            holder = None if agent.find(key) is not None else self._bringing.holder(way, key, len(pieces))
            if holder is None:
                continue
            entry = self._controller.core.directory.get(key) if self._controller is not None else None
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

        self._transfers.start(agent.node, pieces, arrived, background=True)
