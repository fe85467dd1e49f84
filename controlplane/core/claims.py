"""What engines compute at this moment, as agents say: passed on to all of them, forgotten when it is over. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import CLAIM_S_MAX, CLAIMS_LATE_AT_ONCE, CLAIMS_PER_NODE_MAX, CLAIMS_SHARED, NODES_MAX
from kvpolicy.tiers.merging import due_ns
from kvproto.claim_book import ClaimBook, ClaimBounds
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


_UNBOUNDED = 1 << 62


class ClaimTable:
    """Claims of all nodes, each until it is kept, withdrawn or late; and what of them is to be published."""

    def __init__(self) -> None:
        self._book: ClaimBook[NodeIndex] = ClaimBook()
        self._news: dict[NodeIndex, _News] = {}
        self.refused_count = 0
        """Of nodes that claim more than they may."""

    @property
    def claims_count(self) -> int:
        """Claims that stand."""
        return self._book.count

    def of(self, node: NodeIndex) -> Container[ChunkKey]:
        """What a node computes, until that changes."""
        return self._book.held(node)

    def add(self, node: NodeIndex, run: ClaimRun, pool_bytes: int, now_ns: int) -> None:
        """A node's engine computes these chunks; known ones get another time. Raises RecordError where a node with a
        pool of so many bytes may not claim them: then it claims none of them."""
        book, held = self._book, self._book.held(node)
        new = [key for key in dict.fromkeys(run.keys) if key not in held]
        # Its engines may have twice its pool together: see `ClaimBounds`.
        bounds = ClaimBounds(CLAIMS_PER_NODE_MAX, 2 * pool_bytes, CLAIMS_SHARED, _UNBOUNDED, NODES_MAX)
        room = book.room(node, run.size_bytes, bounds)
        if len(new) > room:
            self.refused_count += len(new)
            raise RecordError(f"{len(new)} claims beside {len(held)} of this node: there is room for {room}")
        taken = {
            key: ms for key, ms in zip(run.keys, run.eta_ms, strict=True) if key in held or not book.is_crowded(key)
        }
        self.refused_count += len(new) - sum(key not in held for key in taken)
        if not taken:
            return
        news = self._news.setdefault(node, _News())
        news.made.append(ClaimRun(tuple(taken), run.size_bytes, tuple(taken.values())))
        for key, eta_ms in taken.items():
            eta_s = min(CLAIM_S_MAX, eta_ms / 1000)
            book.add(node, key, run.size_bytes, (now_ns + int(eta_s * 1e9), due_ns(now_ns, eta_s)), now_ns)
            news.withdrawn.pop(key, None)

    def withdraw(self, node: NodeIndex, keys: Iterable[ChunkKey]) -> None:
        """A node's engine does not compute them any more."""
        gone = [key for key in keys if self._end(node, key)]
        if gone:
            self._news.setdefault(node, _News()).withdrawn |= dict.fromkeys(gone)

    def chunk_announced(self, node: NodeIndex, key: ChunkKey) -> None:
        """The node has it. Everybody learns that by the chunk's entry."""
        self._end(node, key)

    def _end(self, node: NodeIndex, key: ChunkKey) -> bool:
        claim = self._book.held(node).get(key)
        if claim is not None:
            self._book.remove(claim)
        return claim is not None

    def node_left(self, node: NodeIndex) -> None:
        """It computes nothing any more, as far as anybody can know."""
        self.withdraw(node, list(self._book.held(node)))

    def expire(self, now_ns: int) -> None:
        """Withdraw some of what is late, should its agent not have done so."""
        for claim in self._book.late.due(now_ns, CLAIMS_LATE_AT_ONCE):
            self.withdraw(claim.claimer, [claim.key])

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
