"""Which requests of a batch share prefixes, as FlashInfer's cascade attention wants it. Pure; standard library only.

Requests that hit the same chunks read the same KV. `MultiLevelCascadeAttentionWrapper` reads what a group of them
shares once, on a level of its own, and what each has alone on the last level (FlashInfer: Cascade Inference Data
Layout). `cascade` finds the groups from the keys of chunks and writes the arrays that its `plan` takes.

Requests may have the same chunk in different pages, because each was loaded by itself: its bytes are the same, so the
group reads the pages of its first request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class PagedRequest:
    """One request of a batch."""

    keys: Sequence[bytes]
    """Of its leading whole chunks, in prefix order."""
    pages: Sequence[int]
    """Its page table."""
    tokens: int
    """How many tokens of KV it has, those of its queries among them."""
    queries: int = 1
    """How many of its last tokens ask: 1 while decoding."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level's arrays, of whole numbers; shapes in FlashInfer's terms. Make int32 tensors of them."""

    qo_indptr: list[int]
    """(groups + 1,)."""
    paged_kv_indptr: list[int]
    """(groups + 1,)."""
    paged_kv_indices: list[int]
    """(paged_kv_indptr[-1],)."""
    paged_kv_last_page_len: list[int]
    """(groups,); 0 for a group without pages."""


@dataclass(frozen=True, slots=True)
class Cascade:
    """A plan for a batch."""

    order: list[int]
    """Requests in the order in which their queries must stand."""
    levels: list[Level]
    """As many as `MultiLevelCascadeAttentionWrapper` was made with."""
    pages_read: int
    """Pages that are read for the batch."""
    pages_alone: int
    """Pages that would be read if each request read its own."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests that read chunks `start` to `end` once, on one level."""

    level: int
    start: int
    end: int
    first: int
    """Rank of the first request that could be in it: with level and end, its name."""


Reached: TypeAlias = tuple[int, ...]
"""How many leading chunks the levels before the first, up to the first, up to the second, ... can have read."""
Chains: TypeAlias = tuple[tuple[_Group, ...], ...]
"""The groups by which they did so."""


def cascade(requests: Sequence[PagedRequest], *, page_size: int, pages_in_chunk: int, levels: int = 2) -> Cascade:
    """The plan that reads least, with `levels` levels, the last of them for what requests have alone.

    Queries never attend to a shared level causally, so the chunks in which a request's own queries lie are not shared.
    Raises ValueError for a request whose page table does not hold its tokens, or that has no queries.
    """
    if levels < 1:
        raise ValueError(f"a cascade has at least one level, not {levels}")
    for number, request in enumerate(requests):
        _check(number, request, page_size)
    shareable = [_shareable(request, page_size * pages_in_chunk) for request in requests]
    by_rank = sorted(range(len(requests)), key=lambda number: shareable[number])
    chains = _Plan([shareable[number] for number in by_rank], levels - 1).chains()
    # Who is in a group has the same groups on the levels before: sorted by groups, each is one run on its level.
    ranks = sorted(
        range(len(requests)), key=lambda rank: [(group.level, group.first, group.end) for group in chains[rank]]
    )
    order = [by_rank[rank] for rank in ranks]
    ordered = [chains[rank] for rank in ranks]
    made = [_shared_level(requests, order, ordered, level, page_size, pages_in_chunk) for level in range(1, levels)]
    made.append(_last_level(requests, order, ordered, page_size, pages_in_chunk))
    return Cascade(
        order,
        made,
        pages_read=sum(len(level.paged_kv_indices) for level in made),
        pages_alone=sum(_pages_of(request, page_size) for request in requests),
    )


def _check(number: int, request: PagedRequest, page_size: int) -> None:
    if not 1 <= request.queries <= request.tokens:
        raise ValueError(f"request {number} has {request.queries} queries among {request.tokens} tokens")
    if _pages_of(request, page_size) > len(request.pages):
        raise ValueError(f"request {number} has {request.tokens} tokens and only {len(request.pages)} pages")


def _pages_of(request: PagedRequest, page_size: int) -> int:
    return -(-request.tokens // page_size)


def _shareable(request: PagedRequest, chunk_tokens: int) -> tuple[bytes, ...]:
    """Chunks that lie before all of its queries."""
    return tuple(request.keys[: (request.tokens - request.queries) // chunk_tokens])


class _Plan:
    """The groups that save most, by dynamic programming over the tree of prefixes.

    Where requests part, a group may be made of what they share, on any level: it costs one reading of the chunks that
    levels before it have not read. Each request then goes as far as the groups on its way take it.
    """

    def __init__(self, ranked: Sequence[tuple[bytes, ...]], levels: int) -> None:
        self._ranked = ranked
        self._levels = levels
        self._known: dict[tuple[int, int, Reached], tuple[int, _Group | None]] = {}

    def chains(self) -> list[tuple[_Group, ...]]:
        """The groups of each request, by rank."""
        found: list[tuple[_Group, ...]] = []
        for first, last in self._parts(0, len(self._ranked), 0):
            self._follow(first, last, (0,) * (self._levels + 1), ((),) * (self._levels + 1), found)
        return found

    def _best(self, first: int, last: int, reached: Reached) -> tuple[int, _Group | None]:
        """What requests `first` to `last` save, who share a chunk at least, and the group to make where they part."""
        if last - first == 1:
            return reached[-1], None
        asked = first, last, reached
        if asked not in self._known:
            self._known[asked] = self._found(*asked)
        return self._known[asked]

    def _found(self, first: int, last: int, reached: Reached) -> tuple[int, _Group | None]:
        end = self._common(first, last)
        parts = self._parts(first, last, end)
        best: tuple[int, _Group | None] = sum(self._best(*part, reached)[0] for part in parts), None
        for level in range(1, self._levels + 1):
            if reached[level] < end:
                group = _Group(level, reached[level - 1], end, first)
                further = _further(reached, group)
                saved = group.start - end + sum(self._best(*part, further)[0] for part in parts)
                best = max(best, (saved, group), key=lambda one: one[0])
        return best

    def _follow(self, first: int, last: int, reached: Reached, chains: Chains, found: list[tuple[_Group, ...]]) -> None:
        """Add the groups of requests `first` to `last`."""
        _, group = self._best(first, last, reached)
        if last - first == 1:
            found.append(chains[-1])
            return
        if group is not None:
            chain = (*chains[group.level - 1], group)
            pairs = zip(reached[group.level :], chains[group.level :], strict=True)
            chains = (*chains[: group.level], *(chain if depth < group.end else old for depth, old in pairs))
            reached = _further(reached, group)
        for part in self._parts(first, last, self._common(first, last)):
            self._follow(*part, reached, chains, found)

    def _parts(self, first: int, last: int, depth: int) -> list[tuple[int, int]]:
        """Runs of requests with the same chunk at `depth`; those that end before are a run each."""
        parts: list[tuple[int, int]] = []

        def at(rank: int) -> tuple[int, bytes]:
            chunks = self._ranked[rank]
            # Keys are never empty, so a request that ends here is like no other.
            return (0, chunks[depth]) if depth < len(chunks) else (rank + 1, b"")

        for _, run in groupby(range(first, last), key=at):
            ranks = list(run)
            parts.append((ranks[0], ranks[-1] + 1))
        return parts

    def _common(self, first: int, last: int) -> int:
        """How many leading chunks they all share: the first and the last of a sorted run differ most."""
        pairs = enumerate(zip(self._ranked[first], self._ranked[last - 1], strict=False))
        return next((at for at, (one, other) in pairs if one != other), len(self._ranked[first]))


def _further(reached: Reached, group: _Group) -> Reached:
    """What can have been read behind a group."""
    return (*reached[: group.level], *(max(depth, group.end) for depth in reached[group.level :]))


def _shared_level(
    requests: Sequence[PagedRequest],
    order: Sequence[int],
    chains: Sequence[tuple[_Group, ...]],
    level: int,
    page_size: int,
    pages_in_chunk: int,
) -> Level:
    """Groups, and between them requests that share nothing on this level."""
    made = Level([0], [0], [], [])
    for group, run in groupby(zip(order, chains, strict=True), key=lambda one: _on_level(one[1], level)):
        numbers = [number for number, _ in run]
        if group is None:
            for number in numbers:
                _add(made, requests[number].queries, (), 0)
        else:
            pages = requests[numbers[0]].pages[group.start * pages_in_chunk : group.end * pages_in_chunk]
            _add(made, sum(requests[number].queries for number in numbers), pages, page_size)
    return made


def _on_level(chain: Sequence[_Group], level: int) -> _Group | None:
    return next((group for group in chain if group.level == level), None)


def _last_level(
    requests: Sequence[PagedRequest],
    order: Sequence[int],
    chains: Sequence[tuple[_Group, ...]],
    page_size: int,
    pages_in_chunk: int,
) -> Level:
    made = Level([0], [0], [], [])
    for number, chain in zip(order, chains, strict=True):
        request, start = requests[number], chain[-1].end if chain else 0
        pages = request.pages[start * pages_in_chunk : _pages_of(request, page_size)]
        _add(made, request.queries, pages, (request.tokens - 1) % page_size + 1)
    return made


def _add(level: Level, queries: int, pages: Sequence[int], last_page_len: int) -> None:
    level.qo_indptr.append(level.qo_indptr[-1] + queries)
    level.paged_kv_indices.extend(pages)
    level.paged_kv_indptr.append(len(level.paged_kv_indices))
    level.paged_kv_last_page_len.append(last_page_len)
