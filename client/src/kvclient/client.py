"""The engine's side of the agent: put and fetch chunks through shared memory. Thread-safe; standard library only.

>>> with AgentClient("/run/kvcast/agent.sock") as agent:
...     agent.put(key, parent, kv_bytes)
...     with agent.fetch([key_0, key_1], deadline_s=0.5) as got:
...         for view in got.views:
...             load(view)

Chunks are read in place: `fetch` gives read-only views of the pool that stay valid until the result is released (or the
client is closed: closing gives all leases and pins back). `reserve` gives a view of this client's own write region to
fill; the agent copies it into the pool at `commit`. What is in the pool already is fetched without the agent
(`kvclient.local`).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Literal, Unpack, overload

from kvchunk.parts import ByteRange, check_ranges
from kvchunk.sources import ChunkSource
from kvclient import messages
from kvclient.attach import ANSWER_TIMEOUT_S, AgentUnavailableError, attach
from kvclient.connection import Connection
from kvclient.errors import AgentError, PoolFullError, client_was_closed, expect, while_open
from kvclient.fetched import Fetched, FetchStream, Found, check_fetched
from kvclient.local import LocalReads
from kvclient.lone import DEADLINE_S_MIN, LoneGets
from kvclient.messages import FetchedChunk, Hint, Kind, Status, Where
from kvclient.puts import ChunkToPut, PutOutcome, Puts, Reservation
from kvclient.region import WriteRegion
from kvclient.terms import FetchTerms, check_fetch, check_seconds, check_size, check_terms

__all__ = [
    "AgentClient",
    "AgentError",
    "AgentUnavailableError",
    "ByteRange",
    "ChunkSource",
    "ChunkToPut",
    "FetchStream",
    "FetchTerms",
    "Fetched",
    "Found",
    "PoolFullError",
    "PutOutcome",
    "Reservation",
    "Status",
    "Where",
]


class AgentClient:
    """A connection to this node's agent. Methods may be called from any thread, several at once."""

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        local_reads: bool = True,
        lone_gets: bool = True,
    ) -> None:
        """Connects and maps the pool; raises AgentUnavailableError when that fails.

        The client gives up an agent that owes an answer for `answer_timeout_s` (beyond a fetch's own deadline).
        `local_reads`: fetch what is in the pool without the agent, where that is possible; `lone_gets`: and a small
        chunk that one other node has without the agent's event loop (`kvclient.lone`).
        """
        attached = attach(os.fspath(socket_path))
        self.pool_bytes, self.incarnation = attached.pool_bytes, attached.incarnation
        try:
            self._map = mmap.mmap(attached.memory, attached.pool_bytes, prot=mmap.PROT_READ)
            self._pool = memoryview(self._map)
            self._region = WriteRegion(attached.region)
            self._connection = Connection(os.fspath(socket_path), attached.sock, answer_timeout_s)
            self._local: LocalReads | None = None
            if local_reads and attached.local is not None:
                self._local = LocalReads.opened(*attached.local, self._connection.is_up)
            self._lone: LoneGets | None = None
            if lone_gets and attached.lone is not None:
                self._lone = LoneGets.opened(*attached.lone)
        except BaseException:
            attached.sock.close()
            raise
        finally:
            attached.close_files()
        self._puts = Puts(self._connection, self._region)

    def close(self) -> None:
        """Gives everything back. Views handed out stay mapped but no longer protected from reuse."""
        self._connection.close()
        if self._local is not None:
            self._local.close()
        if self._lone is not None:
            self._lone.close()
        self._pool.release()
        # With views still out, a mapping goes when the last of them does.
        for mapping in (self._map, self._region):
            with contextlib.suppress(BufferError):
                mapping.close()

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ put

    def put(
        self,
        key: bytes,
        parent: bytes | None,
        buffer: bytes | bytearray | memoryview,
        *,
        position: int | None = None,
        namespace: str = "",
    ) -> PutOutcome:
        """Copy a whole chunk into the pool and publish it. Raises PoolFullError."""
        content = memoryview(buffer).cast("B")
        slot = self.reserve(key, parent, len(content), position=position, namespace=namespace)
        if slot is None:
            return PutOutcome.EXISTS
        with slot:
            slot.view[:] = content
            slot.commit()
        return PutOutcome.STORED

    def reserve(
        self, key: bytes, parent: bytes | None, size_bytes: int, *, position: int | None = None, namespace: str = ""
    ) -> Reservation | None:
        """Room for a chunk in the pool, and a view in which to write it; None when the pool has it or somebody is
        writing it. Raises PoolFullError."""
        return self._puts.reserve(key, parent, size_bytes, position, namespace)

    def put_each(self, chunks: Sequence[ChunkToPut], *, namespace: str = "") -> list[bool]:
        """Write many chunks into the pool and publish them, with two round trips for PUTS_AT_ONCE of them.

        True: it is in the pool, or somebody else is writing it at this moment. False: there was no room for it.
        """
        return self._puts.put_each(chunks, namespace)

    # ------------------------------------------------------------------ fetch

    @overload
    def fetch(
        self, keys: Sequence[bytes], *, deadline_s: float, traceparent: str | None = None, **terms: Unpack[FetchTerms]
    ) -> Fetched: ...

    @overload
    def fetch(
        self, keys: Sequence[bytes], *, deadline_s: float, any_order: Literal[True], traceparent: str | None = None
    ) -> Found[memoryview]: ...

    @overload
    def fetch(
        self, keys: Sequence[bytes], *, deadline_s: float, ranges: Sequence[ByteRange]
    ) -> Found[list[memoryview]]: ...

    def fetch(
        self,
        keys: Sequence[bytes],
        *,
        deadline_s: float,
        any_order: bool = False,
        ranges: Sequence[ByteRange] | None = None,
        traceparent: str | None = None,
        **terms: Unpack[FetchTerms],
    ) -> Fetched | Found[memoryview] | Found[list[memoryview]]:
        """Bring chunks, each named once, into the pool and lease those that arrive by the deadline. A miss is no
        exception: `outcome` says why the first one missing is missing.

        By default `keys` are a prefix, in order, and the leading chunks that arrive are leased. `terms`: what the agent
        weighs the fetch by, see FetchTerms.

        `any_order`: each chunk is of use by itself, for engines whose keys name no parents: one that is missing,
        refused or late costs only itself. The agent fetches whatever it takes, and waits for nobody who computes.

        `ranges`: only these ranges of each chunk (in order, without overlap; the chunks in any order): some layers or
        some tokens, of which `kvchunk.parts.ranges_of` says where they lie. From another node only the pieces of 64 KiB
        that they touch cross the network, each checked against the chunk's digest. What comes so is no chunk of the
        pool: the next fetch brings it again. Where parts cannot be had (`hostagent.core.parts`), the whole chunk comes.

        >>> with agent.fetch(keys, ranges=ranges_of(layout, layers=[0]), deadline_s=0.5) as found:
        ...     for views in found.views:
        ...         load(views)

        `traceparent`: trace context of the caller (W3C Trace Context), of which the agent's spans become children.
        Raises ValueError or TypeError for an argument that makes no sense.
        """
        if ranges is not None:
            check_ranges(ranges)
        if terms:
            check_terms(terms)
            if any_order or ranges is not None:
                raise TypeError(f"a fetch in any order takes no {min(terms)!r}: the agent brings what there is")
        here = self._here(keys, deadline_s, traceparent)
        if here is not None:
            if ranges is not None:
                return self._ranges_of(here, ranges)
            return Found(here.release, here.views, here.sources, here.outcome) if any_order else here
        check_fetch(keys, deadline_s, terms)
        if ranges is not None:
            return self._fetch_ranges(keys, ranges, deadline_s)
        if any_order:
            return self._fetch_found(keys, deadline_s, traceparent)
        if len(keys) == 1 and self._lone is not None and traceparent is None and deadline_s >= DEADLINE_S_MIN:
            lone = self._lone.get(keys[0], terms.get("recompute_s"))
            if lone is not None:
                return Fetched(lone[1], [lone[0]], [ChunkSource.HOLDER], Status.OK)
        request = self._ask_for(Kind.FETCH, keys, messages.pack_fetch(keys, deadline_s, terms), traceparent)
        answer = check_fetched(self._connection.wait(request, self._give_up_s(deadline_s)))
        lease, chunks = messages.unpack_fetched(answer)
        sources = [chunk.source for chunk in chunks]
        return Fetched(self._release_of(lease), self._views(chunks), sources, Status(answer.status))

    def fetch_stream(
        self, keys: Sequence[bytes], *, deadline_s: float, traceparent: str | None = None, **terms: Unpack[FetchTerms]
    ) -> FetchStream:
        """As `fetch` of a prefix, but the leading chunks come one by one, each as soon as it is whole: load them
        meanwhile. The agent begins with this call; leaving the `with` gives the rest up.

        >>> with agent.fetch_stream(keys, deadline_s=0.5) as stream:
        ...     for view in stream:
        ...         load(view)
        """
        if terms:
            check_terms(terms)
        here = self._here(keys, deadline_s, traceparent)
        if here is not None:
            return FetchStream.of(self._connection, here, self._views)
        check_fetch(keys, deadline_s, terms)
        body = messages.pack_fetch(keys, deadline_s, terms)
        request = self._ask_for(Kind.FETCH_STREAM, keys, body, traceparent)
        return FetchStream(self._connection, request, self._give_up_s(deadline_s), self._views)

    def fetch_local(self, keys: Sequence[bytes]) -> Fetched | None:
        """The chunks if all of them are in this node's pool, some microseconds later: the agent is not asked.

        None: one of them is not there, or this client has as much leased as it may without asking. `fetch` begins
        with this.
        """
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
        return Fetched(lease.release, views, [ChunkSource.LOCAL] * len(views), Status.OK)

    def _here(self, keys: Sequence[bytes], deadline_s: float, traceparent: str | None) -> Fetched | None:
        """What a fetch need not ask the agent for: all chunks are here, or there is nothing to fetch."""
        if not deadline_s >= 0:
            check_seconds(deadline_s=deadline_s)
        if not keys:
            return Fetched(_nothing, [], [], Status.OK)
        return self.fetch_local(keys) if traceparent is None else None

    def _fetch_found(self, keys: Sequence[bytes], deadline_s: float, traceparent: str | None) -> Found[memoryview]:
        body = messages.FETCH_EACH.pack(int(deadline_s * 1e6)) + messages.pack_keys(keys)
        request = self._ask_for(Kind.FETCH_EACH, keys, body, traceparent)
        answer = check_fetched(self._connection.wait(request, self._give_up_s(deadline_s)))
        lease, chunks = messages.unpack_found(answer, len(keys))
        places = [chunks.get(place) for place in range(len(keys))]
        views = iter(self._views([chunk for chunk in places if chunk is not None]))
        return Found(
            self._release_of(lease),
            [None if chunk is None else next(views) for chunk in places],
            [None if chunk is None else chunk.source for chunk in places],
            Status(answer.status),
        )

    def _fetch_ranges(
        self, keys: Sequence[bytes], ranges: Sequence[ByteRange], deadline_s: float
    ) -> Found[list[memoryview]]:
        messages.check_parts(keys, ranges)
        request = self._ask_for(Kind.FETCH_PARTS, keys, messages.pack_fetch_parts(keys, ranges, deadline_s), None)
        answer = self._connection.wait(request, self._give_up_s(deadline_s))
        if answer.status == Status.OUT_OF_CHUNK:
            raise _out_of_chunk(ranges, *messages.OUT_OF_CHUNK.unpack(answer.body))
        lease, chunks = messages.unpack_parts(check_fetched(answer), len(keys), len(ranges))
        views: list[list[memoryview] | None] = [None] * len(keys)
        sources: list[ChunkSource | None] = [None] * len(keys)
        with while_open():
            for one in chunks:
                sources[one.place] = one.source
                views[one.place] = [
                    self._pool[offset : offset + part.size_bytes]
                    for offset, part in zip(one.offsets, ranges, strict=True)
                ]
        return Found(self._release_of(lease), views, sources, Status(answer.status))

    @staticmethod
    def _ranges_of(here: Fetched, ranges: Sequence[ByteRange]) -> Found[list[memoryview]]:
        """Ranges of chunks that are here. Raises ValueError for one outside of a chunk."""
        for place, view in enumerate(here.views):
            if len(view) < ranges[-1].end:
                size_bytes = len(view)
                here.release()
                raise _out_of_chunk(ranges, place, size_bytes)
        views = [[view[one.offset : one.end] for one in ranges] for view in here.views]
        return Found(here.release, views, here.sources, here.outcome)

    def _ask_for(self, kind: Kind, keys: Sequence[bytes], body: bytes, traceparent: str | None) -> int:
        """Number of the request."""
        trace = messages.pack_traceparent(traceparent)
        return self._connection.send(kind, body + trace, status=len(trace), count=len(keys), answered=True)

    def _give_up_s(self, deadline_s: float) -> float:
        return time.monotonic() + deadline_s + self._connection.answer_timeout_s

    def _release_of(self, lease: int) -> Callable[[], None]:
        return partial(self._connection.give_back, Kind.RELEASE, lease)

    def _views(self, chunks: Sequence[FetchedChunk]) -> list[memoryview]:
        with while_open():
            return [self._pool[chunk.offset : chunk.offset + chunk.size_bytes] for chunk in chunks]

    def contains(self, keys: Sequence[bytes]) -> list[Where]:
        """Where each chunk is known to be, without moving anything."""
        answer = expect(self._connection.call(Kind.CONTAINS, messages.pack_keys(keys), count=len(keys)), "look up")
        return messages.unpack_places(answer)

    # ------------------------------------------------------------------ compute

    def claim(self, keys: Sequence[bytes], size_bytes: int, etas_s: Sequence[float]) -> None:
        """This engine computes these chunks now, in prefix order, and puts each in about `etas_s` seconds from now.

        Others that want them may wait for them instead of computing them, too. Claim again whenever a time changes; put
        every chunk as soon as it is computed. A claim ends with the put, with `disclaim`, or when it is late.
        """
        check_size(size_bytes)
        for at in range(0, len(keys), messages.KEYS_MAX):
            part = slice(at, at + messages.KEYS_MAX)
            body = messages.pack_claim(keys[part], size_bytes, etas_s[part])
            self._connection.send(Kind.CLAIM, body, count=len(keys[part]))

    def disclaim(self, keys: Sequence[bytes] | None = None) -> None:
        """These chunks are not computed after all: whoever waits for them goes on at once. None: all of this client."""
        if keys is None:
            self._connection.send(Kind.DISCLAIM, b"")
            return
        for at in range(0, len(keys), messages.KEYS_MAX):
            part = keys[at : at + messages.KEYS_MAX]
            self._connection.send(Kind.DISCLAIM, messages.pack_keys(part), count=len(part))

    # ------------------------------------------------------------------ keep, drop, tell

    def pin(self, keys: Sequence[bytes]) -> list[bool]:
        """Keep chunks that are here from eviction until `unpin` or the end of this client; False: not here."""
        return self._done(Kind.PIN, messages.pack_keys(keys), len(keys), "pin")

    def unpin(self, keys: Sequence[bytes]) -> list[bool]:
        """Take pins of this client back; False: it had none on that chunk."""
        return self._done(Kind.UNPIN, messages.pack_keys(keys), len(keys), "unpin")

    def lock(self, keys: Sequence[bytes], *, hold_s: float) -> list[bool]:
        """Keep chunks that are in this node's DRAM until `unlock`, for `hold_s` seconds, or to the end of this client.

        For the time between a look-up and a load. Locks of a chunk add up. False: it is not in DRAM (on a disk, or on
        another node: fetch it first), or this client or all clients together have locked as much as they may.
        """
        check_seconds(hold_s=hold_s)
        body = messages.LOCK.pack(int(hold_s * 1e6)) + messages.pack_keys(keys)
        return self._done(Kind.LOCK, body, len(keys), "lock")

    def unlock(self, keys: Sequence[bytes]) -> list[bool]:
        """Take one lock of each chunk back; False: this client has none on it (any more)."""
        return self._done(Kind.UNLOCK, messages.pack_keys(keys), len(keys), "unlock")

    def drop(self, keys: Sequence[bytes]) -> list[bool]:
        """Remove chunks from this node's pool and disk; False: not here, pinned, or locked."""
        return self._done(Kind.DROP, messages.pack_keys(keys), len(keys), "drop")

    def session_end(self, keys: Sequence[bytes]) -> None:
        """These chunks and what hangs below them are not expected to be used again."""
        self._connection.send(Kind.HINT, messages.pack_hint(keys, Hint.SESSION_ENDED), count=len(keys))

    def expect_reuse(self, keys: Sequence[bytes], *, within_s: float) -> None:
        """These chunks are expected to be used again in about `within_s` seconds."""
        check_seconds(within_s=within_s)
        body = messages.pack_hint(keys, Hint.EXPECTED, min(int(within_s * 1000), 0xFFFF_FFFF))
        self._connection.send(Kind.HINT, body, count=len(keys))

    def warm(self, namespace: str, size_bytes: int, *, nodes: int = 0, wait_s: float = 0.0) -> None:
        """An engine starts: bring `size_bytes` at most of the chunks with this label that are fetched most, into free
        room of this node's pool, in the background.

        `nodes`: so many nodes start such an engine about now (0: unknown); the controller waits for them, `wait_s`
        (whole milliseconds) at most, so that one cast serves all.
        """
        check_size(size_bytes)
        check_seconds(wait_s=wait_s)
        self._connection.send(Kind.WARM, messages.WARM.pack(size_bytes, nodes, int(wait_s * 1000)) + namespace.encode())

    def stats(self) -> dict[str, float]:
        """The agent's figures: pool bytes, fetches by outcome, traffic."""
        answer = expect(self._connection.call(Kind.STATS, b""), "give figures")
        figures: dict[str, float] = json.loads(answer.body)
        return figures

    def _done(self, kind: Kind, body: bytes, count: int, doing: str) -> list[bool]:
        """Ask for something with each key; whether it was done."""
        return [bool(value) for value in expect(self._connection.call(kind, body, count=count), doing).body]


def _nothing() -> None:
    """What releases no lease."""


def _out_of_chunk(ranges: Sequence[ByteRange], place: int, size_bytes: int) -> ValueError:
    """What is raised for ranges of which the last one ends behind a chunk."""
    return ValueError(f"ranges: one ends at byte {ranges[-1].end}, chunk {place} of those asked for has {size_bytes}")
