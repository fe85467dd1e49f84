"""One node of a workload, a process in its host: its requests come at their times, through the local agent.

Reports what became of each request, and compares every byte that was fetched with what its key says, beside the clock.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from bmv2_testbed.bench.rendezvous import await_start, meet, receive_line, send_line
from bmv2_testbed.content import KEY_BYTES, content_of, same_content
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import START_DEADLINE_S
from bmv2_testbed.workloads.gpu import Gpu, Job
from kvclient.client import AgentClient, Fetched, FetchStream, Where
from planner.workloads.scaled_terms import terms_of
from planner.workloads.workload_catalog import Mode, Name, Workload, workload

_KNOWN_POLL_S: Final = 0.02
_LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node saw of one run."""

    ready_s: Sequence[float]
    """From each request's arrival until the KV of its prompt was there."""
    computed_blocks: int
    sources: dict[str, int]
    """Blocks that came from elsewhere, by how."""
    fetched_bytes: int
    verified_bytes: int
    figures: dict[str, float]
    """The agent's counters of the gate: how much they grew."""


class Checker:
    """Compares what was fetched and releases it, in a thread of its own."""

    def __init__(self, contents: dict[bytes, bytes]) -> None:
        self._contents = contents
        self._queue: queue.SimpleQueue[tuple[Sequence[bytes], Fetched | FetchStream] | None] = queue.SimpleQueue()
        self.fetched_bytes = 0
        self.verified_bytes = 0
        self._sources: dict[bytes, str] = {}
        """How a chunk arrived the first time."""
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    @property
    def sources(self) -> dict[str, int]:
        """Chunks that came from elsewhere, by how."""
        return dict(Counter(source for source in self._sources.values() if source != _LOCAL))

    def keep(self, keys: Sequence[bytes], got: Fetched | FetchStream) -> None:
        """These are the leading ones of `keys`."""
        self._queue.put((keys, got))

    def end(self) -> None:
        """Return when all is compared."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            keys, got = item
            with got:
                for key, view, source in zip(keys, got.views, got.sources, strict=False):
                    self._sources.setdefault(key, source.label)
                    expected = self._contents[key]
                    self.fetched_bytes += len(expected)
                    self.verified_bytes += len(expected) * same_content(view, expected)


class Node:
    """Runs the requests of one node."""

    def __init__(self, made: Workload, mode: Mode, label: str, node: int, link_bit_s: int, agent: AgentClient) -> None:
        self._made = made
        self._node = node
        self._mode = mode
        self._agent = agent
        self._terms = terms_of(made, link_bit_s)
        # Without a pool every node has names of its own for the same blocks, so no other node has them.
        self._label = f"{label}/{node}" if mode is Mode.NONE else label
        self.prompts = [prompt for prompt in made.prompts if prompt.node == node]
        self._held = made.held.get(node, ())
        wanted = [prompt.blocks for prompt in self.prompts]
        blocks = sorted({block for prefix in [*wanted, *self._held] for block in prefix})
        self._keys = {block: self._key(block) for block in blocks}
        self._contents = {key: content_of(key, self._terms.block_bytes) for key in self._keys.values()}

    def _key(self, block: int) -> bytes:
        return hashlib.blake2b(f"{self._label}/{block}".encode(), digest_size=KEY_BYTES).digest()

    def prepare(self) -> None:
        """Put what this node holds, and wait until it knows what the others hold of what it will ask for."""
        for prefix in self._held:
            keys = [self._keys[block] for block in prefix]
            for place in range(len(keys)):
                self._put(keys, place)
        if self._mode is Mode.NONE:
            return
        held = {block for prefixes in self._made.held.values() for prefix in prefixes for block in prefix}
        keys = [key for block, key in self._keys.items() if block in held]
        until_s = time.monotonic() + START_DEADLINE_S / 2
        while keys and Where.NOWHERE in self._agent.contains(keys):
            if time.monotonic() > until_s:
                raise TestbedError(f"the directory of node {self._node} does not list what others hold")
            time.sleep(_KNOWN_POLL_S)

    def _put(self, keys: Sequence[bytes], place: int) -> None:
        self._agent.put(keys[place], keys[place - 1] if place else None, self._contents[keys[place]], position=place)

    def run(self, start_s: float) -> NodeReport:
        """All requests."""
        before = self._agent.stats()
        checker = Checker(self._contents)
        gpu = Gpu(
            self._agent,
            self._terms,
            merges=self._mode is Mode.MERGED,
            save=lambda job, place: self._put(job.keys, place),
            keep=checker.keep,
        )
        for prompt in self.prompts:
            time.sleep(max(0.0, start_s + prompt.at_s - time.monotonic()))
            keys = [self._keys[block] for block in prompt.blocks]
            gpu.arrive(Job(prompt, keys, start_s + prompt.at_s))
        gpu.end()
        checker.end()
        after = self._agent.stats()
        return NodeReport(
            ready_s=[job.ready_s - job.arrived_s for job in gpu.done],
            computed_blocks=sum(job.computed for job in gpu.done),
            sources=checker.sources,
            fetched_bytes=checker.fetched_bytes,
            verified_bytes=checker.verified_bytes,
            figures={name: after[name] - before.get(name, 0.0) for name in after if name.startswith("gate_")},
        )

    def leave(self) -> None:
        """The pool is as empty again as it was before. Only when all nodes are through: others read from this one."""
        self._agent.session_end(list(self._keys.values()))
        self._agent.drop(list(self._keys.values()))


def _give_up(failed: threading.ExceptHookArgs) -> None:
    """A thread that fails ends the process, so that no other thread waits for it."""
    traceback.print_exception(failed.exc_value)
    sys.stderr.flush()
    os._exit(1)


def main() -> int:
    """Entry point: one node."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--workload", "--mode", "--label", "--agent", "--rendezvous"):
        parser.add_argument(name, required=True)
    for name in ("--seed", "--node", "--link"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--length", type=float, required=True)
    args = parser.parse_args()
    threading.excepthook = _give_up
    made = workload(Name(args.workload), args.seed, args.length)
    with AgentClient(args.agent) as agent:
        node = Node(made, Mode(args.mode), args.label, args.node, args.link, agent)
        node.prepare()
        with meet(args.rendezvous, f"node{args.node}") as connection:
            start_s = await_start(connection)
            send_line(connection, asdict(node.run(start_s)))
            receive_line(connection)  # None: the others are through, too
            node.leave()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
