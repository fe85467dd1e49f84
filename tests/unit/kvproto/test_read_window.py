"""The window of one-sided reads, against a path with a rate, a round trip and a queue."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from kvproto.limits import MS
from kvproto.session.read_window import READ_PIECE_BYTES_MAX, READ_WINDOW_MIN_BYTES, ReadWindow
from kvproto.session.timing import WINDOW_DELAY

LIMIT_BYTES = 4 << 20
ENDLESS = 1 << 40


@dataclass
class Path:
    """A holder's answers queue for a link, in order."""

    bytes_per_s: float
    round_trip_ns: int
    window: ReadWindow
    now_ns: int = 10_000 * MS
    free_ns: int = 0
    in_flight: deque[tuple[int, int, int]] = field(default_factory=deque)
    """(posted, size, here) of each piece."""
    most_queued_bytes: int = 0
    brought_bytes: int = 0

    def fill(self) -> None:
        while size_bytes := self.window.post(ENDLESS, self.now_ns):
            self.free_ns = max(self.free_ns, self.now_ns + self.round_trip_ns) + int(
                size_bytes * 1e9 / self.bytes_per_s
            )
            self.in_flight.append((self.now_ns, size_bytes, self.free_ns))
        assert self.window.in_flight_bytes == sum(size for _, size, _ in self.in_flight) <= LIMIT_BYTES
        queued_ns = self.free_ns - self.now_ns - self.round_trip_ns
        self.most_queued_bytes = max(self.most_queued_bytes, int(queued_ns * self.bytes_per_s / 1e9))

    def complete(self) -> None:
        posted_ns, size_bytes, self.now_ns = self.in_flight.popleft()
        self.brought_bytes += size_bytes
        self.window.completed(size_bytes, posted_ns, self.now_ns)

    def run(self, seconds: float) -> float:
        """Share of the link that reads used."""
        start_ns, self.brought_bytes = self.now_ns, 0
        while self.now_ns - start_ns < seconds * 1e9:
            self.fill()
            self.complete()
        return self.brought_bytes / ((self.now_ns - start_ns) * self.bytes_per_s / 1e9)


@dataclass
class ToldPath(Path):
    """The same, where others post and count: the window hears twice a round trip, of several pieces."""

    allowed: tuple[int, int, int] = (0, 0, 0)
    """What may be in flight, bytes of a piece, and what is quick."""
    untold: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(in flight before, size, posted, here) of each piece."""
    quick_bytes: int = 0

    def __post_init__(self) -> None:
        self.window.begin(self.now_ns)
        self.allow()

    def allow(self) -> None:
        self.allowed = self.window.bytes, self.window.piece_bytes, self.window.quick_ns

    def fill(self) -> None:
        window_bytes, piece_bytes, _ = self.allowed
        while self.flying_bytes + piece_bytes <= window_bytes:
            self.free_ns = max(self.free_ns, self.now_ns + self.round_trip_ns) + int(
                piece_bytes * 1e9 / self.bytes_per_s
            )
            self.in_flight.append((self.now_ns, piece_bytes, self.free_ns))
        queued_ns = self.free_ns - self.now_ns - self.round_trip_ns
        self.most_queued_bytes = max(self.most_queued_bytes, int(queued_ns * self.bytes_per_s / 1e9))

    @property
    def flying_bytes(self) -> int:
        return sum(size for _, size, _ in self.in_flight)

    def complete(self) -> None:
        flying_bytes = self.flying_bytes
        posted_ns, size_bytes, self.now_ns = self.in_flight.popleft()
        self.brought_bytes += size_bytes
        if self.now_ns - posted_ns < self.allowed[2]:
            self.quick_bytes += size_bytes
            return
        self.untold.append((flying_bytes, size_bytes, posted_ns, self.now_ns))
        if 2 * sum(size for _, size, _, _ in self.untold) >= self.allowed[0]:
            for piece in self.untold:
                self.window.came(*piece)
            self.untold.clear()
            self.allow()


PATHS = [Path, ToldPath]


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("mbit_s", [20, 50, 200, 1000])
def test_a_slow_holder_is_kept_busy_and_no_queue_grows(mbit_s: int, kind: type[Path]) -> None:
    rate = mbit_s * 125_000
    path = kind(rate, 1 * MS, ReadWindow(LIMIT_BYTES))
    path.run(0.4)
    path.most_queued_bytes = 0
    assert path.run(0.5) > 0.95
    floor_bytes = READ_WINDOW_MIN_BYTES
    assert path.most_queued_bytes <= max(2 * WINDOW_DELAY.ceiling_ns * rate / 1e9, floor_bytes)


@pytest.mark.parametrize("kind", PATHS)
def test_even_the_beginning_fits_a_shallow_queue(kind: type[Path]) -> None:
    path = kind(20 * 125_000, 1 * MS, ReadWindow(LIMIT_BYTES))
    path.run(0.5)
    assert path.most_queued_bytes <= 128 * 1024


@pytest.mark.parametrize("kind", PATHS)
def test_a_fast_link_is_full_after_some_round_trips(kind: type[Path]) -> None:
    path = kind(50e9, 20_000, ReadWindow(LIMIT_BYTES))
    path.run(0.001)
    assert path.run(0.01) > 0.95
    assert path.window.bytes > 50e9 * 20_000 / 1e9


@pytest.mark.parametrize("kind", PATHS)
def test_a_link_that_gets_slower_is_believed(kind: type[Path]) -> None:
    path = kind(1e9, 100_000, ReadWindow(LIMIT_BYTES))
    path.run(0.1)
    path.bytes_per_s = 5e6
    path.run(2.0)
    path.most_queued_bytes = 0
    assert path.run(0.5) > 0.95
    assert path.most_queued_bytes <= 2 * WINDOW_DELAY.ceiling_ns * 5e6 / 1e9


def test_at_its_limit_only_slow_pieces_are_worth_telling() -> None:
    path = ToldPath(50e9, 20_000, ReadWindow(LIMIT_BYTES))
    path.run(0.01)
    assert path.window.bytes == LIMIT_BYTES
    before_bytes, path.quick_bytes = len(path.untold), 0
    path.run(0.01)
    assert path.quick_bytes == path.brought_bytes
    assert len(path.untold) == before_bytes
    path.window.lost(path.now_ns, path.now_ns + 25 * MS)
    assert path.window.quick_ns == 0, "it is to grow again"


def test_what_was_not_worth_telling_is_no_rest() -> None:
    path = ToldPath(2e9, 20_000, ReadWindow(LIMIT_BYTES))
    path.run(0.1)
    path.quick_bytes = 0
    path.run(1.2)
    assert path.quick_bytes == path.brought_bytes
    path.window.heard(path.flying_bytes, path.now_ns)
    path.window.begin(path.now_ns)
    assert path.window.bytes == LIMIT_BYTES
    path.window.begin(path.now_ns + 1000 * MS)
    assert path.window.bytes == READ_WINDOW_MIN_BYTES


def test_pieces_that_took_a_timeout_count_as_lost() -> None:
    window = ReadWindow(LIMIT_BYTES, LIMIT_BYTES)
    before = window.bytes
    size_bytes = window.post(ENDLESS, 0)
    window.completed(size_bytes, 0, 268 * MS)
    assert window.bytes < before


def test_what_nobody_fills_does_not_grow() -> None:
    window = ReadWindow(LIMIT_BYTES)
    before, now_ns = window.bytes, 0
    for _ in range(100):
        size_bytes = window.post(16_384, now_ns)
        window.completed(size_bytes, now_ns, now_ns + 10_000)
        now_ns += 10_000
    assert window.bytes == before


def test_it_begins_anew_after_a_rest_and_a_broken_connection_leaves_nothing_in_flight() -> None:
    path = Path(50e9, 20_000, ReadWindow(LIMIT_BYTES))
    start = path.window.bytes
    path.run(0.01)
    assert path.window.bytes > start
    path.fill()
    path.window.dropped()
    assert path.window.in_flight_bytes == 0
    assert path.window.post(ENDLESS, path.now_ns + 2000 * MS) <= READ_PIECE_BYTES_MAX
    assert path.window.bytes == start


@pytest.mark.parametrize("limit_bytes", [READ_WINDOW_MIN_BYTES, 300_000, LIMIT_BYTES])
def test_the_limit_is_kept(limit_bytes: int) -> None:
    window = ReadWindow(limit_bytes)
    now_ns, pieces = 0, deque[int]()
    for _ in range(2000):
        while size_bytes := window.post(ENDLESS, now_ns):
            pieces.append(size_bytes)
        assert window.in_flight_bytes <= limit_bytes
        window.completed(pieces.popleft(), now_ns, now_ns + 1000)
        now_ns += 1000
    assert window.in_flight_bytes > 0
