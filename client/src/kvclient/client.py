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
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Unpack, overload

from kvchunk.parts import ByteRange
from kvchunk.sources import ChunkSource
from kvclient import request_encoding
from kvclient.attach import ANSWER_TIMEOUT_S, AgentUnavailableError, LeaseLostError, attach
from kvclient.background import Background
from kvclient.connection import Connection
from kvclient.errors import AgentError, PoolFullError
from kvclient.fetched import Fetched, FetchStream, Found
from kvclient.lone import DEADLINE_S_MIN, LoneGets
from kvclient.messages import Kind, Status, Where
from kvclient.puts import ChunkToPut, PutOutcome, Puts, Reservation, bytes_of
from kvclient.reads import Reads
from kvclient.region import WriteRegion
from kvclient.request_encoding import Message, Notices, Request
from kvclient.terms import FetchTerms, check_seconds

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

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
    "LeaseLostError",
    "PoolFullError",
    "PutOutcome",
    "Reservation",
    "Status",
    "Where",
]


class AgentClient(Notices):
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
        check_seconds(answer_timeout_s=answer_timeout_s)
        with attach(os.fspath(socket_path)) as attached:
            self.pool_bytes, self.incarnation = attached.pool_bytes, attached.incarnation
            self._connection = Connection(os.fspath(socket_path), attached.sock, answer_timeout_s)
            self._reads = Reads(attached, self._connection, local_reads)
            self._region = WriteRegion(attached.region)
            self._lone: LoneGets | None = None
            if lone_gets and attached.lone is not None:
                self._lone = LoneGets.opened(*attached.lone)
        self._puts = Puts(self._connection, self._region)
        self._unmapping: list[Callable[[], None]] = []
        self.registered_bytes = 0
        """Of what is mapped, registered with a device by now."""
        self._making_background = threading.Lock()
        self._background: Background | None = None

    def mapped(self) -> list[memoryview]:
        """All that is mapped, to register it with a device: the pool, read-only, and this client's write region. Give
        `before_unmapping` what ends that."""
        return [self._reads.mapped(), self._region.view(0, self._region.size_bytes)]

    def before_unmapping(self, call: Callable[[], None]) -> None:
        """Have `close` call this, once, while all is mapped still."""
        self._unmapping.append(call)

    def close(self) -> None:
        """Gives everything back. Views handed out stay mapped but no longer protected from reuse."""
        if self._background is not None:
            self._background.close()
        self._connection.close()
        while self._unmapping:
            self._unmapping.pop()()
        if self._lone is not None:
            self._lone.close()
        self._reads.close()
        with contextlib.suppress(BufferError):
            self._region.close()

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ put

    def put(
        self,
        key: bytes,
        parent: bytes | None,
        buffer: Buffer,
        *,
        position: int | None = None,
        namespace: str = "",
    ) -> PutOutcome:
        """Copy a whole chunk into the pool and publish it. `buffer`: whatever holds bytes in one run, numpy arrays
        among them. Raises PoolFullError, ValueError for a buffer with gaps."""
        content = bytes_of(buffer)
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
        begun = self._reads.fetch(keys, deadline_s, any_order, ranges, traceparent, terms)
        if not isinstance(begun, Request):
            return begun
        if begun.message.kind == Kind.FETCH and len(keys) == 1 and self._lone is not None and traceparent is None:
            lone = self._lone.get(keys[0], terms.get("recompute_s")) if deadline_s >= DEADLINE_S_MIN else None
            if lone is not None:
                return Fetched(lone[1], [lone[0]], [ChunkSource.HOLDER], Status.OK)
        return self._connection.ask(begun)

    def fetch_stream(
        self, keys: Sequence[bytes], *, deadline_s: float, traceparent: str | None = None, **terms: Unpack[FetchTerms]
    ) -> FetchStream:
        """As `fetch` of a prefix, but the leading chunks come one by one, each as soon as it is whole: load them
        meanwhile. The agent begins with this call; leaving the `with` gives the rest up.

        >>> with agent.fetch_stream(keys, deadline_s=0.5) as stream:
        ...     for view in stream:
        ...         load(view)
        """
        here = self._reads.here(keys, deadline_s, traceparent, terms)
        if here is not None:
            stream = FetchStream(self._connection, self._reads.fetched)
            stream.add(here, is_last=True)
            return stream
        started = self._connection.start(request_encoding.fetch_stream(keys, deadline_s, traceparent, terms))
        give_up_s = time.monotonic() + deadline_s + self._connection.answer_timeout_s
        return FetchStream(self._connection, self._reads.fetched, started, give_up_s)

    def fetch_local(self, keys: Sequence[bytes]) -> Fetched | None:
        """The chunks if all of them are in this node's pool, some microseconds later: the agent is not asked.

        None: one of them is not there, or this client has as much leased as it may without asking. `fetch` begins
        with this.
        """
        return self._reads.local(keys)

    # ------------------------------------------------------------------ keep, drop, look

    def contains(self, keys: Sequence[bytes]) -> list[Where]:
        """Where each chunk is known to be, without moving anything."""
        return self._connection.ask(request_encoding.contains(keys))

    def pin(self, keys: Sequence[bytes]) -> list[bool]:
        """Keep chunks that are here from eviction until `unpin` or the end of this client; False: not here."""
        return self._connection.ask(request_encoding.with_each(Kind.PIN, keys))

    def unpin(self, keys: Sequence[bytes]) -> list[bool]:
        """Take pins of this client back; False: it had none on that chunk."""
        return self._connection.ask(request_encoding.with_each(Kind.UNPIN, keys))

    def lock(self, keys: Sequence[bytes], *, hold_s: float) -> list[bool]:
        """Keep chunks that are in this node's DRAM until `unlock`, for `hold_s` seconds, or to the end of this client.

        For the time between a look-up and a load. Locks of a chunk add up. False: it is not in DRAM (on a disk, or on
        another node: fetch it first), or this client or all clients together have locked as much as they may.
        """
        return self._connection.ask(request_encoding.lock(keys, hold_s))

    def unlock(self, keys: Sequence[bytes]) -> list[bool]:
        """Take one lock of each chunk back; False: this client has none on it (any more)."""
        return self._connection.ask(request_encoding.with_each(Kind.UNLOCK, keys))

    def drop(self, keys: Sequence[bytes]) -> list[bool]:
        """Remove chunks from this node's pool and disk; False: not here, pinned, or locked."""
        return self._connection.ask(request_encoding.with_each(Kind.DROP, keys))

    def stats(self) -> dict[str, float]:
        """The agent's figures: pool bytes, fetches by outcome, traffic. `registered_bytes`: this client's, and
        `engines_registered_bytes` those of all that have told them."""
        figures = self._connection.ask(request_encoding.stats(self.registered_bytes))
        return {**figures, "registered_bytes": float(self.registered_bytes)}

    def background(self, job: Iterable[object], *, priority: int = 0) -> Future[int]:
        """Run a job (`kvclient.jobs`, or an iterator of your own) step by step while no engine of this node waits for
        its agent. Ends with the client; `kvclient.background` says who is preempted by whom."""
        with self._making_background:
            if self._background is None:
                self._background = Background(self)
        return self._background.submit(job, priority=priority)

    def notify(self, message: Message) -> None:
        """Send what is not answered, see `Notices`. Raises AgentUnavailableError."""
        self._connection.notify(message)
