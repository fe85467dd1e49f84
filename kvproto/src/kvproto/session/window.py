"""How many segments a reader may have under way: more below a delay, fewer above it and on loss."""

from collections import deque

from kvproto.session.timing import (
    BATCH_MAX,
    BATCH_MIN,
    BATCHES_PER_WINDOW,
    PULL_TIMEOUT_MAX_NS,
    PULL_TIMEOUT_MIN,
    WINDOW_BACKOFF,
    WINDOW_BEST_OF,
    WINDOW_DELAY,
    WINDOW_LOSS,
    WINDOW_MIN,
    WINDOW_START,
)


class Window:
    """Congestion window of the GETs of one reader, in segments (of RDMA READs: in blocks, see `ReadWindow`).

    It steers to the size at which a GET is complete `target_ns` (WINDOW_DELAY) after it was sent, in the best of the
    last few cases: then the path is busy all the time, and its queues are short. (The best, because a process that runs
    late adds to the measured delay although no queue is long.) It doubles per round until it first comes near.
    """

    __slots__ = (
        "_backoff_ns",
        "_best",
        "_limit",
        "_size",
        "_starting",
        "delay_ns",
        "segments",
        "target_ns",
        "timeout_min_ns",
    )

    def __init__(self, limit_segments: int, start_segments: int = WINDOW_START) -> None:
        self._limit = max(WINDOW_MIN, limit_segments)
        self.target_ns = WINDOW_DELAY.ceiling_ns
        """The delay to steer to."""
        self.timeout_min_ns = PULL_TIMEOUT_MIN.ceiling_ns
        self._resize(float(min(start_segments, self._limit)))
        self._starting = True
        self.delay_ns = 0
        """How long GETs took of late, smoothed; 0: none was complete yet."""
        self._backoff_ns = -1
        self._best: deque[int] = deque(maxlen=WINDOW_BEST_OF)

    def _resize(self, size: float) -> None:
        self._size = size
        self.segments = int(size)
        """Segments that may be under way."""

    @property
    def batch(self) -> int:
        """Segments that one GET should ask for."""
        return min(BATCH_MAX, max(BATCH_MIN, self.segments // BATCHES_PER_WINDOW))

    @property
    def timeout_ns(self) -> int:
        """After this long without any progress, everything under way is lost."""
        return min(PULL_TIMEOUT_MAX_NS, max(self.timeout_min_ns, 3 * self.delay_ns))

    def set_limit(self, limit_segments: int) -> None:
        """The receive buffer changed."""
        self._limit = max(WINDOW_MIN, limit_segments)
        self._resize(min(self._size, float(self._limit)))

    def on_batch(self, arrived: int, lost: int, delay_ns: int, now_ns: int) -> None:
        """A GET is over: `arrived` of its segments came, the last one after `delay_ns`; the others were lost."""
        if arrived:
            self._best.append(delay_ns)
            self.delay_ns = delay_ns if not self.delay_ns else (7 * self.delay_ns + delay_ns) // 8
        if lost > 1 and lost > WINDOW_LOSS * (arrived + lost):
            self._decrease(now_ns)
            return
        room = (self.target_ns - min(self._best, default=0)) / self.target_ns
        if room < 0.25:
            self._starting = False
        gain = 1.0 if self._starting else max(-0.5, min(0.5, room))
        self._resize(min(float(self._limit), max(float(WINDOW_MIN), self._size + gain * arrived)))

    def on_timeout(self, now_ns: int) -> None:
        """Nothing came at all for `timeout_ns`."""
        self.delay_ns = min(PULL_TIMEOUT_MAX_NS, max(2 * self.delay_ns, self.timeout_min_ns // 3))
        self._decrease(now_ns)

    def _decrease(self, now_ns: int) -> None:
        """Shrink, at most once for segments that were under way together."""
        self._starting = False
        if now_ns >= self._backoff_ns:
            self._resize(max(float(WINDOW_MIN), self._size * WINDOW_BACKOFF))
            self._backoff_ns = now_ns + max(self.delay_ns, self.target_ns)
