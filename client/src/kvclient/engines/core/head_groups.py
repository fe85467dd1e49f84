"""Which parts of a token's KV each worker of a pipeline stage holds: groups of heads, and shares of contexts. Pure.

A chunk has one key for each part, so engines whose ranks split heads differently share: all of them name the groups
that the ranks of the largest one have. Every engine's keys follow this rule (vLLM's connector, SGLang's backend): the
key of group g of n is the one that rank g of n ranks with different heads has for its chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


def groups_of_rank(rank: int, ranks: int, groups: int) -> range:
    """The groups, of `groups` in all, that rank `rank` of `ranks` with different heads holds, equally many each.

    Raises ValueError where they do not come out even.
    """
    if groups < 1 or groups % ranks:
        raise ValueError(f"{ranks} ranks with different heads do not divide {groups} groups of heads")
    each = groups // ranks
    return range(rank * each, (rank + 1) * each)


def different_ranks(ranks: int, heads: int) -> int:
    """How many of so many tensor-parallel ranks have different heads: beyond the number of heads they repeat them.

    Raises ValueError where heads do not come out even.
    """
    if max(ranks, heads) % min(ranks, heads):
        raise ValueError(f"{heads} KV heads do not come out even on {ranks} ranks")
    return min(ranks, heads)


@dataclass(frozen=True, slots=True)
class HeldParts:
    """What one worker holds."""

    parts: tuple[int, ...]
    """Numbers of parts, in the order of their heads in its cache."""
    writes: bool
    """No worker before it holds the same."""


@dataclass(frozen=True, slots=True)
class StageParts:
    """How the workers of a pipeline stage split the KV of a token. Part g * contexts + c is share c of group g.

    Workers are numbered as vLLM does: those of a tensor-parallel group next to each other, one group for each rank of
    prefill context parallel. Decode context parallel takes them across the groups first.
    """

    tensor_size: int = 1
    head_ranks: int = 1
    """Tensor-parallel ranks with different heads; the others repeat theirs, neighbours the same."""
    groups: int = 1
    """Of heads."""
    contexts: int = 1
    """Shares of a context's tokens: decode context parallel."""
    prefill_contexts: int = 1
    """Ranks of prefill context parallel, which have equal KV unless contexts are split over them."""
    interleave_tokens: int = 1
    """Of a context that one share has in a row."""

    def __post_init__(self) -> None:
        groups_of_rank(0, self.head_ranks, self.groups)
        if self.tensor_size % self.head_ranks:
            raise ValueError(f"{self.head_ranks} ranks with different heads do not divide {self.tensor_size} ranks")
        held = {part for worker in range(self.workers_count) for part in self._parts(worker)}
        if len(held) != self.count:
            raise ValueError(
                f"{self.contexts} shares of a context do not come out even on {self.tensor_size} tensor-parallel and "
                f"{self.prefill_contexts} prefill-context-parallel ranks with {self.head_ranks} different ones"
            )

    @property
    def workers_count(self) -> int:
        return self.tensor_size * self.prefill_contexts

    @property
    def count(self) -> int:
        """Of parts."""
        return self.groups * self.contexts

    @property
    def groups_each(self) -> int:
        """Groups of heads that a worker holds."""
        return self.groups // self.head_ranks

    def of(self, worker: int) -> HeldParts:
        """What a worker holds."""
        parts = self._parts(worker)
        return HeldParts(parts, writes=all(self._parts(other) != parts for other in range(worker)))

    def first_holder(self, part: int) -> int:
        """The worker that writes a part."""
        return next(worker for worker in range(self.workers_count) if part in self._parts(worker))

    def context_name(self, part: int) -> str:
        """What the key of a part says of its share of a context; empty where contexts are whole."""
        share = part % self.contexts
        return f";context={share}/{self.contexts},{self.interleave_tokens}" if self.contexts > 1 else ""

    def _parts(self, worker: int) -> tuple[int, ...]:
        prefill_rank, tensor_rank = divmod(worker, self.tensor_size)
        head_rank = tensor_rank // (self.tensor_size // self.head_ranks)
        share = (tensor_rank * self.prefill_contexts + prefill_rank) % self.contexts
        groups = groups_of_rank(head_rank, self.head_ranks, self.groups)
        return tuple(group * self.contexts + share for group in groups)


ONE_WORKER: Final = StageParts()
"""It has everything."""
