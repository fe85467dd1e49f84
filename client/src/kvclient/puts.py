"""How an engine puts chunks: room in the pool, a part of the write region to fill, commit. Standard library only."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from kvchunk.ids import Digest
from kvclient import messages, request_encoding
from kvclient.connection import Connection
from kvclient.errors import AgentError, PoolFullError, expect, while_open
from kvclient.messages import Frame, Status
from kvclient.region import WriteRegion
from kvclient.request_encoding import Message

if TYPE_CHECKING:
    from typing_extensions import Buffer

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

    def room(self, namespace: str) -> Message:
        """Asks for room for it."""
        return request_encoding.reserve(self.key, self.parent, self.size_bytes, self.position, namespace)


def bytes_of(buffer: Buffer) -> memoryview:
    """Its bytes, nothing copied. Raises TypeError for what holds none, ValueError for an array with gaps."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("buffer is not one run of bytes in C order: copy it first (numpy.ascontiguousarray)")
    return view.cast("B") if view.nbytes else memoryview(b"")


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
        return self._connection.start(request_encoding.commit(self._lease, self._offset))

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
            self._connection.abort(self._lease)

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
        asked = self._connection.start(request_encoding.reserve(key, parent, size_bytes, position, namespace))
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
        asked = [self._connection.start(chunk.room(namespace)) for chunk in chunks]
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

    def _reserved(self, answer: Frame, size_bytes: int) -> Reservation | None:
        lease = leased(answer)
        if lease is None:
            return None
        try:
            offset = self._region.allocate(size_bytes)
        except PoolFullError:
            self._connection.abort(lease)
            raise
        with while_open():
            return Reservation(self._connection, self._region, lease, offset, self._region.view(offset, size_bytes))


def leased(answer: Frame) -> int | None:
    """The answer to RESERVE; None: the pool has the chunk, or somebody is writing it. Raises AgentError."""
    if answer.status in (Status.EXISTS, Status.FILLING):
        return None
    lease: int = messages.LEASE.unpack(expect(answer, "reserve room").body)[0]
    return lease
