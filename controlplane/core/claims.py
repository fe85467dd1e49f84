"""What engines compute at this moment, as agents say: passed on to all of them, forgotten when it is over. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import CLAIM_S_MAX, CLAIMS_LATE_AT_ONCE, CLAIMS_PER_NODE_MAX, CLAIMS_SHARED, NODES_MAX
from kvchunk.ids import KEY_BYTES
from kvpolicy.tiers.merging import due_ns as due
from kvproto.claim_book import ClaimBounds, charged_bytes
from kvproto.deadlines import Deadlines
from kvproto.limits import CLAIMERS_PER_CHUNK_MAX
from kvproto.records import RecordError
from kvproto.rpc import control_pb2 as rpc


@dataclass(frozen=True, slots=True)
class ClaimRun:
    """Chunks of one size that a node computes, and in how many milliseconds each is there."""

    keys: tuple[ChunkKey, ...]
    size_bytes: int
    eta_ms: tuple[int, ...]


@dataclass(slots=True)
class _News:
    made: list[ClaimRun] = field(default_factory=list)
    withdrawn: dict[ChunkKey, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Run:
    """Chunks that a node named together, those that are late first before the others."""

    number: int
    node: NodeIndex
    size_bytes: int
    keys: bytes
    """One behind the other."""
    due_ns: array[int]
    """When each is late."""
    left: int
    """How many of them stand: other claims, of chunks that came or that were named again, are not looked at."""
    first: int = 0
    """All before this one were late."""
    moment: int = 0
    """When the run is looked at next."""

    def key(self, at: int) -> ChunkKey:
        """One of its keys."""
        return ChunkKey(self.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES])


_UNBOUNDED = 1 << 62
_SHARDS = 64
"""One large dictionary would stand still for tens of milliseconds whenever it grows."""
_COMPACTED = 64
"""Keys of a run that are kept although most of them do not stand."""


class ClaimTable:
    """Claims of all nodes, each until it is kept, withdrawn or late; and what of them is to be published. A claim has
    no object of its own, and is in no list: the garbage collector would visit a million of them."""

    def __init__(self) -> None:
        self._held: dict[NodeIndex, dict[ChunkKey, int]] = {}
        """Numbers of runs."""
        self._runs: dict[int, _Run] = {}
        self._numbers = count()
        self._bytes_of: Counter[NodeIndex] = Counter()
        self._claimers: list[dict[ChunkKey, int]] = [{} for _ in range(_SHARDS)]
        """How many compute a chunk."""
        self._late: Deadlines[_Run] = Deadlines()
        self._news: dict[NodeIndex, _News] = {}
        self.claims_count = 0
        """Claims that stand."""
        self._size_bytes = 0
        self.refused_count = 0
        """Of nodes that claim more than they may."""

    def of(self, node: NodeIndex) -> Collection[ChunkKey]:
        """What a node computes, until that changes."""
        return self._held.get(node, {})

    def add(self, node: NodeIndex, run: ClaimRun, pool_bytes: int, now_ns: int) -> None:
        """A node's engine computes these chunks; known ones get another time. Raises RecordError where a node with a
        pool of so many bytes may not claim them: then it claims none of them."""
        held = self._held.get(node, {})
        new = [key for key in dict.fromkeys(run.keys) if key not in held]
        # Its engines may have twice its pool together: see `ClaimBounds`.
        bounds = ClaimBounds(CLAIMS_PER_NODE_MAX, 2 * pool_bytes, CLAIMS_SHARED, _UNBOUNDED, NODES_MAX)
        has = len(held), self._bytes_of[node]
        room = bounds.room(run.size_bytes, has, (self.claims_count, self._size_bytes))
        if len(new) > room:
            self.refused_count += len(new)
            raise RecordError(f"{len(new)} claims beside {len(held)} of this node: there is room for {room}")
        taken = {
            key: ms for key, ms in zip(run.keys, run.eta_ms, strict=True) if key in held or not self._is_crowded(key)
        }
        self.refused_count += len(new) - sum(key not in held for key in taken)
        if taken:
            self._make(node, run.size_bytes, taken, now_ns)

    def _is_crowded(self, key: ChunkKey) -> bool:
        """So many compute a chunk that one more is of no use: whoever asks for it goes through all of them."""
        return self._claimers[hash(key) % _SHARDS].get(key, 0) >= CLAIMERS_PER_CHUNK_MAX

    def _make(self, node: NodeIndex, size_bytes: int, taken: Mapping[ChunkKey, int], now_ns: int) -> None:
        news = self._news.setdefault(node, _News())
        news.made.append(ClaimRun(tuple(taken), size_bytes, tuple(taken.values())))
        due_ns = {ms: due(now_ns, min(CLAIM_S_MAX, ms / 1000)) for ms in set(taken.values())}
        keys = sorted(taken, key=taken.__getitem__)
        number, dues = next(self._numbers), array("q", [due_ns[taken[key]] for key in keys])
        run = self._runs[number] = _Run(number, node, size_bytes, b"".join(keys), dues, len(keys))
        for key in keys:
            self._end(node, key)
            self._held.setdefault(node, {})[key] = number
            claimers = self._claimers[hash(key) % _SHARDS]
            claimers[key] = claimers.get(key, 0) + 1
            if news.withdrawn:
                news.withdrawn.pop(key, None)
        self._count(run, len(keys))
        run.moment = self._late.add(run, run.due_ns[0], now_ns)

    def withdraw(self, node: NodeIndex, keys: Iterable[ChunkKey]) -> None:
        """A node's engine does not compute them any more."""
        gone = [key for key in keys if self._end(node, key)]
        if gone:
            self._news.setdefault(node, _News()).withdrawn |= dict.fromkeys(gone)

    def chunk_announced(self, node: NodeIndex, key: ChunkKey) -> None:
        """The node has it. Everybody learns that by the chunk's entry."""
        self._end(node, key)

    def _end(self, node: NodeIndex, key: ChunkKey) -> bool:
        held = self._held.get(node, {})
        number = held.pop(key, None)
        if number is None:
            return False
        run = self._runs[number]
        claimers = self._claimers[hash(key) % _SHARDS]
        others = claimers.pop(key) - 1
        if others:
            claimers[key] = others
        run.left -= 1
        self._count(run, -1)
        if not held:
            del self._held[node], self._bytes_of[node]
        if not run.left:
            self._late.discard(run, run.moment)
            del self._runs[number]
        elif len(run.due_ns) > _COMPACTED and run.left < (len(run.due_ns) - run.first) // 2:
            left = [at for at in range(run.first, len(run.due_ns)) if held.get(run.key(at)) == number]
            run.keys = b"".join(map(run.key, left))
            run.due_ns, run.first = array("q", [run.due_ns[at] for at in left]), 0
        return True

    def _count(self, run: _Run, number: int) -> None:
        size_bytes = number * charged_bytes(run.size_bytes)
        self._bytes_of[run.node] += size_bytes
        self._size_bytes += size_bytes
        self.claims_count += number

    def node_left(self, node: NodeIndex) -> None:
        """It computes nothing any more, as far as anybody can know."""
        self.withdraw(node, list(self.of(node)))

    def expire(self, now_ns: int) -> None:
        """Withdraw some of what is late, should its agent not have done so."""
        room = CLAIMS_LATE_AT_ONCE
        for run in self._late.due(now_ns, CLAIMS_LATE_AT_ONCE):
            held, late = self._held.get(run.node, {}), list[ChunkKey]()
            while run.first < len(run.due_ns) and run.due_ns[run.first] <= now_ns and room:
                key = run.key(run.first)
                run.first, room = run.first + 1, room - 1
                if held.get(key) == run.number:
                    late.append(key)
            self.withdraw(run.node, late)
            if run.left and run.due_ns[run.first] > now_ns:
                self._late.discard(run, run.moment)
                run.moment = self._late.add(run, run.due_ns[run.first], now_ns)
            if not room:
                return

    @property
    def news_wait(self) -> bool:
        """Whether `take_news` has something to return."""
        return bool(self._news)

    def take_news(self) -> list[rpc.NodeClaims]:
        """What changed since the last call. Of one node what it claims comes before what it withdraws."""
        news, self._news = self._news, {}
        return [
            rpc.NodeClaims(
                node=node,
                claims=rpc.Claims(
                    made=[rpc.Claim(keys=run.keys, size_bytes=run.size_bytes, eta_ms=run.eta_ms) for run in one.made],
                    withdrawn=one.withdrawn,
                ),
            )
            for node, one in sorted(news.items())
        ]
