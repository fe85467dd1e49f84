"""The smallest explanation of which paths fail: everybody, single nodes, or single paths. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

Path: TypeAlias = tuple[str, str]
"""From one node to another, by name."""

SHOWN_MAX = 6
"""Single paths that are named; of more only the number."""


def blame(failed: Iterable[Path], tried: Iterable[Path]) -> list[tuple[str, list[Path]]]:
    """Explanations in words ("all nodes", "n3 <-> all others", "n1 -> n2"), each with the paths that it covers."""
    left, all_tried = set(failed), set(tried)
    if not left:
        return []
    nodes = sorted({node for path in all_tried for node in path})
    if len(nodes) > 2 and len(left) == len(all_tried):
        return [("all nodes", sorted(left))]
    found = []
    for words, covered in _nodes(left, all_tried, nodes):
        covered &= left
        if covered:
            found.append((words, sorted(covered)))
            left -= covered
    for one, other in sorted(left):
        if one < other and (other, one) in left:
            found.append((f"{one} <-> {other}", [(one, other), (other, one)]))
        elif (other, one) not in left:
            found.append((f"{one} -> {other}", [(one, other)]))
    if len(found) > SHOWN_MAX:
        rest = [path for _, paths in found[SHOWN_MAX:] for path in paths]
        found = [*found[:SHOWN_MAX], (f"{len(rest)} more paths", rest)]
    return found


def _nodes(failed: set[Path], tried: set[Path], nodes: list[str]) -> Iterator[tuple[str, set[Path]]]:
    """Nodes to and from which nothing works; of two nodes alone neither is to blame."""
    if len(nodes) < 3:
        return
    both = [node for node in nodes if all(path in failed for path in tried if node in path)]
    for node in both:
        yield f"{node} <-> all others", {path for path in tried if node in path}
    alive = set(nodes) - set(both)
    tried = {path for path in tried if set(path) <= alive}
    for node in sorted(alive):
        into = {path for path in tried if path[1] == node}
        if len(into) > 1 and into <= failed:
            yield f"all others -> {node}", into
    for node in sorted(alive):
        out = {path for path in tried if path[0] == node}
        if len(out) > 1 and out <= failed:
            yield f"{node} -> all others", out
