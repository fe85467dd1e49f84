"""What an examination saw, and the smallest explanation of which paths fail: everybody, single nodes, or single paths.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kvproto.fanout import Fanout
from kvproto.rpc import control_pb2 as rpc

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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the daemon knows besides its core."""

    unix_ns: int
    """The controller's clock when the examination began."""
    version: str
    listen: str
    """HOST:PORT of the control channel."""
    switch: str
    """HOST:PORT of P4Runtime; empty: no switch."""
    security: str = "insecure"
    """tls, loopback, or insecure: no TLS at the control channel or P4Runtime, although others can reach it."""
    certificate_ends_s: float = 0.0
    """Seconds since 1970 until which the controller's certificate is good; 0: it has none."""
    asked_by: str = ""
    """Version of the program that asks."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """What a node that answered said of itself."""

    name: str
    number: int
    version: str
    data_ip: str
    round_trip_ns: int
    clock_off_ns: int
    """Its clock less the controller's, as if the answer had been sent half way of the round trip."""
    facts: rpc.ProbeFacts = field(default_factory=rpc.ProbeFacts)


@dataclass(slots=True)
class Tries:
    """One kind of thing that was tried on paths between nodes."""

    tried: set[Path] = field(default_factory=set)
    failed: dict[Path, str] = field(default_factory=dict)
    """Why, as far as anybody said."""

    def note(self, path: Path, problem: str) -> None:
        """It was tried; an empty problem: it worked."""
        self.tried.add(path)
        if problem:
            self.failed[path] = problem
        else:
            self.failed.pop(path, None)

    def works(self, path: Path) -> bool:
        """Whether it was tried and worked."""
        return path in self.tried and path not in self.failed


NAMED_MAX: Final = 3


@dataclass(slots=True)
class GroupsSeen:
    """What a trial saw, by names of nodes."""

    listened: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    """Members to whom nothing came from some sender;"""
    cut: set[str] = field(default_factory=set)
    """those to whom only what is small came."""
    looked: set[str] = field(default_factory=set)
    """Others, that could see frames to the group;"""
    flooded: set[str] = field(default_factory=set)
    """those to whom some came."""

    def problem(self, *, standing: bool) -> str:
        """Why casts should not go by groups; empty: they may."""
        if not self.listened:
            return "no two nodes can try groups"
        if standing and 2 * len(self.deaf) < len(self.listened):
            return ""  # single nodes that are cut off are no reason
        if self.deaf:
            lost = " any more: is there an IGMP querier?" if standing else ""
            return f"groups do not reach {_named(self.deaf)}{lost}"
        if self.cut:
            return f"datagrams as large as a segment to groups do not reach {_named(self.cut)}: MTU 9000 on all ports"
        if self.flooded:
            return f"what goes to a group comes to {_named(self.flooded)}, too, unasked: is IGMP snooping off?"
        return ""

    @property
    def words(self) -> str:
        """What is good."""
        others = f", and none of {len(self.looked)} others" if self.looked else ""
        return f"groups reach their members{others}"


@dataclass(slots=True)
class Observations:
    """Owns all that an examination has seen, for the verdict."""

    surroundings: Surroundings
    segment_bytes: int
    packet_bytes: int
    """The largest IP packet that carries a segment."""
    switch_state: str
    """In one word, see `views.switch_state`."""
    fanout: Fanout = Fanout.SWITCH
    fanout_why: str = ""
    """What was found of the network, where that decides."""
    racks: dict[str, list[str]] = field(default_factory=dict)
    """Names of attached nodes by their rack; empty: they named none."""
    absent: dict[str, str] = field(default_factory=dict)
    """Nodes that could not be examined, and why."""
    nodes: dict[str, NodeSeen] = field(default_factory=dict)
    groups: GroupsSeen | None = None
    """None: casts do not go by groups."""
    small: Tries = field(default_factory=Tries)
    """Small datagrams on UDP port 4791."""
    large: Tries = field(default_factory=Tries)
    """Datagrams as large as a FILL, on the same port."""
    unsent: dict[Path, str] = field(default_factory=dict)
    """What the sender's system said of datagrams that did not leave."""
    puts: dict[str, str] = field(default_factory=dict)
    """By node: what went wrong; empty: it worked."""
    reads: Tries = field(default_factory=Tries)
    """Reliable reads (holder, reader)."""
    casts: Tries = field(default_factory=Tries)
    """Casts (holder, reader); failed: the bytes came another way, or not at all."""
    came_otherwise: set[Path] = field(default_factory=set)
    """Of those: they came another way, perhaps because the others had them too soon."""
    fills: dict[str, str] = field(default_factory=dict)
    """By node: what went wrong with its fill of the switch."""
    no_room: str = ""
    """Why the switch let no chunk in."""
    serves: dict[str, str] = field(default_factory=dict)
    """By node: what went wrong with being served by the switch."""
    without_member: dict[str, str] = field(default_factory=dict)
    """Nodes that no cast can reach, and why: where they are at the switch is not known, or not where they should be."""
    unfinished: str = ""
    """What was left out for lack of time."""

    def casts_pass(self, path: Path) -> bool:
        """Whether the holder's casts leave and the reader gets casts, be it from others: a path between two such nodes
        is whole, even where the reader of a busy machine came too late for each cast on it."""
        good = [tried for tried in self.casts.tried if self.casts.works(tried)]
        return any(one[0] == path[0] for one in good) and any(one[1] == path[1] for one in good)

    def casts_missed(self) -> dict[Path, str]:
        """Paths on which casts are lost, and what was seen there."""
        late = {path for path in self.came_otherwise if self.casts_pass(path)}
        return {path: why for path, why in self.casts.failed.items() if path not in late}

    def has_small_mtu(self, name: str) -> bool:
        """Whether a node's interface takes no packet that carries a segment, as far as is known."""
        node = self.nodes.get(name)
        return node is not None and 0 < node.facts.mtu_bytes < self.packet_bytes

    def is_cut(self, path: Path) -> bool:
        """Whether datagrams are lost on a path, in either direction."""
        both = (path, path[::-1])
        lost = any(one in tries.failed for one in both for tries in (self.small, self.large))
        return lost or any(self.has_small_mtu(name) for name in path)

    def is_cut_off(self, name: str) -> bool:
        """Whether a node is cut off from all others."""
        paths = [path for path in self.small.tried if path[0] == name]
        return self.has_small_mtu(name) or (bool(paths) and all(self.is_cut(path) for path in paths))


def _named(names: set[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - NAMED_MAX} more" if len(shown) > NAMED_MAX else ""
    return ", ".join(shown[:NAMED_MAX]) + more
