"""How an engine puts chunks: room in the pool, a part of the write region to fill, commit. Standard library only."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from kvchunk.ids import Digest
from kvclient import messages
from kvclient.connection import Connection
from kvclient.errors import AgentError, PoolFullError, expect, while_open
from kvclient.messages import Frame, Kind, Status
from kvclient.region import WriteRegion
from kvclient.terms import check_size

PUTS_AT_ONCE = 32
"""Chunks that `AgentClient.put_each` has room for at a time."""


@dataclass(frozen=True, slots=True)
class ChunkToPut:
    """A chunk for `AgentClient.put_each`."""

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


class Reservation:
    """Room for a chunk, to be written to `view`. Leaving its `with` without `commit` gives it up."""

    def __init__(self, connection: Connection, region: WriteRegion, lease: int, offset: int, view: memoryview) -> None:
        self._connection = connection
        self._region = region
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
        return self._connection.send(Kind.COMMIT, messages.COMMIT.pack(self._lease, self._offset), answered=True)

    def committed(self, request: int) -> Digest:
        """Wait for what `start_commit` began. Returns the chunk's digest."""
        try:
            return Digest(expect(self._connection.wait_for(request), "commit").body)
        finally:
            self._region.free(self._offset)

    def abort(self) -> None:
        """Give the room back. Idempotent."""
        if not self._done:
            self._done = True
            self.view.release()
            self._region.free(self._offset)
            self._connection.give_back(Kind.ABORT, self._lease)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.abort()


class Puts:
    """Of one client."""

    def __init__(self, connection: Connection, region: WriteRegion) -> None:
        self._connection = connection
        self._region = region

    def reserve(
        self, key: bytes, parent: bytes | None, size_bytes: int, position: int | None, namespace: str
    ) -> Reservation | None:
        """See `AgentClient.reserve`."""
        asked = self._ask_room(key, parent, size_bytes, position, namespace)
        return self._reserved(self._connection.wait_for(asked), size_bytes)

    def put_each(self, chunks: Sequence[ChunkToPut], namespace: str) -> list[bool]:
        """See `AgentClient.put_each`."""
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
                for place, answer in enumerate([self._connection.wait_for(request) for request in asked]):
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
        check_size(size_bytes)
        if position is not None and not 0 <= position < messages.NO_POSITION:
            raise ValueError(f"position is {position}, not from 0 to {messages.NO_POSITION - 1}")
        label = namespace.encode()
        if len(label) > messages.NAMESPACE_BYTES_MAX:
            raise ValueError(f"namespace has {len(label)} bytes, at most {messages.NAMESPACE_BYTES_MAX} are allowed")
        messages.pack_keys([key] if parent is None else [key, parent])
        body = messages.RESERVE.pack(
            key,
            parent if parent is not None else messages.NO_KEY,
            size_bytes,
            messages.NO_POSITION if position is None else position,
        )
        return self._connection.send(Kind.RESERVE, body + label, answered=True)

    def _reserved(self, answer: Frame, size_bytes: int) -> Reservation | None:
        if answer.status in (Status.EXISTS, Status.FILLING):
            return None
        expect(answer, "reserve room")
        (lease,) = messages.LEASE.unpack(answer.body)
        offset = self._region.allocate(size_bytes)
        if offset is None:
            self._connection.give_back(Kind.ABORT, lease)
            too_large = size_bytes > self._region.size_bytes
            what = f"take {size_bytes} bytes at once through a write region of {self._region.size_bytes}"
            raise PoolFullError(Status.TOO_LARGE if too_large else Status.POOL_FULL, f"{what} (api.write_region)")
        with while_open():
            return Reservation(self._connection, self._region, lease, offset, self._region.view(offset, size_bytes))
