"""Which namespaces this node's engines use, and what theirs are called: as the configuration names tenants. Pure.

A tenant with a namespace puts its chunks there and is told of no others; an engine's label only names a part of it. An
engine of any other tenant uses whatever this node may have.
"""

from __future__ import annotations

from hostagent.core import effects
from hostagent.core.events import EngineId
from hostagent.core.node import Node
from hostagent.disk.records import NAMESPACE_BYTES_MAX


class Interests:
    """One node's. While no engine is connected, those of the last ones count."""

    def __init__(self, node: Node) -> None:
        self._emit = node.emit
        self._namespaces = node.options.tenant_namespaces
        self._engines: dict[EngineId, str] = {}
        """Tenants of those that are connected."""
        self.current: tuple[str, ...] | None = None
        """Patterns (`kvproto.grants`); None: all that this node may have."""

    def came(self, engine: EngineId, tenant: str) -> None:
        """An engine is connected."""
        self._engines[engine] = tenant
        self._look()

    def gone(self, engine: EngineId) -> None:
        """It is not any more."""
        if self._engines.pop(engine, None) is not None:
            self._look()

    def label(self, tenant: str, said: str) -> str:
        """The namespace of what a tenant's engine puts under a label. Nobody gets into another one's by a label."""
        own = self._namespaces.get(tenant)
        if own is None and said.partition("/")[0] in self._namespaces.values():
            own = tenant
        return said if own is None else _clipped(f"{own}/{said}")

    def _look(self) -> None:
        if not self._engines:
            return
        used = {self._namespaces.get(tenant) for tenant in self._engines.values()}
        patterns = None if None in used else tuple(sorted(f"{one}/*" for one in used))
        if patterns != self.current:
            self.current = patterns
            self._emit(effects.ReportInterests(patterns))


def _clipped(label: str) -> str:
    return label.encode()[:NAMESPACE_BYTES_MAX].decode(errors="ignore")
