"""Which namespaces a node may have chunks of, and which it wants to know of. Pure.

A namespace is a name that engines give with what they put. A pattern is a namespace, or the beginning of one
with "*" behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kvproto.probes import PROBE_NAMESPACE

PATTERNS_MAX: Final = 256
"""In one grant: it travels with every connection."""
_GRANTS_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class Patterns:
    """Some namespaces: whole ones, and beginnings."""

    namespaces: frozenset[str]
    beginnings: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Patterns:
        """From patterns as they are written."""
        listed = sorted(set(patterns))
        return cls(
            frozenset(one for one in listed if not one.endswith("*")),
            tuple(one[:-1] for one in listed if one.endswith("*")),
        )

    def match(self, namespace: str) -> bool:
        """Whether one of them stands for this namespace."""
        return namespace in self.namespaces or namespace.startswith(self.beginnings)

    def cover(self, other: Patterns) -> bool:
        """Whether all that the other ones stand for is among what these stand for."""
        return all(map(self.match, other.namespaces)) and all(
            one.startswith(self.beginnings) for one in other.beginnings
        )

    @property
    def written(self) -> list[str]:
        """As `of` takes them."""
        return [*sorted(self.namespaces), *(f"{one}*" for one in self.beginnings)]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a node may have: what is granted, and what is not withheld."""

    granted: Patterns
    withheld: Patterns

    @classmethod
    def of(cls, granted: Iterable[str], withheld: Iterable[str]) -> Grant:
        """From patterns as they are written."""
        return cls(Patterns.of(granted), Patterns.of(withheld))

    @property
    def is_everything(self) -> bool:
        """Nothing is withheld."""
        return not (self.withheld.namespaces or self.withheld.beginnings)

    def allows(self, namespace: str) -> bool:
        """Whether the node may have chunks of this namespace. Those of examinations are everybody's."""
        return namespace == PROBE_NAMESPACE or self.granted.match(namespace) or not self.withheld.match(namespace)


EVERYTHING: Final = Grant.of((), ())
"""Of a node in a cluster without rules."""


class NamespaceRules:
    """Whose which namespaces are. A namespace that no rule names is everybody's."""

    def __init__(self, owners: Mapping[str, Iterable[str]] | None = None) -> None:
        """By pattern: names of the nodes that may have what it stands for, and nobody else."""
        self._owners = {pattern: frozenset(nodes) for pattern, nodes in (owners or {}).items()}
        self._grants: dict[str, Grant] = {}

    def grant(self, node: str) -> Grant:
        """What a node may have."""
        found = self._grants.get(node)
        if found is None:
            if len(self._grants) == _GRANTS_KEPT:
                self._grants.clear()
            own = [pattern for pattern, nodes in self._owners.items() if node in nodes]
            others = [pattern for pattern, nodes in self._owners.items() if node not in nodes]
            found = self._grants[node] = Grant.of(own, others) if others else EVERYTHING
        return found

    def apart(self, one: str, other: str) -> bool:
        """Whether two namespaces are not the same nodes'."""
        return one != other and self._owners_of(one) != self._owners_of(other)

    def _owners_of(self, namespace: str) -> frozenset[str] | None:
        """None: everybody."""
        nodes = [nodes for pattern, nodes in self._owners.items() if Patterns.of([pattern]).match(namespace)]
        return frozenset().union(*nodes) if nodes else None
