"""Pushes: carries out what `PushPolicy` decides, as background fetches of the nodes concerned. Pure; part of the core.

All nodes that get a chunk are told in the same moment, so that one cast serves them. A node that is behind with what it
was told, that leaves, or that would have to give up something dearer is left out.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from controlplane.directory import Chunk
from controlplane.ids import ChunkKey, NodeIndex
from controlplane.limits import PUSH_JOINED_CHUNKS_MAX, PUSHES_PER_NODE, TASK_KEYS_MAX
from controlplane.nodes import Node, NodeState
from controlplane.purposes import PushTo
from kvproto.rpc import control_pb2 as rpc
from kvproto.tiers.push import PushParameters, PushPolicy

if TYPE_CHECKING:
    from controlplane.core import Core

_REMOTE = frozenset({rpc.SOURCE_HOLDER, rpc.SOURCE_CAST, rpc.SOURCE_SWITCH})
_HERE = frozenset({rpc.SOURCE_LOCAL, rpc.SOURCE_DISK})


class Pushes:
    """Watches what nodes report, collects what is to be pushed, gives it out once an advance."""

    def __init__(self, core: Core, parameters: PushParameters) -> None:
        self._core = core
        self.policy: PushPolicy[NodeIndex] = PushPolicy(parameters)
        self._collected: dict[NodeIndex, dict[ChunkKey, int]] = {}
        """Bytes of chunks that nodes are to get."""
        self._greeted: set[tuple[NodeIndex, int]] = set()
        """Nodes that were offered what is hot, with their incarnation."""

    def fetched(self, node: Node, chunk: Chunk, fetch: rpc.FetchEvent, now_ns: int) -> None:
        """A node got a chunk, from wherever."""
        if fetch.source not in _REMOTE and fetch.source not in _HERE:
            return
        facts = chunk.facts
        wanted = self.policy.fetched(
            facts.key,
            facts.size_bytes,
            facts.position,
            node.index,
            fetch.source in _REMOTE,
            lambda: [other.index for other in self._takers() if other.index not in chunk.holders],
            now_ns,
        )
        for index in wanted:
            self._collect(index, chunk, now_ns)

    def joined(self, node: Node, now_ns: int) -> None:
        """A node has said all it holds: offer it what others fetch at the moment, once in its life."""
        if (node.index, node.facts.incarnation) in self._greeted:
            return
        self._greeted = {(index, life) for index, life in self._greeted if index != node.index}
        self._greeted.add((node.index, node.facts.incarnation))
        directory = self._core.directory
        lacking = []
        for key in self.policy.hot(PUSH_JOINED_CHUNKS_MAX, now_ns):
            chunk = directory.get(key)
            if chunk is not None and node.index not in chunk.holders:
                lacking.append(chunk)
        lacking.sort(key=lambda chunk: chunk.facts.position)
        sizes = [(chunk.key, chunk.facts.size_bytes) for chunk in lacking]
        wanted = set(self.policy.joined(sizes, node.index, now_ns))
        for chunk in lacking:
            if chunk.key in wanted:
                self._collect(node.index, chunk, now_ns)

    def flush(self) -> None:
        """Give out what was collected."""
        if not self._collected:
            return
        core = self._core
        busy: dict[NodeIndex, int] = {}
        for task in core.tasks.matching(lambda purpose: isinstance(purpose, PushTo)):
            busy[task.node] = busy.get(task.node, 0) + 1
        for index, keys in self._collected.items():
            room = TASK_KEYS_MAX if busy.get(index, 0) < PUSHES_PER_NODE else 0
            some = dict(itertools.islice(keys.items(), room))
            core.accounting.decisions["push_skipped_behind"] += len(keys) - len(some)
            if not some:
                continue
            for key, size_bytes in some.items():
                self.policy.sent(key, size_bytes, index)
            core.accounting.decisions["pushed_chunks"] += len(some)
            core.give(index, PushTo(len(some)), rpc.Task(fetch=rpc.Fetch(keys=list(some), reason=rpc.Fetch.PUSH)))
        self._collected.clear()

    def ended(self, node: NodeIndex, result: rpc.TaskResult) -> None:
        """A push is over: what did not come was not pushed."""
        self._core.accounting.decisions["push_done_chunks"] += result.done
        self._core.accounting.decisions["push_failed_chunks"] += len(result.failed_keys)

    def _takers(self) -> list[Node]:
        return [node for node in self._core.nodes if node.state is NodeState.ATTACHED and not node.draining]

    def _collect(self, index: NodeIndex, chunk: Chunk, now_ns: int) -> None:
        core, size_bytes = self._core, chunk.facts.size_bytes
        node = core.nodes.get(index)
        if node is None:
            return
        if node.free_bytes < size_bytes:
            rooted = core.directory.is_rooted(chunk.key)
            if core.values.value(chunk.key, size_bytes, rooted, now_ns) <= core.rescues.cheapest_value(node, now_ns):
                core.accounting.decisions["push_skipped_full"] += 1
                return
        self._collected.setdefault(index, {})[chunk.key] = size_bytes
