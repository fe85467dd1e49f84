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
    """Requests that share chunks `start` to `end`, with a level for them (or none, when they are as many)."""

    first: int
    last: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Best:
    """How to spend levels on a range of requests."""

    saved: int
    """Chunks that need not be read."""
    groups: tuple[tuple[_Group, ...], ...]
    """Of each level that was to be spent."""


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
    order = sorted(range(len(requests)), key=lambda number: shareable[number])
    ranked = [shareable[number] for number in order]
    best = _best(ranked, 0, len(ranked), 0, levels - 1)
    alone_from = [0] * len(ranked)
    made: list[Level] = []
    for groups in best.groups:
        for group in groups:
            alone_from[group.first : group.last] = [group.end] * (group.last - group.first)
        made.append(_shared_level(requests, order, groups, page_size, pages_in_chunk))
    made.append(_last_level(requests, order, alone_from, page_size, pages_in_chunk))
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


def _best(ranked: Sequence[tuple[bytes, ...]], first: int, last: int, start: int, levels: int) -> _Best:
    """Requests `first` to `last` of the ranked ones, which share all chunks before `start`."""
    if levels == 0 or first == last:
        return _Best(0, ((),) * levels)
    parts = _parts(ranked, first, last, start)
    if len(parts) > 1:
        return _side_by_side([_best(ranked, *part, start, levels) for part in parts], levels)
    end = _common(ranked, first, last)
    if last - first == 1 or end == start:
        return _Best(0, ((),) * levels)
    below = _parts(ranked, first, last, end)
    # Either a level for what they all share and fewer for what parts of them share beyond, or all levels for the parts,
    # which then read what they all share once each.
    deeper = _side_by_side([_best(ranked, *part, end, levels - 1) for part in below], levels - 1)
    together = _Best(
        (last - first - 1) * (end - start) + deeper.saved, ((_Group(first, last, start, end),), *deeper.groups)
    )
    apart = _side_by_side([_of_part(ranked, part, start, levels) for part in below], levels)
    return max((together, apart), key=lambda best: best.saved)


def _of_part(ranked: Sequence[tuple[bytes, ...]], part: tuple[int, int], start: int, levels: int) -> _Best:
    """As `_best` for a part that shares more than its siblings: its first level begins at `start`, too."""
    first, last = part
    end = _common(ranked, first, last)
    if last - first == 1 or end == start:
        return _Best(0, ((),) * levels)
    return _best(ranked, first, last, start, levels)


def _parts(ranked: Sequence[tuple[bytes, ...]], first: int, last: int, depth: int) -> list[tuple[int, int]]:
    """Runs of requests with the same chunk at `depth`; those that end before are a run each."""
    parts: list[tuple[int, int]] = []

    def at(number: int) -> tuple[int, bytes]:
        # Keys are never empty, so a request that ends here is like no other.
        return (0, ranked[number][depth]) if depth < len(ranked[number]) else (number + 1, b"")

    for _, run in groupby(range(first, last), key=at):
        numbers = list(run)
        parts.append((numbers[0], numbers[-1] + 1))
    return parts


def _common(ranked: Sequence[tuple[bytes, ...]], first: int, last: int) -> int:
    """How many leading chunks they all share: the first and the last of a sorted run differ most."""
    least, most = ranked[first], ranked[last - 1]
    return next((at for at, (one, other) in enumerate(zip(least, most, strict=False)) if one != other), len(least))


def _side_by_side(parts: Sequence[_Best], levels: int) -> _Best:
    groups = tuple(tuple(group for part in parts for group in part.groups[level]) for level in range(levels))
    return _Best(sum(part.saved for part in parts), groups)


def _shared_level(
    requests: Sequence[PagedRequest],
    order: Sequence[int],
    groups: Sequence[_Group],
    page_size: int,
    pages_in_chunk: int,
) -> Level:
    """Groups, and between them requests that share nothing on this level."""
    level = Level([0], [0], [], [])
    at = 0
    for group in groups:
        for alone in range(at, group.first):
            _add(level, requests[order[alone]].queries, (), 0)
        queries = sum(requests[order[place]].queries for place in range(group.first, group.last))
        pages = requests[order[group.first]].pages[group.start * pages_in_chunk : group.end * pages_in_chunk]
        _add(level, queries, pages, page_size)
        at = group.last
    for alone in range(at, len(order)):
        _add(level, requests[order[alone]].queries, (), 0)
    return level


def _last_level(
    requests: Sequence[PagedRequest],
    order: Sequence[int],
    alone_from: Sequence[int],
    page_size: int,
    pages_in_chunk: int,
) -> Level:
    level = Level([0], [0], [], [])
    for number, start in zip(order, alone_from, strict=True):
        request = requests[number]
        pages = request.pages[start * pages_in_chunk : _pages_of(request, page_size)]
        _add(level, request.queries, pages, (request.tokens - 1) % page_size + 1)
    return level


def _add(level: Level, queries: int, pages: Sequence[int], last_page_len: int) -> None:
    level.qo_indptr.append(level.qo_indptr[-1] + queries)
    level.paged_kv_indices.extend(pages)
    level.paged_kv_indptr.append(len(level.paged_kv_indices))
    level.paged_kv_last_page_len.append(last_page_len)
