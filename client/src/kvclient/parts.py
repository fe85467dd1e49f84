"""What a fetch of parts brought: of each chunk the ranges that were asked for, or nothing. Standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType

from kvchunk.parts import ByteRange, check_ranges
from kvchunk.sources import ChunkSource
from kvclient import messages
from kvclient.messages import Frame, Status


class Parts:
    """Ranges of the chunks that arrived. They stay where they are until `release`."""

    def __init__(
        self,
        release: Callable[[], None],
        views: Sequence[list[memoryview] | None],
        sources: Sequence[ChunkSource | None],
        outcome: Status,
    ) -> None:
        """`release`: gives the lease back."""
        self._release: Callable[[], None] | None = release
        self.views = list(views)
        """For each key asked for a view of each range, read-only; None: they did not come."""
        self.sources = list(sources)
        self.outcome = outcome
        """OK when all arrived, otherwise why the first one missing is missing."""

    @property
    def count(self) -> int:
        """Chunks whose ranges arrived."""
        return sum(source is not None for source in self.sources)

    def release(self) -> None:
        """Give them back; the views are void. Idempotent."""
        if self._release is None:
            return
        for view in (view for views in self.views if views is not None for view in views):
            # An array made from the view by the caller keeps it; using that after release is the caller's risk.
            with contextlib.suppress(BufferError):
                view.release()
        self.views = [None] * len(self.views)
        release, self._release = self._release, None
        if self.count:
            release()

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def check_parts(keys: Sequence[bytes], ranges: Sequence[ByteRange]) -> None:
    """Raises ValueError for what an agent would not take."""
    check_ranges(ranges)
    if not keys or len(set(keys)) != len(keys):
        raise ValueError("keys of parts: at least one, and each once")
    if len(ranges) > messages.RANGES_MAX or len(keys) * len(ranges) > messages.PARTS_MAX:
        raise ValueError(
            f"{len(ranges)} ranges of {len(keys)} chunks: at most {messages.RANGES_MAX} of a chunk and"
            f" {messages.PARTS_MAX} of all; ask for fewer chunks at once, or fetch whole ones"
        )


def out_of_chunk(end: int, chunk: int, size_bytes: int) -> ValueError:
    """What is raised for a range that ends behind its chunk."""
    return ValueError(f"a range ends at byte {end}, chunk {chunk} of those asked for has {size_bytes}")


def check_answer(answer: Frame, ranges: Sequence[ByteRange]) -> None:
    """Raises ValueError where a range does not lie in a chunk."""
    if answer.status == Status.OUT_OF_CHUNK:
        raise out_of_chunk(ranges[-1].end, *messages.OUT_OF_CHUNK.unpack(answer.body))
