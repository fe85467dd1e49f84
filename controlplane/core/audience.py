"""Who is told of which changes, of those who are told of all that they may see. Pure.

Most agents see few namespaces. What a publication costs depends on who hears something, not on how many listen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey
from controlplane.core.visibility import View
from kvproto.chunk_table import Rows

NAMES_MAX: Final = 4096
"""Namespaces of which it is remembered who sees them."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Agents that are told the same."""

    view: View
    columns: bool
    """They take chunks so, and messages that leave out what does not concern them."""
    sessions: tuple[int, ...]


class Audience:
    """Owns the groups of those who listen. They stand until somebody comes, goes, or is to see something else."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.groups: list[Group] = []
        self._seeing: dict[str, list[int]] = {}
        """Numbers of groups, by namespace."""

    def assemble(self, groups: Iterable[Group]) -> None:
        """These listen from now on."""
        self.groups = list(groups)
        self._seeing.clear()

    def shown(self, rows: Rows) -> dict[int, Rows]:
        """Rows of chunks, by the numbers of groups that see them."""
        directory, found = self._directory, dict[int, list[Rows]]()
        told, apart = directory.parted(rows)
        numbers = directory.namespace_numbers(told)
        order = np.argsort(numbers, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(told) else ():
            name = directory.table.namespaces.values[numbers[some[0]]]
            for at in self._who_see((name,)):
                found.setdefault(at, []).append(told[some])
        for row, chunk in zip(apart, directory.chunks_of(apart), strict=True):
            for at in self._who_see({one.facts.namespace for one in chunk.variants()}):
                found.setdefault(at, []).append(np.array([row], np.int64))
        return {at: np.concatenate(parts) for at, parts in found.items()}

    def lost(self, left: Mapping[ChunkKey, Iterable[str]]) -> dict[int, list[ChunkKey]]:
        """`left`: namespaces that keys were known under. Keys that groups saw and see no more, by groups' numbers."""
        alike: dict[tuple[frozenset[str], frozenset[str]], list[ChunkKey]] = {}
        for key, before in left.items():
            chunk = self._directory.get(key)
            after = [] if chunk is None else [one.facts.namespace for one in chunk.variants()]
            alike.setdefault((frozenset(before), frozenset(after)), []).append(key)
        found: dict[int, list[ChunkKey]] = {}
        for (known, shown), keys in alike.items():
            for at in self._who_see(known) - self._who_see(shown):
                found.setdefault(at, []).extend(keys)
        return found

    def _who_see(self, names: Iterable[str]) -> set[int]:
        """Groups that see any of these namespaces."""
        found: set[int] = set()
        for name in names:
            if name not in self._seeing:
                if len(self._seeing) >= NAMES_MAX:
                    self._seeing.clear()
                self._seeing[name] = [at for at, group in enumerate(self.groups) if group.view.shows(name)]
            found.update(self._seeing[name])
        return found
