"""What engines compute at this moment, as agents say: passed on to all of them, forgotten when it is over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import CLAIM_S_MAX, CLAIMS_PER_NODE_MAX
from kvpolicy.tiers.merging import due_ns
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
    withdrawn: list[ChunkKey] = field(default_factory=list)


class ClaimTable:
    """Claims of all nodes, each until it is kept, withdrawn or late; and what of them is to be published."""

    def __init__(self) -> None:
        self._due_ns: dict[NodeIndex, dict[ChunkKey, int]] = {}
        self._news: dict[NodeIndex, _News] = {}
        self.refused_count = 0
        """Of nodes that claim more than they may."""

    @property
    def claims_count(self) -> int:
        """Claims that stand."""
        return sum(len(claims) for claims in self._due_ns.values())

    def add(self, node: NodeIndex, run: ClaimRun, now_ns: int) -> None:
        """A node's engine computes these chunks; known ones get another time."""
        claims = self._due_ns.setdefault(node, {})
        new = sum(key not in claims for key in run.keys)
        if len(claims) + new > CLAIMS_PER_NODE_MAX:
            self.refused_count += new
            return
        for key, eta_ms in zip(run.keys, run.eta_ms, strict=True):
            claims[key] = due_ns(now_ns, min(CLAIM_S_MAX, eta_ms / 1000))
        news = self._news.setdefault(node, _News())
        news.made.append(run)
        news.withdrawn = [key for key in news.withdrawn if key not in claims]

    def withdraw(self, node: NodeIndex, keys: Sequence[ChunkKey]) -> None:
        """A node's engine does not compute them any more."""
        claims = self._due_ns.get(node, {})
        gone = [key for key in keys if claims.pop(key, None) is not None]
        if gone:
            self._news.setdefault(node, _News()).withdrawn += gone

    def chunk_announced(self, node: NodeIndex, key: ChunkKey) -> None:
        """The node has it. Everybody learns that by the chunk's entry."""
        claims = self._due_ns.get(node)
        if claims is not None:
            claims.pop(key, None)

    def node_left(self, node: NodeIndex) -> None:
        """It computes nothing any more, as far as anybody can know."""
        self.withdraw(node, list(self._due_ns.get(node, ())))
        self._due_ns.pop(node, None)

    @property
    def news_wait(self) -> bool:
        """Whether `take_news` has something to return."""
        return bool(self._news)

    def expire(self, now_ns: int) -> None:
        """Withdraw what is late, should its agent not have done so."""
        for node, claims in self._due_ns.items():
            self.withdraw(node, [key for key, due in claims.items() if due <= now_ns])

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
