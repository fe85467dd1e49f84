"""What an engine claims at its agent while it computes prompts: which chunks the pool will get, and when. Pure.

A request claims the chunks of its prompt when the scheduler has given it blocks for what it did not load. Each step
checks the announced times: one that moved by more than an eighth of what is left is announced again.
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
    """Chunks that an engine computes, all shards of each, and in how many seconds the pool will have them."""

    keys: tuple[ChunkKey, ...]
    etas_s: tuple[float, ...]
    state: tuple[ChunkKey, ...] = ()
    """Keys of the recurrent layers' state behind the prompt, per shard. It has another size than a chunk, and the pool
    gets it together with the last chunk."""

    @property
    def state_claim(self) -> Claim | None:
        """The claim of the state; None: the prompt has none."""
        return Claim(self.state, self.etas_s[-1:] * len(self.state)) if self.state else None


@dataclass(frozen=True, slots=True)
class Disclaim:
    """Chunks that the engine claimed and does not compute or put after all."""

    keys: tuple[ChunkKey, ...]


@dataclass(slots=True)
class _Claimed:
    chunks: list[tuple[ChunkKey, ...]]
    """Chunks of the whole prompt, all shards of each."""
    next: int
    """The first chunk that has not been offered for saving."""
    state: tuple[ChunkKey, ...] = ()
    """See Claim."""
    ends_s: float = 0.0
    """When the pool will have the whole prompt, as last announced to the agent."""


class ClaimLedger:
    """The claims of one scheduler's requests."""

    def __init__(self, chunk_tokens: int, cost_s: Callable[[int, int], float | None]) -> None:
        """`cost_s(first, tokens)`: seconds to compute `tokens` tokens from position `first` on; None: not known yet."""
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
        return self.request_progressed(request, computed_tokens, queue_s, now_s)

    def request_progressed(self, request: str, computed_tokens: int, queue_s: float, now_s: float) -> Claim | None:
        """A step has brought a request to `computed_tokens`. Returns a new claim if the announced times are wrong."""
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

    def chunk_offered(self, request: str, chunk: int) -> None:
        """A chunk is on its way into the pool. The agent sees it arrive, so it needs no more times for it."""
        claimed = self._claimed.get(request)
        if claimed is not None:
            claimed.next = max(claimed.next, chunk + 1)
            if claimed.next >= len(claimed.chunks):
                del self._claimed[request]

    def request_ended(self, request: str) -> Disclaim | None:
        """A request is finished, aborted or preempted. Returns what it claimed and has not offered."""
        claimed = self._claimed.pop(request, None)
        if claimed is None or not claimed.ends_s:
            return None
        return Disclaim((*(key for chunk in claimed.chunks[claimed.next :] for key in chunk), *claimed.state))
