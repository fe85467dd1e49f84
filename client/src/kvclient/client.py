"""The engine's side of the agent: put and fetch chunks through shared memory. Thread-safe; standard library only.

>>> with AgentClient("/run/kvcast/agent.sock") as agent:
...     agent.put(key, parent, kv_bytes)
...     with agent.fetch([key_0, key_1], deadline_s=0.5) as got:
...         for view in got.views:
...             load(view)

Chunks are read in place: `fetch` gives read-only views of the pool that stay valid until the result is released (or the
client is closed: closing gives all leases and pins back). `reserve` gives a view of this client's own write region to
fill; the agent copies it into the pool at `commit`.
"""

from __future__ import annotations

import contextlib
import enum
import json
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from kvclient import messages
from kvclient.attach import ANSWER_TIMEOUT_S, AgentUnavailableError, attach
from kvclient.found import Found
from kvclient.messages import Frame, Hint, Kind, MalformedFrameError, Status, Where
from kvclient.region import WriteRegion
from kvproto.integrity import Digest
from kvproto.sources import ChunkSource

__all__ = [
    "AgentClient",
    "AgentError",
    "AgentUnavailableError",
    "ChunkSource",
    "ChunkToPut",
    "FetchUnderWay",
    "Fetched",
    "Found",
    "PoolFullError",
    "PutOutcome",
    "Reservation",
    "Status",
    "Where",
]

_MISSES = frozenset(
    {
        Status.FILLING,
        Status.OK,
        Status.NOT_FOUND,
        Status.DEADLINE,
        Status.GATE,
        Status.UNAVAILABLE,
        Status.POOL_FULL,
        Status.CANCELLED,
        Status.ABANDONED,
    }
)


class AgentError(Exception):
    """The agent refused a request; `status` says why."""

    def __init__(self, status: Status, doing: str) -> None:
        super().__init__(f"the agent refused to {doing}: {status.name.lower().replace('_', ' ')}")
        self.status = status


class PoolFullError(AgentError):
    """No room in the node's pool, nothing may be evicted, or the chunk is larger than the pool or the write region."""


PUTS_AT_ONCE = 32
"""Chunks that `put_each` has room for at a time."""


@dataclass(frozen=True, slots=True)
class ChunkToPut:
    """A chunk for `put_each`."""

    key: bytes
    parent: bytes | None
    size_bytes: int
    write: Callable[[memoryview], None]
    """Fills a view of `size_bytes`, and keeps none of it."""
    position: int | None = None


class PutOutcome(enum.Enum):
    STORED = "stored"
    EXISTS = "exists"
    """Here already, or being filled by somebody else at this moment."""

    def __str__(self) -> str:
        return self.name


class AgentClient:
    """A connection to this node's agent. Methods may be called from any thread, several at once."""

    def __init__(self, socket_path: str | os.PathLike[str], *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Connects and maps the pool; raises AgentUnavailableError when that fails.

        The client gives up an agent that owes an answer for `answer_timeout_s` (beyond a fetch's own deadline).
        """
        self._path = os.fspath(socket_path)
        self._answer_timeout_s = answer_timeout_s
        attached = attach(self._path)
        self._sock, self.pool_bytes, self.incarnation = attached.sock, attached.pool_bytes, attached.incarnation
        try:
            self._map = mmap.mmap(attached.memory, attached.pool_bytes, prot=mmap.PROT_READ)
            self._region = WriteRegion(attached.region)
        except BaseException:
            self._sock.close()
            raise
        finally:
            os.close(attached.memory)
            os.close(attached.region)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(ANSWER_TIMEOUT_S), 0))
        self._readable = select.poll()
        self._readable.register(self._sock, select.POLLIN)
        self._lock = threading.Condition()
        self._send_lock = threading.Lock()
        self._frames = messages.FrameReader()
        self._answers: dict[int, Frame | None] = {}
        self._reading = False
        self._request = 0
        self._broken: str | None = None

    def close(self) -> None:
        """Gives everything back. Views handed out stay mapped but no longer protected from reuse."""
        with self._lock:
            self._broken = "the client was closed"
            self._lock.notify_all()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
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
        return self._reserved(self._wait_for(self._ask_room(key, parent, size_bytes, position, namespace)), size_bytes)

    def put_each(self, chunks: Sequence[ChunkToPut], *, namespace: str = "") -> list[bool]:
        """Write many chunks into the pool and publish them, with two round trips for PUTS_AT_ONCE of them.

        True: it is in the pool, or somebody else is writing it at this moment. False: there was no room for it.
        """
        done: list[bool] = []
        for at in range(0, len(chunks), PUTS_AT_ONCE):
            part = chunks[at : at + PUTS_AT_ONCE]
            outcomes = self._put_at_once(part, namespace)
            if None in outcomes and len(part) > 1:
                # Those before may have taken what room there is for writing: once more, one after the other.
                again = [
                    self._put_at_once([chunk], namespace)[0] if outcome is None else outcome
                    for chunk, outcome in zip(part, outcomes, strict=True)
                ]
                outcomes = again
            done += [outcome is not None for outcome in outcomes]
        return done

    def _put_at_once(self, chunks: Sequence[ChunkToPut], namespace: str) -> list[PutOutcome | None]:
        """None: there was no room."""
        asked = [
            self._ask_room(chunk.key, chunk.parent, chunk.size_bytes, chunk.position, namespace) for chunk in chunks
        ]
        outcomes: list[PutOutcome | None] = []
        slots: list[tuple[int, Reservation]] = []
        started: list[tuple[int, Reservation, int]] = []
        try:
            with contextlib.ExitStack() as reserved:
                for place, answer in enumerate([self._wait_for(request) for request in asked]):
                    outcomes.append(None)
                    with contextlib.suppress(AgentError):
                        slot = self._reserved(answer, chunks[place].size_bytes)
                        outcomes[place] = PutOutcome.EXISTS if slot is None else PutOutcome.STORED
                        if slot is not None:
                            slots.append((place, reserved.enter_context(slot)))
                for place, slot in slots:
                    chunks[place].write(slot.view)
                    started.append((place, slot, slot.start_commit()))
        finally:
            for place, slot, request in started:
                try:
                    slot.committed(request)
                except AgentError:
                    outcomes[place] = None
        return outcomes

    def _ask_room(self, key: bytes, parent: bytes | None, size_bytes: int, position: int | None, namespace: str) -> int:
        """Number of the request."""
        messages.pack_keys([key] if parent is None else [key, parent])
        body = messages.RESERVE.pack(
            key,
            parent if parent is not None else messages.NO_KEY,
            size_bytes,
            messages.NO_POSITION if position is None else position,
        )
        return self._send(Kind.RESERVE, body + namespace.encode(), answered=True)

    def _reserved(self, answer: Frame, size_bytes: int) -> Reservation | None:
        if answer.status in (Status.EXISTS, Status.FILLING):
            return None
        _expect(answer, "reserve room")
        (lease,) = messages.LEASE.unpack(answer.body)
        offset = self._region.allocate(size_bytes)
        if offset is None:
            self._give_back(Kind.ABORT, lease)
            too_large = size_bytes > self._region.size_bytes
            what = f"take {size_bytes} bytes at once through a write region of {self._region.size_bytes}"
            raise PoolFullError(Status.TOO_LARGE if too_large else Status.POOL_FULL, f"{what} (api.write_region)")
        with _while_open():
            return Reservation(self, lease, offset, self._region.view(offset, size_bytes))

    # ------------------------------------------------------------------ fetch

    def fetch(
        self,
        keys: Sequence[bytes],
        *,
        deadline_s: float,
        recompute_s: float | None = None,
        queue_s: float = 0.0,
        attention_share: float = 0.0,
        behind: int = 0,
        expected_s: float = 0.0,
        traceparent: str | None = None,
    ) -> Fetched:
        """Bring chunks, in prefix order, into the pool and lease the leading ones that arrived by the deadline.

        `recompute_s`: seconds to compute all of them; the agent answers GATE at once when it cannot beat that. None:
        fetch whatever it takes. `queue_s`: seconds until the engine would begin to compute, because others come first.
        `attention_share`: share of `recompute_s` that grows with the position, 0 to 1: late chunks are worth more.
        `behind`: requests that wait for the engine behind this one; with some the agent rather waits for chunks that
        somebody computes at this moment. `expected_s`: chunks that nobody has or computes yet will be announced within
        this time (a prefill elsewhere that is about to begin): wait for them.
        `traceparent`: trace context of the caller (W3C Trace Context), of which the agent's spans become children.
        A miss is no exception: see `Fetched.count` and `Fetched.outcome`.
        """
        return self.start_fetch(
            keys,
            deadline_s=deadline_s,
            recompute_s=recompute_s,
            queue_s=queue_s,
            attention_share=attention_share,
            behind=behind,
            expected_s=expected_s,
            traceparent=traceparent,
        ).wait()

    def start_fetch(
        self,
        keys: Sequence[bytes],
        *,
        deadline_s: float,
        recompute_s: float | None = None,
        queue_s: float = 0.0,
        attention_share: float = 0.0,
        behind: int = 0,
        expected_s: float = 0.0,
        traceparent: str | None = None,
    ) -> FetchUnderWay:
        """As `fetch`, without waiting: the agent begins now. `wait` must be called, also after `cancel`."""
        body = messages.pack_fetch(keys, deadline_s, recompute_s, queue_s, attention_share, behind, expected_s)
        trace = messages.pack_traceparent(traceparent)
        request = self._send(Kind.FETCH, body + trace, status=len(trace), count=len(keys), answered=True)
        return FetchUnderWay(self, request, time.monotonic() + deadline_s + self._answer_timeout_s)

    def _fetched(self, answer: Frame) -> Fetched:
        if answer.status not in _MISSES:
            _expect(answer, "fetch")
        lease, chunks = messages.unpack_fetched(answer)
        with _while_open():
            pool = memoryview(self._map)
            views = [pool[chunk.offset : chunk.offset + chunk.size_bytes] for chunk in chunks]
        return Fetched(self, lease, views, [chunk.source for chunk in chunks], Status(answer.status))

    def fetch_each(self, keys: Sequence[bytes], *, deadline_s: float, traceparent: str | None = None) -> Found:
        """Bring chunks, each of use by itself, into the pool and lease those that arrived by the deadline.

        For engines whose keys name no parents: a chunk that is missing, refused or late costs only itself. `keys` are
        distinct, in any order. The agent fetches whatever it takes, and waits for nobody who computes.
        """
        body = messages.FETCH_EACH.pack(int(deadline_s * 1e6)) + messages.pack_keys(keys)
        trace = messages.pack_traceparent(traceparent)
        request = self._send(Kind.FETCH_EACH, body + trace, status=len(trace), count=len(keys), answered=True)
        answer = self._wait(request, time.monotonic() + deadline_s + self._answer_timeout_s)
        if answer.status not in _MISSES:
            _expect(answer, "fetch")
        lease, chunks = messages.unpack_found(answer, len(keys))
        places = [chunks.get(place) for place in range(len(keys))]
        with _while_open():
            pool = memoryview(self._map)
            views = [None if at is None else pool[at.offset : at.offset + at.size_bytes] for at in places]
        return Found(
            lambda: self._give_back(Kind.RELEASE, lease),
            views,
            [None if chunk is None else chunk.source for chunk in places],
            Status(answer.status),
        )

    def contains(self, keys: Sequence[bytes]) -> list[Where]:
        """Where each chunk is known to be, without moving anything."""
        answer = _expect(self._call(Kind.CONTAINS, messages.pack_keys(keys), count=len(keys)), "look up")
        return messages.unpack_places(answer)

    # ------------------------------------------------------------------ compute

    def claim(self, keys: Sequence[bytes], size_bytes: int, etas_s: Sequence[float]) -> None:
        """This engine computes these chunks now, in prefix order, and puts each in about `etas_s` seconds from now.

        Others that want them may wait for them instead of computing them, too. Claim again whenever a time changes; put
        every chunk as soon as it is computed. A claim ends with the put, with `disclaim`, or when it is late.
        """
        for at in range(0, len(keys), messages.KEYS_MAX):
            part = slice(at, at + messages.KEYS_MAX)
            body = messages.pack_claim(keys[part], size_bytes, etas_s[part])
            self._send(Kind.CLAIM, body, count=len(keys[part]))

    def disclaim(self, keys: Sequence[bytes] | None = None) -> None:
        """These chunks are not computed after all: whoever waits for them goes on at once. None: all of this client."""
        if keys is None:
            self._send(Kind.DISCLAIM, b"")
            return
        for at in range(0, len(keys), messages.KEYS_MAX):
            part = keys[at : at + messages.KEYS_MAX]
            self._send(Kind.DISCLAIM, messages.pack_keys(part), count=len(part))

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
        self._send(Kind.HINT, messages.pack_hint(keys, Hint.SESSION_ENDED), count=len(keys))

    def expect_reuse(self, keys: Sequence[bytes], *, within_s: float) -> None:
        """These chunks are expected to be used again in about `within_s` seconds."""
        body = messages.pack_hint(keys, Hint.EXPECTED, min(int(within_s * 1000), 0xFFFF_FFFF))
        self._send(Kind.HINT, body, count=len(keys))

    def warm(self, namespace: str, size_bytes: int, *, nodes: int = 0, wait_s: float = 0.0) -> None:
        """An engine starts: bring `size_bytes` at most of the chunks with this label that are fetched most, into free
        room of this node's pool, in the background.

        `nodes`: so many nodes start such an engine about now (0: unknown); the controller waits for them, `wait_s`
        (whole milliseconds) at most, so that one cast serves all.
        """
        self._send(Kind.WARM, messages.WARM.pack(size_bytes, nodes, int(wait_s * 1000)) + namespace.encode())

    def stats(self) -> dict[str, float]:
        """The agent's figures: pool bytes, fetches by outcome, traffic."""
        answer = _expect(self._call(Kind.STATS, b""), "give figures")
        figures: dict[str, float] = json.loads(answer.body)
        return figures

    # ------------------------------------------------------------------ requests and answers

    def _call(self, kind: Kind, body: bytes, *, count: int = 0) -> Frame:
        return self._wait_for(self._send(kind, body, count=count, answered=True))

    def _wait_for(self, request: int) -> Frame:
        return self._wait(request, time.monotonic() + self._answer_timeout_s)

    def _done(self, kind: Kind, body: bytes, count: int, doing: str) -> list[bool]:
        """Ask for something with each key; whether it was done."""
        return [bool(value) for value in _expect(self._call(kind, body, count=count), doing).body]

    def _send(self, kind: Kind, body: bytes, *, status: int = 0, count: int = 0, answered: bool = False) -> int:
        if count > 0xFFFF:
            raise ValueError(f"{count} keys in one request")
        with self._lock:
            if self._broken is not None:
                raise AgentUnavailableError(self._broken)
            self._request = self._request % 0xFFFF_FFFF + 1
            request = self._request
            if answered:
                self._answers[request] = None
        try:
            with self._send_lock:
                self._sock.sendall(messages.pack(kind, request, body, status=status, count=count))
        except OSError as error:
            raise self._break(f"the agent at {self._path} went away: {error.strerror}") from error
        return request

    def _wait(self, request: int, give_up_s: float) -> Frame:
        """A waiting thread that finds nobody reading reads for all: no dedicated thread, no hand-over when alone."""
        with self._lock:
            while True:
                answer = self._answers[request]
                if answer is not None:
                    del self._answers[request]
                    return answer
                if self._broken is not None:
                    del self._answers[request]
                    raise AgentUnavailableError(self._broken)
                if not self._reading:
                    self._reading = True
                    break
                self._lock.wait(max(0.0, give_up_s - time.monotonic()))
                if time.monotonic() >= give_up_s and self._answers[request] is None:
                    self._broken = f"the agent at {self._path} does not answer"
                    self._lock.notify_all()
        try:
            return self._read_until(request, give_up_s)
        finally:
            with self._lock:
                self._reading = False
                self._answers.pop(request, None)
                self._lock.notify_all()

    def _read_until(self, request: int, give_up_s: float) -> Frame:
        while True:
            try:
                if not self._readable.poll(max(0.0, give_up_s - time.monotonic()) * 1000):
                    raise self._break(f"the agent at {self._path} does not answer")
                received = self._sock.recv(65536)
                frames = self._frames.feed(received)
            except (OSError, MalformedFrameError) as error:
                raise self._break(f"the agent at {self._path} went away: {error}") from error
            if not received:
                raise self._break(f"the agent at {self._path} closed the connection")
            with self._lock:
                for frame in frames:
                    if frame.request in self._answers:
                        self._answers[frame.request] = frame
                answer = self._answers[request]
                if len(frames) > 1 or answer is None:
                    self._lock.notify_all()
            if answer is not None:
                return answer

    def _break(self, reason: str) -> AgentUnavailableError:
        with self._lock:
            if self._broken is None:
                self._broken = reason
            self._lock.notify_all()
            return AgentUnavailableError(self._broken)

    def _give_back(self, kind: Kind, lease: int) -> None:
        # An agent that went away holds no leases.
        with contextlib.suppress(AgentUnavailableError):
            self._send(kind, messages.LEASE.pack(lease))

    def _start_commit(self, lease: int, offset: int) -> int:
        return self._send(Kind.COMMIT, messages.COMMIT.pack(lease, offset), answered=True)

    def _committed(self, request: int) -> Digest:
        answer = _expect(self._wait_for(request), "commit")
        return Digest(answer.body)


class Reservation:
    """Room for a chunk, to be written to `view`. Leaving its `with` without `commit` gives it up."""

    def __init__(self, client: AgentClient, lease: int, offset: int, view: memoryview) -> None:
        self._client = client
        self._lease = lease
        self._offset = offset
        self._done = False
        self.view = view

    def commit(self) -> Digest:
        """The chunk is written: have it copied, digested and published. Returns its digest. The view is void."""
        return self.committed(self.start_commit())

    def start_commit(self) -> int:
        """As `commit`, without waiting; the request's number, with which `committed` must follow."""
        self._done = True
        self.view.release()
        return self._client._start_commit(self._lease, self._offset)

    def committed(self, request: int) -> Digest:
        """Wait for what `start_commit` began. Returns the chunk's digest."""
        try:
            return self._client._committed(request)
        finally:
            self._client._region.free(self._offset)

    def abort(self) -> None:
        """Give the room back. Idempotent."""
        if not self._done:
            self._done = True
            self.view.release()
            self._client._region.free(self._offset)
            self._client._give_back(Kind.ABORT, self._lease)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.abort()


class FetchUnderWay:
    """A fetch that the agent works on."""

    def __init__(self, client: AgentClient, request: int, give_up_s: float) -> None:
        self._client = client
        self._request = request
        self._give_up_s = give_up_s

    def wait(self) -> Fetched:
        """Wait for the outcome; once."""
        return self._client._fetched(self._client._wait(self._request, self._give_up_s))

    def cancel(self) -> None:
        """It is no longer wanted: `wait` soon returns, with nothing unless it was done already. From any thread."""
        with contextlib.suppress(AgentUnavailableError):
            self._client._send(Kind.CANCEL, messages.CANCEL.pack(self._request))


class Fetched:
    """The leading chunks that arrived. They are pinned in the pool until `release`."""

    def __init__(
        self, client: AgentClient, lease: int, views: list[memoryview], sources: list[ChunkSource], outcome: Status
    ) -> None:
        self._release: Callable[[], None] | None = lambda: client._give_back(Kind.RELEASE, lease)
        self.views = views
        self.sources = sources
        self.outcome = outcome
        """OK when all arrived, otherwise why the first one missing is missing."""

    def __repr__(self) -> str:
        return f"<Fetched: {self.count} chunks, {self.outcome}>"

    @property
    def count(self) -> int:
        """Leading chunks that arrived."""
        return len(self.sources)

    def release(self) -> None:
        """Unpin; the views are void. Idempotent."""
        if self._release is not None:
            for view in self.views:
                # An array made from the view by the caller keeps it; using that after release is the caller's risk.
                with contextlib.suppress(BufferError):
                    view.release()
            self.views = []
            release, self._release = self._release, None
            if self.sources:
                release()

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()


@contextlib.contextmanager
def _while_open() -> Iterator[None]:
    """Another thread may have closed the client between an answer and this."""
    try:
        yield
    except ValueError as error:
        raise AgentUnavailableError("the client was closed") from error


def _expect(answer: Frame, doing: str) -> Frame:
    if answer.status == Status.OK:
        return answer
    status = Status(answer.status)
    if status in (Status.POOL_FULL, Status.TOO_LARGE):
        raise PoolFullError(status, doing)
    raise AgentError(status, doing)
