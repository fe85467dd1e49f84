"""What a simulated node has under way to its readers, by whole chunks: what `ServedReads` says of a real one."""

from __future__ import annotations

from typing import Final

from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.limits import SEGMENT_BYTES_DEFAULT
from kvproto.session.parameters import ReaderParameters

CAST_QUEUED_BYTES: Final = ReaderParameters(member=None).receive_window_segments * SEGMENT_BYTES_DEFAULT
"""Leaders ask for no more of a cast than a window at a time."""


class Served:
    """Of one holder."""

    def __init__(self, *, casts: bool) -> None:
        """`casts`: what several readers want is cast to them."""
        self._casts = casts
        self._chunks: dict[ChunkKey, dict[int, int]] = {}
        """Bytes of each chunk under way, by reader."""

    @property
    def reads_queued_bytes(self) -> int:
        """Bytes that have not come to readers."""
        return self._load(-1).queued_bytes

    @property
    def readers_served(self) -> int:
        """Readers that wait."""
        return self._load(-1).readers

    def began(self, reader: int, key: ChunkKey, size_bytes: int) -> None:
        """A reader asks for a chunk."""
        self._chunks.setdefault(key, {})[reader] = size_bytes

    def ended(self, reader: int, key: ChunkKey) -> None:
        """It has it, or wants it no more."""
        readers = self._chunks.get(key, {})
        readers.pop(reader, None)
        if not readers:
            self._chunks.pop(key, None)

    def load_but(self, reader: int) -> HolderLoad:
        """What is under way to others; a cast that this reader gets, too, is not."""
        return self._load(reader)

    def _load(self, but: int) -> HolderLoad:
        queued_bytes, cast = 0, False
        served: set[int] = set()
        for readers in self._chunks.values():
            if self._casts and len(readers) > 1:
                cast = cast or but not in readers
                continue
            queued_bytes += sum(size for reader, size in readers.items() if reader != but)
            served.update(reader for reader in readers if reader != but)
        return HolderLoad(queued_bytes + cast * CAST_QUEUED_BYTES, len(served) + cast)
