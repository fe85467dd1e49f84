"""Who is told of which chunks: of namespaces that the node may have, and of those only the ones that it uses. Pure.

What an operator sees is not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey
from controlplane.core.nodes import Node
from kvproto.grants import Grant, NamespaceRules, Patterns
from kvproto.probes import PROBE_NAMESPACE
from kvproto.rpc import control_pb2 as rpc

INTERESTS_MAX = 1024
"""Namespaces that a node's engines use; beyond that it counts as using all that it may have."""


@dataclass(frozen=True, slots=True)
class View:
    """What one node is told of."""

    grant: Grant
    used: Patterns | None
    """Namespaces that its engines use; None: all that it may have."""

    def shows(self, namespace: str) -> bool:
        """Whether chunks of this namespace are told of."""
        used = self.used is None or self.used.match(namespace) or namespace == PROBE_NAMESPACE
        return used and self.grant.allows(namespace)

    def covers(self, other: View) -> bool:
        """Whether everything that the other node is told of may be told here, too."""
        if self.grant != other.grant:
            return False
        return self.used is None or (other.used is not None and self.used.cover(other.used))


class Visibility:
    """Owns the views of all streams; says which node may hear of a namespace and of a chunk."""

    def __init__(self, rules: NamespaceRules, directory: Directory) -> None:
        self.rules = rules
        self._directory = directory
        self._views: dict[int, View] = {}
        self._wanted: dict[int, Patterns | None] = {}
        """What nodes have said since they were told of the directory."""

    def stream_attached(self, session: int, node: str, interests: rpc.Interests | None) -> None:
        """A node attaches."""
        self._views[session] = View(self.rules.grant(node), _used(interests))
        self._wanted.pop(session, None)

    def stream_ended(self, session: int) -> None:
        """A stream ended."""
        self._views.pop(session, None)
        self._wanted.pop(session, None)

    def interests_changed(self, session: int, interests: rpc.Interests) -> None:
        """A node's engines use other namespaces now: it counts from its next snapshot on (`take_changed`)."""
        view = self._views.get(session)
        if view is None:
            return
        used = _used(interests)
        if used == view.used:
            self._wanted.pop(session, None)
        else:
            self._wanted[session] = used

    def take_changed(self, is_waiting: Callable[[int], bool]) -> list[int]:
        """Streams that are to get another snapshot now, without those whose last one is not told yet."""
        wanted = {session: used for session, used in self._wanted.items() if not is_waiting(session)}
        for session, used in wanted.items():
            del self._wanted[session]
            self._views[session] = View(self._views[session].grant, used)
        return sorted(wanted)

    def of(self, session: int) -> View:
        """The view of a stream that is attached."""
        return self._views[session]

    # -- nodes and chunks

    def may_have(self, node: Node, namespace: str) -> bool:
        """Whether a node that is attached is told of chunks of this namespace."""
        return node.attached and self.of(node.session).shows(namespace)

    def may_know(self, node: Node, keys: Iterable[bytes]) -> bool:
        """Whether a node is told of these chunks: nobody hears of another tenant's by a task."""
        view = self.of(node.session)
        chunks = (self._directory.get(ChunkKey(key)) for key in keys)
        return all(chunk is None or view.shows(chunk.facts.namespace) for chunk in chunks)

    def may_pin(self, session: int) -> Callable[[ChunkKey], bool]:
        """Which pinned chunks the agent of a stream may hear of: those that it may have."""
        grant = self.of(session).grant

        def may(key: ChunkKey) -> bool:
            chunk = self._directory.get(key)
            return grant.is_everything or (chunk is not None and grant.allows(chunk.facts.namespace))

        return may


def _used(interests: rpc.Interests | None) -> Patterns | None:
    if interests is None or interests.all or len(interests.namespaces) > INTERESTS_MAX:
        return None
    return Patterns.of(interests.namespaces)


def keys_of(task: rpc.Task) -> Iterable[bytes]:
    """Keys that a task names to its node and that it might not know otherwise."""
    return task.fetch.keys if task.HasField("fetch") else ()
