"""Which node may hear of which chunks, by namespaces (`visibility`) and for chunks by key. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey
from controlplane.core.nodes import Node
from controlplane.core.visibility import Visibility


class Clearance:
    """Of all nodes."""

    def __init__(self, directory: Directory, visibility: Visibility) -> None:
        self._directory = directory
        self._visibility = visibility

    def may_have(self, node: Node, namespace: str) -> bool:
        """Whether a node that is attached is told of chunks of this namespace."""
        return node.attached and self._visibility.of(node.session).shows(namespace)

    def may_know(self, node: Node, keys: Iterable[bytes]) -> bool:
        """Whether a node is told of these chunks: nobody hears of another tenant's by a task."""
        view = self._visibility.of(node.session)
        chunks = (self._directory.get(ChunkKey(key)) for key in keys)
        return all(chunk is None or view.shows(chunk.facts.namespace) for chunk in chunks)

    def may_pin(self, session: int) -> Callable[[ChunkKey], bool]:
        """Which pinned chunks the agent of a stream may hear of: those that it may have."""
        grant = self._visibility.of(session).grant

        def may(key: ChunkKey) -> bool:
            chunk = self._directory.get(key)
            return grant.is_everything or (chunk is not None and grant.allows(chunk.facts.namespace))

        return may
