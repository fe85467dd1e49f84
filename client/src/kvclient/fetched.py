"""What fetches bring: leading chunks, at once or one by one, or whatever is there. Standard library only."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from kvchunk.sources import ChunkSource
from kvclient.attach import AgentUnavailableError, LeaseLostError
from kvclient.connection import Connection
from kvclient.errors import expect
from kvclient.messages import Frame, Kind, Status
from kvclient.request_encoding import cancel

MISSES = frozenset(
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
"""Outcomes of a fetch that are no error."""


def check_fetched(answer: Frame) -> Frame:
    """The answer to a fetch. Raises AgentError when it is a refusal."""
    return answer if answer.status in MISSES else expect(answer, "fetch")


class Lease(Protocol):
    """Keeps chunks as they are until it is released or the agent ends: the next agent may give the memory to others."""

    def check(self) -> None:
        """What was copied up to now is the chunks'. Raises LeaseLostError when it may not be."""

    def release(self) -> None:
        """The chunks may go; once. Raises LeaseLostError as `check`."""


class _Pinned(ABC):
    """What a fetch brought. It is pinned in the pool until `release`."""

    __slots__ = ("_lease", "outcome")

    def __init__(self, lease: Lease, outcome: Status) -> None:
        self._lease: Lease | None = lease
        self.outcome = outcome
        """OK when all arrived, otherwise why the first one missing is missing."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Chunks that arrived."""

    @abstractmethod
    def _take_views(self) -> Iterable[memoryview]:
        """All views, which are void from here on."""

    def check(self) -> None:
        """Trust what you copied from the views only after this, or after `release`, which checks, too: an agent that
        ended meanwhile may have given the memory to other chunks. Raises LeaseLostError then."""
        if self._lease is not None and self.count:
            self._lease.check()

    def release(self) -> None:
        """Unpin; the views are void. Idempotent. Raises LeaseLostError as `check`."""
        if self._lease is None:
            return
        for view in self._take_views():
            try:
                view.release()
            except BufferError:
                # An array made from the view by the caller keeps it; using that after release is the caller's risk.
                continue
        lease, self._lease = self._lease, None
        if self.count:
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.release()
        else:  # which says more than that the lease was lost, too
            with contextlib.suppress(LeaseLostError):
                self.release()


class Fetched(_Pinned):
    """The leading chunks that arrived. They are pinned in the pool until `release`."""

    __slots__ = ("sources", "views")

    def __init__(self, lease: Lease, views: list[memoryview], sources: list[ChunkSource], outcome: Status) -> None:
        super().__init__(lease, outcome)
        self.views = views
        self.sources = sources

    def __repr__(self) -> str:
        return f"<Fetched: {self.count} chunks, {self.outcome}>"

    @property
    def count(self) -> int:
        """Leading chunks that arrived."""
        return len(self.sources)

    def _take_views(self) -> list[memoryview]:
        views, self.views = self.views, []
        return views


V = TypeVar("V", memoryview, list[memoryview])


class Found(_Pinned, Generic[V]):
    """What a fetch in any order brought: of each key its chunk, or the ranges of it that were asked for, or nothing.
    They are pinned in the pool until `release`."""

    def __init__(
        self, lease: Lease, views: Sequence[V | None], sources: Sequence[ChunkSource | None], outcome: Status
    ) -> None:
        super().__init__(lease, outcome)
        self.views: list[V | None] = list(views)
        """For each key its chunk, or a view of each range of it, read-only; None: it did not come."""
        self.sources = list(sources)

    @property
    def present(self) -> list[bool]:
        """For each key whether it arrived."""
        return [source is not None for source in self.sources]

    @property
    def count(self) -> int:
        """Keys that arrived."""
        return sum(self.present)

    def _take_views(self) -> Iterator[memoryview]:
        views, self.views = self.views, [None] * len(self.views)
        for found in views:
            if found is not None:
                yield from found if isinstance(found, list) else [found]


class Streamed:
    """Leading chunks of a fetch that have come so far, each whole and verified."""

    def __init__(self, read: Callable[[Frame], Fetched], request: int, give_up_s: float) -> None:
        """`request`: its number; 0: nothing is to come."""
        self._read = read
        self._request = request
        self._give_up_s = give_up_s
        self._parts: list[Fetched] = []
        self.views: list[memoryview] = []
        """Of the chunks that have come so far."""
        self.sources: list[ChunkSource] = []
        self.outcome: Status | None = None
        """None: more may come. OK when all arrived, otherwise why the first one missing is missing."""

    @property
    def count(self) -> int:
        """Leading chunks that have come so far."""
        return len(self.sources)

    def add(self, part: Fetched, *, is_last: bool) -> None:
        """More have come."""
        self._parts.append(part)
        self.views += part.views
        self.sources += part.sources
        if is_last:
            self.outcome = part.outcome

    def _add_answer(self, request: int, answer: Frame) -> None:
        """Of this request; raises AgentError."""
        is_last = answer.kind != Kind.FETCH_PART
        self._request = 0 if is_last else request
        self.add(self._read(answer), is_last=is_last)

    def check(self) -> None:
        """As `Fetched.check`, for the views so far. Raises LeaseLostError."""
        for part in self._parts:
            part.check()

    def _unpin(self) -> None:
        self.views = []
        with contextlib.ExitStack() as parts:
            for part in self._parts:
                parts.callback(part.release)
            self._parts = []


class FetchStream(Streamed):
    """Leading chunks of a fetch, each as soon as it is whole and verified. Views stay until the end of its `with`.

    Iterate once, in one thread. Leaving the `with` early gives the rest up.
    """

    def __init__(
        self, connection: Connection, read: Callable[[Frame], Fetched], request: int = 0, give_up_s: float = 0.0
    ) -> None:
        super().__init__(read, request, give_up_s)
        self._connection = connection

    def __iter__(self) -> Iterator[memoryview]:
        """Waits for one chunk after the other. Raises AgentError, AgentUnavailableError."""
        given = 0
        while True:
            while given < len(self.views):
                given += 1
                yield self.views[given - 1]
            if not self._request:
                return
            self._take()

    def _take(self) -> None:
        """Wait for the agent's next word."""
        request, self._request = self._request, 0
        self._add_answer(request, self._connection.wait(request, self._give_up_s))

    def release(self) -> None:
        """Give up what is still to come, and unpin; the views are void. Idempotent. Raises LeaseLostError as
        `Fetched.check`."""
        try:
            if self._request:
                self._connection.notify(cancel(self._request))
            while self._request:
                self._take()
        except AgentUnavailableError:
            self.outcome = Status.UNAVAILABLE
        finally:
            self._unpin()

    def __enter__(self) -> FetchStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.release()
        else:  # which says more than that the lease was lost, too
            with contextlib.suppress(LeaseLostError):
                self.release()
