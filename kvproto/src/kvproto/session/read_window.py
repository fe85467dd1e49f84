"""How many bytes of one-sided reads may be in flight from one peer. Pure.

The window of GETs (`Window`), in blocks instead of segments: it steers to the size at which a piece is complete
15 ms after it was posted. That keeps queues of slow links short. On fast ones a switch's queue is full and
loses packets long before any delay can be distinguished from a process that runs late. RDMA resends everything from
the first lost packet on, so bytes in flight beyond what the queue holds are sent several times. So losses put a ceiling
(`LossCeiling`) on the window: those that the NIC's counters report, and pieces that took as long as its timeout.
"""

from typing import Final

from kvproto.limits import MS
from kvproto.session.loss_ceiling import LossCeiling
from kvproto.session.timing import WINDOW_DELAY, WINDOW_MIN
from kvproto.session.window import Window

BLOCK_BYTES: Final = 16 * 1024
"""Pieces have at least four blocks: where the processor is the bottleneck, smaller ones would only make it slower."""
READ_WINDOW_MIN_BYTES: Final = WINDOW_MIN * BLOCK_BYTES
"""52 ms at 20 Mbit/s, half of what the shallowest shaper's queue holds."""
READ_PIECE_BYTES_MAX: Final = 256 * 1024
_LATE_NS: Final = 200 * MS
_FORGET_NS: Final = 1000 * MS
"""After this long without reads the path may be another one: start over."""
_DELAY_NS: Final = WINDOW_DELAY.ceiling_ns
_QUICK_NS: Final = _DELAY_NS // 4
"""A window at its limit has nothing to learn from pieces that come within this."""


class ReadWindow:
    """Tell it of every piece that is posted and completed; it says how large the next one may be."""

    __slots__ = (
        "_ceiling",
        "_limit_blocks",
        "_old_until_ns",
        "_quiet_ns",
        "_start_blocks",
        "_window",
        "bytes",
        "in_flight_bytes",
        "piece_bytes",
    )

    def __init__(self, limit_bytes: int, start_bytes: int = READ_WINDOW_MIN_BYTES) -> None:
        """`limit_bytes`: never more, at least READ_WINDOW_MIN_BYTES. The start is doubled every round trip at first."""
        self._limit_blocks = limit_bytes // BLOCK_BYTES
        self._start_blocks = start_bytes // BLOCK_BYTES
        self._ceiling = LossCeiling(self._limit_blocks, WINDOW_MIN)
        self.in_flight_bytes = 0
        self._quiet_ns = -1
        self._old_until_ns = -1
        """Losses among pieces posted before this are old news."""
        self._begin(0)

    def post(self, left_bytes: int, now_ns: int) -> int:
        """Bytes of the next piece of a read that has `left_bytes` left; it is in flight from now on. 0: none now."""
        in_flight_bytes = self.in_flight_bytes
        if not in_flight_bytes:
            self.begin(now_ns)
        size_bytes = self.piece_bytes if left_bytes > self.piece_bytes else left_bytes
        in_flight_bytes += size_bytes
        if in_flight_bytes > self.bytes:
            return 0
        self.in_flight_bytes = in_flight_bytes
        return size_bytes

    def begin(self, now_ns: int) -> None:
        """Reads begin, with nothing in flight: after a rest the window starts over."""
        if now_ns - self._quiet_ns >= _FORGET_NS:
            self._begin(now_ns)

    @property
    def quick_ns(self) -> int:
        """Pieces that come within this teach nothing; 0: all of them do."""
        at_limit = not self._ceiling.lowered and self._window.segments == self._limit_blocks
        return _QUICK_NS if at_limit else 0

    def came(self, in_flight_bytes: int, size_bytes: int, posted_ns: int, now_ns: int) -> None:
        """A piece is here that others have posted and counted: there were `in_flight_bytes` until then."""
        self.in_flight_bytes = in_flight_bytes
        self.completed(size_bytes, posted_ns, now_ns)

    def heard(self, in_flight_bytes: int, done_ns: int) -> None:
        """Others post and count: so much is in flight, and the last piece, worth telling or not, came then."""
        self.in_flight_bytes = in_flight_bytes
        self._quiet_ns = max(self._quiet_ns, done_ns)

    def completed(self, size_bytes: int, posted_ns: int, now_ns: int) -> None:
        """A piece is here."""
        full = 2 * self.in_flight_bytes >= self.bytes
        self.in_flight_bytes -= size_bytes
        self._quiet_ns = now_ns
        delay_ns = now_ns - posted_ns
        if delay_ns >= _LATE_NS and posted_ns >= self._old_until_ns:
            self._shrink(delay_ns, now_ns)
        elif full or delay_ns > _DELAY_NS:
            # A window that nobody fills must not grow: there would be a burst once somebody fills it.
            if self._ceiling.lowered:
                self._window.set_limit(self._ceiling.blocks(now_ns))
            elif delay_ns < self.quick_ns:
                return
            self._window.on_batch(-(-size_bytes // BLOCK_BYTES), 0, delay_ns, now_ns)
            self._resize()

    def lost(self, since_ns: int, now_ns: int) -> None:
        """The NIC has asked again for something between the two times: for ours, as far as anybody can tell."""
        if since_ns > self._old_until_ns and (self.in_flight_bytes or self._quiet_ns >= since_ns):
            self._shrink(0, now_ns)

    def dropped(self) -> None:
        """Nothing is in flight any more: the connection is gone, or another one."""
        self.in_flight_bytes = 0

    def _begin(self, now_ns: int) -> None:
        self._window = Window(self._ceiling.blocks(now_ns), self._start_blocks)
        self._resize()

    def _shrink(self, delay_ns: int, now_ns: int) -> None:
        blocks = self._window.segments
        self._ceiling.lost(blocks, now_ns)
        self._window.on_batch(0, blocks, delay_ns, now_ns)
        self._window.set_limit(self._ceiling.blocks(now_ns))
        self._old_until_ns = now_ns
        self._resize()

    def _resize(self) -> None:
        self.bytes: int = self._window.segments * BLOCK_BYTES
        """What may be in flight."""
        self.piece_bytes: int = min(self._window.batch * BLOCK_BYTES, READ_PIECE_BYTES_MAX)
        """Of one READ, at most."""
