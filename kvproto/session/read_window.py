"""How many bytes of one-sided reads may be in flight from one peer. Pure.

The window of GETs (`Window`), in blocks instead of segments: it steers to the size at which a piece is complete
WINDOW_DELAY_NS after it was posted. RDMA sends again what is lost, from the first lost packet on, and says nothing of
it: more in flight than queues on the way hold is sent several times, so what is in flight has to follow the delay, and
a piece that took as long as a NIC's timeout counts as lost.
"""

from typing import Final

from kvproto.limits import MS
from kvproto.session.timing import WINDOW_DELAY_NS, WINDOW_MIN
from kvproto.session.window import Window

BLOCK_BYTES: Final = 16 * 1024
"""Pieces have four at least: where the processor is what is slow, smaller ones would only make it slower."""
READ_WINDOW_MIN_BYTES: Final = WINDOW_MIN * BLOCK_BYTES
"""52 ms at 20 Mbit/s, half of what the shallowest shaper's queue holds."""
READ_PIECE_BYTES_MAX: Final = 256 * 1024
_LATE_NS: Final = 200 * MS
_FORGET_NS: Final = 1000 * MS
"""After so long without reads the path may be another: begin anew."""


class ReadWindow:
    """Tell it of every piece that is posted and completed; it says how large the next one may be."""

    __slots__ = ("_in_flight_bytes", "_limit_blocks", "_quiet_ns", "_start_blocks", "_window")

    def __init__(self, limit_bytes: int, start_bytes: int = READ_WINDOW_MIN_BYTES) -> None:
        """`limit_bytes`: never more, at least READ_WINDOW_MIN_BYTES. The start is doubled every round trip at first."""
        self._limit_blocks = limit_bytes // BLOCK_BYTES
        self._start_blocks = start_bytes // BLOCK_BYTES
        self._window = Window(self._limit_blocks, self._start_blocks)
        self._in_flight_bytes = 0
        self._quiet_ns = 0

    @property
    def bytes(self) -> int:
        """What may be in flight."""
        return self._window.segments * BLOCK_BYTES

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    def post(self, left_bytes: int, now_ns: int) -> int:
        """Bytes of the next piece of a read that has so many left, which is in flight from now on; 0: none now."""
        if not self._in_flight_bytes and now_ns - self._quiet_ns >= _FORGET_NS:
            self._window = Window(self._limit_blocks, self._start_blocks)
        size_bytes = min(left_bytes, self._window.batch * BLOCK_BYTES, READ_PIECE_BYTES_MAX)
        if self._in_flight_bytes + size_bytes > self.bytes:
            return 0
        self._in_flight_bytes += size_bytes
        return size_bytes

    def completed(self, size_bytes: int, posted_ns: int, now_ns: int) -> None:
        """A piece is here."""
        full = 2 * self._in_flight_bytes >= self.bytes
        self._in_flight_bytes -= size_bytes
        self._quiet_ns = now_ns
        blocks, delay_ns = -(-size_bytes // BLOCK_BYTES), now_ns - posted_ns
        if delay_ns >= _LATE_NS:
            self._window.on_batch(0, max(2, blocks), delay_ns, now_ns)
        elif full or delay_ns > WINDOW_DELAY_NS:
            # A window that nobody fills must not grow: it would be a burst when somebody does.
            self._window.on_batch(blocks, 0, delay_ns, now_ns)

    def dropped(self) -> None:
        """Nothing is in flight any more: the connection is gone, or another one."""
        self._in_flight_bytes = 0
