"""Transfers that no engine waits for: replicas written to other nodes, and chunks sent into the switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hostagent.core import effects
from hostagent.core.work import FillWork, Task, TaskStatus
from kvchunk.ids import ChunkKey
from planner.cluster.agent import Agent
from planner.cluster.fetch_simulation import Transfers
from planner.network.delivery import Delivered, Piece
from planner.network.topology import Topology


class Background:
    """Of all nodes."""

    def __init__(self, topology: Topology, transfers: Transfers, agents: Sequence[Agent]) -> None:
        self._topology = topology
        self._transfers = transfers
        self._agents = agents

    def replicate(self, source: Agent, keys: Sequence[ChunkKey], stored: Sequence[ChunkKey], copies: int) -> None:
        """Write the new chunks (`stored`) of a prompt to the next nodes, as many as make up the copies."""
        if not stored:
            return
        nodes = len(self._agents)
        for step in range(1, min(copies, nodes)):
            self._copy(self._agents[(source.node + step) % nodes], source, keys, set(stored))

    def _copy(self, target: Agent, source: Agent, keys: Sequence[ChunkKey], wanted: set[ChunkKey]) -> None:
        places = [place for place, key in enumerate(keys) if key in wanted and target.find(key) is None]
        lent = {place: chunk for place in places if (chunk := source.lend(keys[place])) is not None}
        pieces = [Piece(keys[place], target.chunk_bytes, source.node) for place in lent]

        def arrived(_: Delivered) -> None:
            for place, chunk in lent.items():
                target.put(keys, place)
                source.give_back(chunk)

        self._transfers.start(target.node, pieces, arrived, background=True)

    def fill(self, agent: Agent, task: Task, work: FillWork, report: Callable[[effects.ReportTaskEnd], None]) -> None:
        """Send a chunk into the switch; `report` takes what became of the task."""
        chunk = agent.lend(work.key)
        if chunk is None:
            detail = "the chunk is not here"
            report(effects.ReportTaskEnd(task.number, TaskStatus.FAILED, 0, 0, (work.key,), detail))
            return

        def filled(_: Delivered) -> None:
            agent.give_back(chunk)
            report(effects.ReportTaskEnd(task.number, TaskStatus.DONE, work.segments, chunk.size_bytes, (), ""))

        piece = Piece(work.key, chunk.size_bytes, agent.node)
        self._transfers.fill(self._topology.sink(agent.node), piece, work.readers, filled)
