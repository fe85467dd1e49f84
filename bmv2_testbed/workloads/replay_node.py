"""One node of a replay, a process in its host: runs its requests at their times, through the local agent.

A request fetches the leading blocks that the pool has, compares every byte with what the block's key says, waits for
as long as the rest would take to compute (modelled), and puts the rest into the pool.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bmv2_testbed.bench.rendezvous import await_start, meet, send_line
from bmv2_testbed.content import content_of, same_content
from bmv2_testbed.limits import FETCH_DEADLINE_S
from bmv2_testbed.workloads.plan import (
    RECOMPUTE_S_PER_BLOCK,
    PlannedRequest,
    ReplayPlan,
    block_key,
)
from kvclient.client import AgentClient

WORKERS = 4
"""Requests that a node runs at a time, as an engine's batch does."""


@dataclass(slots=True)
class NodeReport:
    """What a node saw. Lists have one item per request, in the order in which they ended."""

    fetch_s: list[float] = field(default_factory=list)
    wanted_blocks: list[int] = field(default_factory=list)
    fetched_blocks: list[int] = field(default_factory=list)
    remote_blocks: list[int] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    wrong_blocks: int = 0
    verified_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


class Node:
    """Runs requests with a few workers; the report is written under a lock."""

    def __init__(self, plan: ReplayPlan, agent_socket: str) -> None:
        self._plan = plan
        self._agent_socket = agent_socket
        self._lock = threading.Lock()
        self.report = NodeReport()

    def warm(self, node: int) -> None:
        """Put what this node holds when the replay begins."""
        trace = self._plan.trace
        with AgentClient(self._agent_socket) as agent:
            for block, before in self._plan.warm.get(node, ()):
                key = block_key(trace, block)
                content = content_of(key, self._plan.block_bytes)
                agent.put(key, None if before is None else block_key(trace, before), content)

    def run(self, requests: list[PlannedRequest], start_s: float) -> None:
        """Run all requests; returns when the last one is done."""
        due: queue.SimpleQueue[PlannedRequest | None] = queue.SimpleQueue()
        workers = [threading.Thread(target=self._work, args=(due,)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for request in requests:
            time.sleep(max(0.0, start_s + request.start_s - time.monotonic()))
            due.put(request)
        for _ in workers:
            due.put(None)
        for worker in workers:
            worker.join()

    def _work(self, due: queue.SimpleQueue[PlannedRequest | None]) -> None:
        with AgentClient(self._agent_socket) as agent:
            for request in _until_none(due):
                self._run_request(agent, request)

    def _run_request(self, agent: AgentClient, request: PlannedRequest) -> None:
        keys = [block_key(self._plan.trace, block) for block in request.blocks]
        block_bytes = self._plan.block_bytes
        before_s = time.monotonic()
        with agent.fetch(keys, deadline_s=FETCH_DEADLINE_S) as got:
            fetch_s = time.monotonic() - before_s
            count = got.count
            names = [str(source.name).lower() for source in got.sources[:count]]
            wrong = sum(
                not same_content(view, content_of(key, block_bytes)) for key, view in zip(keys, got.views, strict=False)
            )
        with self._lock:
            report = self.report
            report.fetch_s.append(fetch_s)
            report.wanted_blocks.append(len(keys))
            report.fetched_blocks.append(count)
            report.remote_blocks.append(sum(name != "local" for name in names))
            report.wrong_blocks += wrong
            report.verified_bytes += (count - wrong) * block_bytes
            for name in names:
                report.sources[name] = report.sources.get(name, 0) + 1
        if count < len(keys):
            time.sleep((len(keys) - count) * RECOMPUTE_S_PER_BLOCK)
            for index in range(count, len(keys)):
                parent = keys[index - 1] if index else None
                agent.put(keys[index], parent, content_of(keys[index], block_bytes))


def _until_none(due: queue.SimpleQueue[PlannedRequest | None]) -> Iterator[PlannedRequest]:
    while (request := due.get()) is not None:
        yield request


def main() -> int:
    """Entry point: one node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--rendezvous", required=True)
    args = parser.parse_args()
    plan = ReplayPlan.from_json(args.plan.read_text())
    node = Node(plan, args.agent)
    node.warm(args.node)
    with meet(args.rendezvous, f"node{args.node}") as connection:
        start_s = await_start(connection)
        node.run([request for request in plan.requests if request.node == args.node], start_s)
        send_line(connection, node.report.to_json())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
