"""How a client reads chunks: in the pool's memory, without the agent where they are here, else from what it answers.
Standard library only."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from kvchunk.parts import ByteRange, check_ranges
from kvchunk.sources import ChunkSource
from kvclient import messages, request_encoding
from kvclient.attach import Attached, LeaseLostError
from kvclient.errors import client_was_closed, while_open
from kvclient.fetched import Fetched, Found, Lease, check_fetched
from kvclient.local import LocalReads
from kvclient.messages import FetchedChunk, Frame, Status
from kvclient.request_encoding import Request
from kvclient.terms import SECONDS_MAX, FetchTerms, check_seconds, check_terms

Got = Fetched | Found[memoryview] | Found[list[memoryview]]


class Lender(Protocol):
    """The connection to the agent whose chunks these are."""

    def is_up(self) -> bool:
        """Whether the agent has the connection at this moment."""

    def release(self, lease: int) -> None:
        """A lease ends. Raises LeaseLostError when it had ended before."""


class AgentLease:
    """What the agent has leased to this connection."""

    __slots__ = ("_lender", "_number")

    def __init__(self, lender: Lender, number: int) -> None:
        self._lender = lender
        self._number = number

    def check(self) -> None:
        """See `Lease`."""
        if not self._lender.is_up():
            raise LeaseLostError

    def release(self) -> None:
        """See `Lease`."""
        self._lender.release(self._number)


class _NoLease:
    """Of no chunks."""

    def check(self) -> None:
        """See `Lease`."""

    def release(self) -> None:
        """See `Lease`."""


class Reads:
    """Of one client. The pool stays mapped until `close`."""

    def __init__(self, attached: Attached, connection: Lender, local_reads: bool) -> None:
        """Maps the files; the descriptors stay the caller's."""
        self._connection = connection
        self._map = mmap.mmap(attached.memory, attached.pool_bytes, prot=mmap.PROT_READ)
        self._pool = memoryview(self._map)
        self._local: LocalReads | None = None
        if local_reads and attached.local is not None:
            self._local = LocalReads.opened(*attached.local, connection.is_up)

    def mapped(self) -> memoryview:
        """The whole pool, read-only."""
        return memoryview(self._map)

    def close(self) -> None:
        """Unmap. With views still out, the mapping goes when the last of them does."""
        if self._local is not None:
            self._local.close()
        self._pool.release()
        with contextlib.suppress(BufferError):
            self._map.close()

    # ------------------------------------------------------------------ without the agent

    def local(self, keys: Sequence[bytes]) -> Fetched | None:
        """See `AgentClient.fetch_local`."""
        local = self._local
        if local is None or not keys or (len(keys) > 1 and len(set(keys)) != len(keys)):
            return None
        lease = local.lease(keys)
        if lease is None:
            return None
        pool = self._pool
        try:  # as `while_open`, which takes a fifth of all this
            views = [pool[offset : offset + size_bytes] for offset, size_bytes in lease.found]
        except ValueError as error:
            raise client_was_closed() from error
        return Fetched(lease, views, [ChunkSource.LOCAL] * len(views), Status.OK)

    def here(
        self, keys: Sequence[bytes], deadline_s: float, traceparent: str | None, terms: FetchTerms
    ) -> Fetched | None:
        """What a fetch need not ask the agent for: all chunks are here, or there is nothing to fetch."""
        if terms:
            check_terms(terms)
        if not 0 <= deadline_s <= SECONDS_MAX:
            check_seconds(deadline_s=deadline_s)
        if not keys:
            return Fetched(_NoLease(), [], [], Status.OK)
        return self.local(keys) if traceparent is None else None

    def fetch(
        self,
        keys: Sequence[bytes],
        deadline_s: float,
        any_order: bool,
        ranges: Sequence[ByteRange] | None,
        traceparent: str | None,
        terms: FetchTerms,
    ) -> Got | Request[Got]:
        """See `AgentClient.fetch`: what is here, or what to ask the agent."""
        if ranges is not None:
            check_ranges(ranges)
        if terms and (any_order or ranges is not None):
            raise TypeError(f"a fetch in any order takes no {min(terms)!r}: the agent brings what there is")
        here = self.here(keys, deadline_s, traceparent, terms)
        if ranges is not None:
            if here is not None:
                return _ranges_of(here, ranges)
            return Request(
                request_encoding.fetch_ranges(keys, deadline_s, ranges),
                partial(self._ranges, len(keys), ranges),
                deadline_s,
            )
        if any_order:
            if here is not None:
                return Found(here, here.views, here.sources, here.outcome)
            message = request_encoding.fetch_any_order(keys, deadline_s, traceparent)
            return Request(message, partial(self._found, len(keys)), deadline_s)
        if here is not None:
            return here
        return Request(request_encoding.fetch(keys, deadline_s, traceparent, terms), self.fetched, deadline_s)

    # ------------------------------------------------------------------ from what the agent answers

    def fetched(self, answer: Frame) -> Fetched:
        """Leading chunks: the answer to FETCH, or a part of it. Raises AgentError, AgentUnavailableError."""
        lease, chunks = messages.unpack_fetched(check_fetched(answer))
        sources = [chunk.source for chunk in chunks]
        return Fetched(self._leased(lease), self._views(chunks), sources, Status(answer.status))

    def _found(self, keys_count: int, answer: Frame) -> Found[memoryview]:
        lease, chunks = messages.unpack_found(check_fetched(answer), keys_count)
        places = [chunks.get(place) for place in range(keys_count)]
        views = iter(self._views([chunk for chunk in places if chunk is not None]))
        return Found(
            self._leased(lease),
            [None if chunk is None else next(views) for chunk in places],
            [None if chunk is None else chunk.source for chunk in places],
            Status(answer.status),
        )

    def _ranges(self, keys_count: int, ranges: Sequence[ByteRange], answer: Frame) -> Found[list[memoryview]]:
        if answer.status == Status.OUT_OF_CHUNK:
            raise _out_of_chunk(ranges, *messages.OUT_OF_CHUNK.unpack(answer.body))
        lease, chunks = messages.unpack_parts(check_fetched(answer), keys_count, len(ranges))
        views: list[list[memoryview] | None] = [None] * keys_count
        sources: list[ChunkSource | None] = [None] * keys_count
        with while_open():
            for one in chunks:
                sources[one.place] = one.source
                views[one.place] = [
                    self._pool[offset : offset + part.size_bytes]
                    for offset, part in zip(one.offsets, ranges, strict=True)
                ]
        return Found(self._leased(lease), views, sources, Status(answer.status))

    def _views(self, chunks: Sequence[FetchedChunk]) -> list[memoryview]:
        with while_open():
            return [self._pool[chunk.offset : chunk.offset + chunk.size_bytes] for chunk in chunks]

    def _leased(self, lease: int) -> Lease:
        return AgentLease(self._connection, lease)


def _ranges_of(here: Fetched, ranges: Sequence[ByteRange]) -> Found[list[memoryview]]:
    """Ranges of chunks that are here. Raises ValueError for one outside of a chunk."""
    for place, view in enumerate(here.views):
        if len(view) < ranges[-1].end:
            size_bytes = len(view)
            here.release()
            raise _out_of_chunk(ranges, place, size_bytes)
    views = [[view[one.offset : one.end] for one in ranges] for view in here.views]
    return Found(here, views, here.sources, here.outcome)


def _out_of_chunk(ranges: Sequence[ByteRange], place: int, size_bytes: int) -> ValueError:
    """What is raised for ranges of which the last one ends behind a chunk."""
    return ValueError(f"ranges: one ends at byte {ranges[-1].end}, chunk {place} of those asked for has {size_bytes}")
