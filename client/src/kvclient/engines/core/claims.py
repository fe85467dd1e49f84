"""What an engine tells its agent of the prompts that it computes: which chunks will be there, and when. Pure.

A request claims the chunks of its prompt when the scheduler has given it blocks for what it did not load. Its times are
kept true step by step: a time that has moved by more than an eighth of what is left is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvchunk.ids import ChunkKey

TOLERANCE_S: Final = 0.01
TOLERANCE_SHARE: Final = 0.125


@dataclass(frozen=True, slots=True)
class Claim:
    """Chunks that are computed, all shards of each, and in how many seconds they will be there."""

    keys: tuple[ChunkKey, ...]
    etas_s: tuple[float, ...]
    state: tuple[ChunkKey, ...] = ()
    """Of recurrent layers, behind the prompt: per shard. It is of another size, and there with the last chunk."""

    @property
    def state_claim(self) -> Claim | None:
        """What is claimed of the state, if anything is."""
        return Claim(self.state, self.etas_s[-1:] * len(self.state)) if self.state else None


@dataclass(frozen=True, slots=True)
class Disclaim:
    """Chunks that are not computed after all, or not put."""

    keys: tuple[ChunkKey, ...]


@dataclass(slots=True)
class _Claimed:
    chunks: list[tuple[ChunkKey, ...]]
    """Of the whole prompt, all shards of each."""
    next: int
    """The first chunk that is not offered for saving yet."""
    state: tuple[ChunkKey, ...] = ()
    """See Claim."""
    ends_s: float = 0.0
    """When all of it will be there, as the agent was told."""


class ClaimLedger:
    """All requests of one scheduler that claim something."""

    def __init__(self, chunk_tokens: int, cost_s: Callable[[int, int], float | None]) -> None:
        """`cost_s(first, tokens)`: seconds to compute so many tokens from position `first` on; None: not known yet."""
        self._chunk_tokens = chunk_tokens
        self._cost_s = cost_s
        self._claimed: dict[str, _Claimed] = {}

    def __contains__(self, request: str) -> bool:
        return request in self._claimed

    def begin(
        self,
        request: str,
        chunks: Sequence[tuple[ChunkKey, ...]],
        computed_tokens: int,
        queue_s: float,
        now_s: float,
        state: tuple[ChunkKey, ...] = (),
    ) -> Claim | None:
        """A request begins to compute its prompt from `computed_tokens` on, behind others that take `queue_s`; `state`:
        keys of the state of recurrent layers behind it."""
        first = computed_tokens // self._chunk_tokens
        if first >= len(chunks):
            return None
        self._claimed[request] = _Claimed(list(chunks), first, state)
        return self.progressed(request, computed_tokens, queue_s, now_s)

    def progressed(self, request: str, computed_tokens: int, queue_s: float, now_s: float) -> Claim | None:
        """A step has brought a request to `computed_tokens`: what to tell the agent, if its times are not true."""
        claimed = self._claimed.get(request)
        if claimed is None:
            return None
        chunks = range(max(claimed.next, computed_tokens // self._chunk_tokens), len(claimed.chunks))
        keys: list[ChunkKey] = []
        etas_s: list[float] = []
        for chunk in chunks:
            cost_s = self._cost_s(computed_tokens, (chunk + 1) * self._chunk_tokens - computed_tokens)
            if cost_s is None:
                return None
            keys += claimed.chunks[chunk]
            etas_s += [queue_s + cost_s] * len(claimed.chunks[chunk])
        if not keys:
            return None
        left_s = etas_s[-1]
        if claimed.ends_s and abs(now_s + left_s - claimed.ends_s) <= max(TOLERANCE_S, TOLERANCE_SHARE * left_s):
            return None
        claimed.ends_s = now_s + left_s
        return Claim(tuple(keys), tuple(etas_s), claimed.state)

    def offered(self, request: str, chunk: int) -> None:
        """A chunk is on its way into the pool: the agent knows when it is there."""
        claimed = self._claimed.get(request)
        if claimed is not None:
            claimed.next = max(claimed.next, chunk + 1)
            if claimed.next >= len(claimed.chunks):
                del self._claimed[request]

    def ended(self, request: str) -> Disclaim | None:
        """A request is finished, aborted or preempted: what it had claimed and not offered is not computed."""
        claimed = self._claimed.pop(request, None)
        if claimed is None or not claimed.ends_s:
            return None
        return Disclaim((*(key for chunk in claimed.chunks[claimed.next :] for key in chunk), *claimed.state))
