"""What fetches bring: leading chunks, at once or one by one, or whatever is there. Standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from kvchunk.sources import ChunkSource
from kvclient.attach import AgentUnavailableError
from kvclient.connection import Connection
from kvclient.errors import expect
from kvclient.messages import Frame, Kind, Status
from kvclient.requests import cancel

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


class Fetched:
    """The leading chunks that arrived. They are pinned in the pool until `release`."""

    __slots__ = ("_release", "outcome", "sources", "views")

    def __init__(
        self, release: Callable[[], None], views: list[memoryview], sources: list[ChunkSource], outcome: Status
    ) -> None:
        """`release`: gives the lease back."""
        self._release: Callable[[], None] | None = release
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
        if self._release is None:
            return
        for view in self.views:
            try:
                view.release()
            except BufferError:
                # An array made from the view by the caller keeps it; using that after release is the caller's risk.
                continue
        self.views = []
        release, self._release = self._release, None
        if self.sources:
            release()

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()


V = TypeVar("V", memoryview, list[memoryview])


class Found(Generic[V]):
    """What a fetch in any order brought: of each key its chunk, or the ranges of it that were asked for, or nothing.
    They are pinned in the pool until `release`."""

    def __init__(
        self,
        release: Callable[[], None],
        views: Sequence[V | None],
        sources: Sequence[ChunkSource | None],
        outcome: Status,
    ) -> None:
        """`release`: gives the lease back."""
        self._release: Callable[[], None] | None = release
        self.views: list[V | None] = list(views)
        """For each key its chunk, or a view of each range of it, read-only; None: it did not come."""
        self.sources = list(sources)
        self.outcome = outcome
        """OK when all arrived, otherwise why the first one missing is missing."""

    @property
    def present(self) -> list[bool]:
        """For each key whether it arrived."""
        return [source is not None for source in self.sources]

    @property
    def count(self) -> int:
        """Keys that arrived."""
        return sum(self.present)

    def release(self) -> None:
        """Unpin; the views are void. Idempotent."""
        if self._release is None:
            return
        for found in self.views:
            for view in found if isinstance(found, list) else [found]:
                # An array made from the view by the caller keeps it; using that after release is the caller's risk.
                if view is not None:
                    with contextlib.suppress(BufferError):
                        view.release()
        self.views = [None] * len(self.views)
        release, self._release = self._release, None
        if self.count:
            release()

    def __enter__(self) -> Found[V]:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Streamed:
    """Leading chunks of a fetch that have come so far, each whole and verified."""

    def __init__(self) -> None:
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

    def unpin(self) -> None:
        """The views are void. Idempotent."""
        self.views = []
        while self._parts:
            self._parts.pop(0).release()


class FetchStream(Streamed):
    """Leading chunks of a fetch, each as soon as it is whole and verified. Views stay until the end of its `with`.

    Iterate once, in one thread. Leaving the `with` early gives the rest up.
    """

    def __init__(
        self, connection: Connection, read: Callable[[Frame], Fetched], request: int, give_up_s: float
    ) -> None:
        """`request`: its number; 0: nothing is to come."""
        super().__init__()
        self._connection = connection
        self._read = read
        self._request = request
        self._give_up_s = give_up_s

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
        answer = self._connection.wait(request, self._give_up_s)
        is_last = answer.kind != Kind.FETCH_PART
        if not is_last:
            self._request = request
        self.add(self._read(answer), is_last=is_last)

    def release(self) -> None:
        """Give up what is still to come, and unpin; the views are void. Idempotent."""
        try:
            if self._request:
                self._connection.notify(cancel(self._request))
            while self._request:
                self._take()
        except AgentUnavailableError:
            self.outcome = Status.UNAVAILABLE
        finally:
            self.unpin()

    def __enter__(self) -> FetchStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()
