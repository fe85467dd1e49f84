"""Whether a chunk is sent to nodes that have not asked for it yet. Pure.

A chunk is a *candidate* when it is fetched remotely for the second time within `window_ns` (two nodes, or one twice):
then other nodes may be about to want it. Whether they do depends on the workload: with rollout groups and API tenants
they do, in steady chat they do not. So the gate is measured use, kept by *kind* of candidate (how deep the chunk lies
in its prefix, or that it was offered to a node that joined):

    use(kind) = bytes that nodes asked for within `horizon_ns` of being named / bytes for which they were named

both decayed with `half_life_ns`. Every candidate counts, pushed or not: a node that was named and then fetches the
chunk, from its own pool or over the network, would have used a push. So nothing is spent to learn, a kind that does
not pay is never pushed, and one that begins to pay is found out. A kind is pushed while use >= `use_min`, on the
evidence of at least `evidence_min` named copies.

`use_min` is the price: pushing costs 1 / use bytes in the background for each byte that an engine does not wait for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from kvchunk.ids import ChunkKey

NodeT = TypeVar("NodeT", bound=Hashable)
Kind: TypeAlias = str

JOINED: Kind = "joined"
"""Chunks offered to a node that has just come."""
_DEPTHS: tuple[tuple[int, Kind], ...] = ((1, "first"), (4, "depth-4"), (16, "depth-16"), (64, "depth-64"))
_DEEPER: Kind = "deeper"


@dataclass(frozen=True, slots=True)
class PushParameters:
    """What an operator may tune."""

    enabled: bool = True
    nodes_at_once: int = 0
    """How many nodes get pushes at the same time, where each copy is read by itself; 0: all, by one cast."""
    window_ns: int = 60_000_000_000
    horizon_ns: int = 60_000_000_000
    half_life_ns: int = 300_000_000_000
    use_min: float = 0.2
    evidence_min: int = 32
    tracked_max: int = 65_536
    """Chunks whose last remote fetch is remembered."""
    named_max: int = 262_144
    """(chunk, node) pairs that are waited for."""


@dataclass(slots=True)
class KindUse:
    """What became of the candidates of one kind; bytes, decayed."""

    named_bytes: float = 0.0
    used_bytes: float = 0.0
    copies: float = 0.0
    at_ns: int = 0

    @property
    def use(self) -> float:
        """Share of what was named that was asked for."""
        return min(1.0, self.used_bytes / self.named_bytes) if self.named_bytes > 0 else 0.0

    def decay(self, now_ns: int, half_life_ns: int) -> None:
        """Bring the sums to this moment."""
        if now_ns > self.at_ns:
            factor = 2.0 ** (-(now_ns - self.at_ns) / half_life_ns)
            self.named_bytes *= factor
            self.used_bytes *= factor
            self.copies *= factor
            self.at_ns = now_ns


@dataclass(slots=True)
class PushCounts:
    """Running totals, for metrics."""

    candidates: int = 0
    pushed_copies: int = 0
    pushed_bytes: int = 0
    used_bytes: int = 0
    """Of what was pushed."""
    withheld_copies: int = 0
    """Named only, because their kind does not pay."""
    withheld_used_copies: int = 0
    """Named, not pushed, and asked for: what the gate cost, and owners that could not push."""


@dataclass(slots=True)
class _Named:
    kind: Kind
    size_bytes: int
    until_ns: int
    pushed: bool = False


@dataclass(slots=True)
class _Seen(Generic[NodeT]):
    last_ns: int
    named_ns: int | None = None
    nodes: set[NodeT] = field(default_factory=set)
    """Who fetched it within the window: they have it, even if the directory does not know yet."""


@dataclass(slots=True)
class _Tables(Generic[NodeT]):
    seen: OrderedDict[ChunkKey, _Seen[NodeT]] = field(default_factory=OrderedDict)
    named: dict[tuple[ChunkKey, NodeT], _Named] = field(default_factory=dict)
    order: deque[tuple[int, ChunkKey, NodeT]] = field(default_factory=deque)
    """The named by the end of their time."""


class PushPolicy(Generic[NodeT]):
    """Watches fetches and says what to push where. The owner reports with `sent` what it does push."""

    def __init__(self, parameters: PushParameters | None = None) -> None:
        self.parameters = parameters or PushParameters()
        self.counts = PushCounts()
        self._kinds: dict[Kind, KindUse] = {}
        self.tables: _Tables[NodeT] = _Tables()

    def fetched(
        self,
        key: ChunkKey,
        size_bytes: int,
        position: int,
        node: NodeT,
        remote: bool,
        absent: Callable[[], Sequence[NodeT]],
        now_ns: int,
    ) -> tuple[NodeT, ...]:
        """A node asked for a chunk and got it (`remote`: over the network). Returns the nodes to push it to now.

        `absent()` lists the nodes that could take it and do not have it; it is called for candidates only.
        """
        self._expire(now_ns)
        self._used(key, node, now_ns)
        if not remote:
            return ()
        seen = self.tables.seen.pop(key, None)
        again = seen is not None and now_ns - seen.last_ns <= self.parameters.window_ns
        if seen is None or not again:
            seen = _Seen(now_ns)
        seen.last_ns = now_ns
        seen.nodes.add(node)
        self.tables.seen[key] = seen
        if len(self.tables.seen) > self.parameters.tracked_max:
            self.tables.seen.popitem(last=False)
        if not again or (seen.named_ns is not None and now_ns - seen.named_ns < self.parameters.horizon_ns):
            return ()
        seen.named_ns = now_ns
        self.counts.candidates += 1
        others = [other for other in absent() if other not in seen.nodes]
        return self._name(key, size_bytes, kind_of(position), others, now_ns)

    def joined(self, chunks: Sequence[tuple[ChunkKey, int]], node: NodeT, now_ns: int) -> tuple[ChunkKey, ...]:
        """A node came and lacks these (key, size_bytes), which others fetch. Returns the keys to push to it now."""
        self._expire(now_ns)
        wanted = []
        for key, size_bytes in chunks:
            if self._name(key, size_bytes, JOINED, [node], now_ns):
                wanted.append(key)
        return tuple(wanted)

    def sent(self, key: ChunkKey, size_bytes: int, node: NodeT) -> None:
        """A copy that `fetched` or `joined` asked for is being pushed."""
        self.counts.pushed_copies += 1
        self.counts.pushed_bytes += size_bytes
        named = self.tables.named.get((key, node))
        if named is not None:
            named.pushed = True

    def hot(self, limit: int, now_ns: int) -> list[ChunkKey]:
        """Chunks fetched remotely again and again, the last ones first."""
        found: list[ChunkKey] = []
        for key in reversed(self.tables.seen):
            seen = self.tables.seen[key]
            if len(found) >= limit or now_ns - seen.last_ns > self.parameters.window_ns:
                break
            if seen.named_ns is not None:
                found.append(key)
        return found

    def opens(self, kind: Kind, now_ns: int) -> bool:
        """Whether candidates of this kind are pushed."""
        found = self._kinds.get(kind)
        if found is None or not self.parameters.enabled:
            return False
        found.decay(now_ns, self.parameters.half_life_ns)
        return found.copies >= self.parameters.evidence_min and found.use >= self.parameters.use_min

    def uses(self) -> dict[Kind, float]:
        """Measured use by kind, as of the last candidate."""
        return {kind: found.use for kind, found in sorted(self._kinds.items())}

    def _name(
        self, key: ChunkKey, size_bytes: int, kind: Kind, nodes: Sequence[NodeT], now_ns: int
    ) -> tuple[NodeT, ...]:
        pushing = self.opens(kind, now_ns)
        found = self._kinds.setdefault(kind, KindUse(at_ns=now_ns))
        found.decay(now_ns, self.parameters.half_life_ns)
        tables, named = self.tables, []
        until_ns = now_ns + self.parameters.horizon_ns
        for node in nodes:
            if (key, node) in tables.named or len(tables.order) >= self.parameters.named_max:
                continue
            tables.named[key, node] = _Named(kind, size_bytes, until_ns)
            tables.order.append((until_ns, key, node))
            found.named_bytes += size_bytes
            found.copies += 1
            named.append(node)
        if not pushing:
            self.counts.withheld_copies += len(named)
            return ()
        return tuple(named)

    def _used(self, key: ChunkKey, node: NodeT, now_ns: int) -> None:
        named = self.tables.named.pop((key, node), None)
        if named is None:
            return
        found = self._kinds[named.kind]
        found.decay(now_ns, self.parameters.half_life_ns)
        found.used_bytes += named.size_bytes
        if named.pushed:
            self.counts.used_bytes += named.size_bytes
        else:
            self.counts.withheld_used_copies += 1

    def _expire(self, now_ns: int) -> None:
        tables = self.tables
        while tables.order and tables.order[0][0] <= now_ns:
            until_ns, key, node = tables.order.popleft()
            named = tables.named.get((key, node))
            if named is not None and named.until_ns == until_ns:
                del tables.named[key, node]


def kind_of(position: int) -> Kind:
    """By how deep in its prefix a chunk lies: templates and shared documents are shallow, a session's own text deep."""
    return next((kind for depth, kind in _DEPTHS if position < depth), _DEEPER)
