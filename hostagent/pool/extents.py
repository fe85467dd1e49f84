"""Free space of the pool: first fit over coalesced gaps. Pure; knows nothing of chunks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class ExtentAllocator:
    """Hands out aligned extents of [0, size_bytes).

    First fit keeps the low end dense; with chunks of one size, the usual case, every gap fits the next chunk.
    """

    __slots__ = ("_align_bytes", "_gap_bytes", "_offsets", "free_bytes", "size_bytes")

    def __init__(self, size_bytes: int, align_bytes: int) -> None:
        if size_bytes <= 0 or size_bytes % align_bytes:
            raise ValueError(f"pool of {size_bytes} bytes is not a positive multiple of {align_bytes}")
        self.size_bytes = size_bytes
        self.free_bytes = size_bytes
        self._align_bytes = align_bytes
        self._offsets = [0]
        self._gap_bytes = [size_bytes]

    def extent_bytes(self, size_bytes: int) -> int:
        """What an allocation of `size_bytes` takes: rounded up to the alignment."""
        return -(-size_bytes // self._align_bytes) * self._align_bytes

    def allocate(self, size_bytes: int) -> int | None:
        """Offset of a free extent, now taken; None, and nothing changed, when no gap is large enough."""
        if size_bytes <= 0:
            raise ValueError(f"cannot allocate {size_bytes} bytes")
        needed = -(-size_bytes // self._align_bytes) * self._align_bytes
        for index, gap in enumerate(self._gap_bytes):
            if gap >= needed:
                offset = self._offsets[index]
                if gap == needed:
                    del self._offsets[index], self._gap_bytes[index]
                else:
                    self._offsets[index] = offset + needed
                    self._gap_bytes[index] = gap - needed
                self.free_bytes -= needed
                return offset
        return None

    def take(self, offset: int, size_bytes: int) -> bool:
        """Take exactly this extent; False, and nothing changed, when it is not wholly free."""
        needed = self.extent_bytes(size_bytes)
        index = bisect_right(self._offsets, offset) - 1
        if offset % self._align_bytes or needed <= 0 or index < 0:
            return False
        start, gap = self._offsets[index], self._gap_bytes[index]
        if offset + needed > start + gap:
            return False
        before, after = offset - start, start + gap - offset - needed
        rest = [(start, before), (offset + needed, after)]
        self._offsets[index : index + 1] = [at for at, length in rest if length]
        self._gap_bytes[index : index + 1] = [length for _, length in rest if length]
        self.free_bytes -= needed
        return True

    def free(self, offset: int, size_bytes: int) -> None:
        """Give an extent back; raises ValueError when it is not exactly taken space (a bug of the caller)."""
        length = self.extent_bytes(size_bytes)
        index = bisect_left(self._offsets, offset)
        before_end = self._offsets[index - 1] + self._gap_bytes[index - 1] if index else 0
        after_start = self._offsets[index] if index < len(self._offsets) else self.size_bytes
        if offset % self._align_bytes or length <= 0 or offset < before_end or offset + length > after_start:
            raise ValueError(f"extent {offset}+{length} is not taken")
        joins_before = index > 0 and before_end == offset
        joins_after = index < len(self._offsets) and after_start == offset + length
        if joins_before and joins_after:
            self._gap_bytes[index - 1] += length + self._gap_bytes[index]
            del self._offsets[index], self._gap_bytes[index]
        elif joins_before:
            self._gap_bytes[index - 1] += length
        elif joins_after:
            self._offsets[index] = offset
            self._gap_bytes[index] += length
        else:
            self._offsets.insert(index, offset)
            self._gap_bytes.insert(index, length)
        self.free_bytes += length

    def copy(self) -> ExtentAllocator:
        """An independent copy, to try out a plan on."""
        made = ExtentAllocator(self.size_bytes, self._align_bytes)
        made._offsets = self._offsets.copy()
        made._gap_bytes = self._gap_bytes.copy()
        made.free_bytes = self.free_bytes
        return made

    def gaps(self) -> list[tuple[int, int]]:
        """(offset, bytes) of every gap, ascending."""
        return list(zip(self._offsets, self._gap_bytes, strict=True))
