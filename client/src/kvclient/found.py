"""What a fetch in any order brought: each chunk by itself, present or not. Standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType

from kvchunk.sources import ChunkSource
from kvclient.messages import Status


class Found:
    """The chunks of a fetch in any order that arrived. They are pinned in the pool until `release`."""

    def __init__(
        self,
        release: Callable[[], None],
        views: Sequence[memoryview | None],
        sources: Sequence[ChunkSource | None],
        outcome: Status,
    ) -> None:
        """`release`: gives the lease back."""
        self._release: Callable[[], None] | None = release
        self.views: list[memoryview | None] = list(views)
        """For each key asked for its chunk, read-only; None: it did not come."""
        self.sources = list(sources)
        self.outcome = outcome
        """OK when all arrived, otherwise why the first one missing is missing."""

    @property
    def present(self) -> list[bool]:
        """For each key asked for whether its chunk arrived."""
        return [source is not None for source in self.sources]

    @property
    def count(self) -> int:
        """Chunks that arrived."""
        return sum(self.present)

    def release(self) -> None:
        """Unpin; the views are void. Idempotent."""
        if self._release is None:
            return
        for view in self.views:
            # An array made from the view by the caller keeps it; using that after release is the caller's risk.
            if view is not None:
                with contextlib.suppress(BufferError):
                    view.release()
        self.views = [None] * len(self.views)
        release, self._release = self._release, None
        if self.count:
            release()

    def __enter__(self) -> Found:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()
