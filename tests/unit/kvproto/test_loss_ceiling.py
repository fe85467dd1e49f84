"""The ceiling that losses put on a window, and reads through a port whose queue is shorter than their window."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproto.limits import MS
from kvproto.session.loss_ceiling import BETA, LossCeiling
from kvproto.session.read_window import BLOCK_BYTES, READ_WINDOW_MIN_BYTES, ReadWindow

SECOND = 1000 * MS
LIMIT, LEAST = 256, 8

times = st.integers(0, 60 * SECOND)
losses = st.lists(st.tuples(st.integers(1, 2 * LIMIT), times), max_size=20)


def lowered(history: list[tuple[int, int]]) -> tuple[LossCeiling, int]:
    """A ceiling with these losses (window, time after the one before), and the time of the last."""
    ceiling, now_ns = LossCeiling(LIMIT, LEAST), 0
    for size, after_ns in history:
        now_ns += after_ns
        ceiling.lost(size, now_ns)
    return ceiling, now_ns


@given(losses, times, times)
def test_it_stays_in_its_bounds_and_only_a_loss_lowers_it(
    history: list[tuple[int, int]], one_ns: int, more_ns: int
) -> None:
    ceiling, now_ns = lowered(history)
    first = ceiling.blocks(now_ns + one_ns)
    assert LEAST <= first <= ceiling.blocks(now_ns + one_ns + more_ns) <= LIMIT


@given(losses, st.integers(1, 2 * LIMIT), times)
def test_a_loss_leaves_a_part_of_what_was_in_use(history: list[tuple[int, int]], size: int, after_ns: int) -> None:
    ceiling, now_ns = lowered(history)
    before = ceiling.blocks(now_ns + after_ns)
    ceiling.lost(size, now_ns + after_ns)
    part = BETA * min(size, before) + 1e-9  # 0.7 * 170 is a little less than 119
    assert ceiling.blocks(now_ns + after_ns) <= max(LEAST, part)


@given(losses)
def test_without_losses_everything_is_back_within_seconds(history: list[tuple[int, int]]) -> None:
    ceiling, now_ns = lowered(history)
    assert ceiling.blocks(now_ns + 20 * SECOND) == LIMIT
    assert not ceiling.lowered


def test_it_lingers_where_it_lost() -> None:
    ceiling = LossCeiling(LIMIT, LEAST)
    ceiling.lost(64, 0)
    sizes = [ceiling.blocks(second * SECOND) for second in range(9)]
    assert sizes[0] == int(64 * BETA)
    assert 60 <= sizes[3] <= sizes[4] <= 64 < sizes[7]


# ---------------------------------------------------------------------- reads through a shallow queue


@dataclass
class Holder:
    """Sends blocks as fast as its NIC can, again from the first one that the reader misses."""

    window: ReadWindow
    asked: int = 0
    """Blocks that the reader has asked for."""
    sent: int = 0
    """The next one to send."""
    here: int = 0
    """Blocks that have arrived, in order."""
    asked_again: int = -1
    sending: bool = False
    pieces: deque[tuple[int, int, int]] = field(default_factory=deque)
    """(last block, bytes, posted) of each."""


class ShallowPort:
    """Holders behind faster links, one port of a switch to the reader. Events by time, in nanoseconds."""

    def __init__(
        self, holders: int, windows: Callable[[], ReadWindow], *, nic_bit_s: float, port_bit_s: float, queue_bytes: int
    ) -> None:
        self.round_trip_ns = 20_000
        self.nic_ns, self.port_ns = (int(BLOCK_BYTES * 8e9 / rate) for rate in (nic_bit_s, port_bit_s))
        self.queue_blocks = queue_bytes // BLOCK_BYTES
        self.holders = [Holder(windows()) for _ in range(holders)]
        self.queued = self.sent = self.arrived = self.retransmissions = 0
        self.free_ns = 0
        self.now_ns = 10 * SECOND
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = itertools.count()

    def at(self, when_ns: int, what: Callable[..., None], *words: object) -> None:
        heapq.heappush(self._events, (when_ns, next(self._order), what, words))

    def run(self, seconds: float) -> tuple[float, float]:
        """Share of the port that was of use, and how often each block was sent."""
        self.sent = self.arrived = 0
        start_ns = self.now_ns
        for holder in self.holders:
            self.ask(holder)
        while self.now_ns - start_ns < seconds * SECOND:
            self.now_ns, _, what, words = heapq.heappop(self._events)
            what(*words)
        return self.arrived * self.port_ns / (self.now_ns - start_ns), self.sent / max(1, self.arrived)

    def ask(self, holder: Holder) -> None:
        while size_bytes := holder.window.post(1 << 40, self.now_ns):
            holder.asked += size_bytes // BLOCK_BYTES
            holder.pieces.append((holder.asked, size_bytes, self.now_ns))
        self.at(self.now_ns + self.round_trip_ns // 2, self.wake, holder)

    def wake(self, holder: Holder) -> None:
        if not holder.sending and holder.sent < holder.asked:
            holder.sending = True
            self.at(self.now_ns + self.nic_ns, self.left, holder)

    def left(self, holder: Holder) -> None:
        """A block reaches the port's queue, or finds it full."""
        holder.sending = False
        block, holder.sent, self.sent = holder.sent, holder.sent + 1, self.sent + 1
        if self.queued < self.queue_blocks:
            self.queued += 1
            self.free_ns = max(self.free_ns, self.now_ns) + self.port_ns
            self.at(self.free_ns, self.arrive, holder, block)
        self.wake(holder)

    def arrive(self, holder: Holder, block: int) -> None:
        self.queued -= 1
        if block > holder.here and holder.asked_again != holder.here:
            self.miss(holder)
        elif block == holder.here:
            holder.here += 1
            self.arrived += 1
            if block + 1 == holder.pieces[0][0]:
                _, size_bytes, posted_ns = holder.pieces.popleft()
                holder.window.completed(size_bytes, posted_ns, self.now_ns)
                self.ask(holder)
        # Nothing may follow a loss that would show it: then the NIC's timeout does.
        self.at(self.now_ns + 268 * MS, self.time_out, holder, holder.here)

    def miss(self, holder: Holder) -> None:
        self.retransmissions += 1
        holder.asked_again = holder.here
        self.at(self.now_ns + self.round_trip_ns // 2, self.again, holder, holder.here)

    def again(self, holder: Holder, block: int) -> None:
        holder.sent = block
        self.wake(holder)

    def time_out(self, holder: Holder, here: int) -> None:
        if holder.here == here and here < holder.asked:
            self.miss(holder)

    def watch_counter(self, since_ns: int, before: int, period_ns: int) -> None:
        """What the agent does with the NIC's counter."""
        if self.retransmissions != before:
            for holder in self.holders:
                holder.window.lost(since_ns, self.now_ns)
        self.at(self.now_ns + period_ns, self.watch_counter, self.now_ns, self.retransmissions, period_ns)


PATHS = {
    "one holder, four times as fast": {"holders": 1, "nic_bit_s": 40e9, "port_bit_s": 10e9, "queue_bytes": 512 << 10},
    "incast of eight": {"holders": 8, "nic_bit_s": 10e9, "port_bit_s": 10e9, "queue_bytes": 2 << 20},
}


def port_of(path: str, *, told: bool) -> ShallowPort:
    port = ShallowPort(windows=lambda: ReadWindow(4 << 20), **PATHS[path])  # type: ignore[arg-type]
    if told:
        port.watch_counter(port.now_ns, 0, 25 * MS)
    port.run(0.6)
    return port


@pytest.mark.parametrize("path", PATHS)
def test_a_window_larger_than_the_ports_queue_shrinks_to_it(path: str) -> None:
    used, times_sent = port_of(path, told=True).run(0.2)
    assert used > 0.95
    assert times_sent < 1.02


def test_timeouts_alone_tell_too_little() -> None:
    """What the counters are read for."""
    used, times_sent = port_of("one holder, four times as fast", told=False).run(0.2)
    assert used < 0.5
    assert times_sent > 2


# ---------------------------------------------------------------------- the window


@given(st.lists(st.tuples(st.sampled_from(["post", "complete", "lost"]), st.integers(0, 400 * MS)), max_size=80))
def test_whatever_happens_the_window_keeps_its_bounds(events: list[tuple[str, int]]) -> None:
    limit_bytes, now_ns = 4 << 20, 0
    window, pieces = ReadWindow(limit_bytes), deque[tuple[int, int]]()
    for kind, after_ns in events:
        since_ns, now_ns = now_ns, now_ns + after_ns
        before = window.bytes
        if kind == "post":
            while size_bytes := window.post(1 << 40, now_ns):
                pieces.append((size_bytes, now_ns))
            assert pieces
        elif kind == "complete" and pieces:
            window.completed(*pieces.popleft(), now_ns)
        elif kind == "lost":
            window.lost(since_ns, now_ns)
            assert window.bytes <= before
        assert READ_WINDOW_MIN_BYTES <= window.bytes <= limit_bytes
        assert window.in_flight_bytes == sum(size for size, _ in pieces) <= limit_bytes


def test_losses_of_what_was_in_flight_together_count_once() -> None:
    window = ReadWindow(4 << 20, 4 << 20)
    window.post(1 << 40, 0)
    window.lost(0, 25 * MS)
    after = window.bytes
    assert after == int(256 * BETA) * BLOCK_BYTES
    window.lost(25 * MS, 50 * MS)
    assert window.bytes == after, "these may be the same losses"
    window.lost(50 * MS, 75 * MS)
    assert window.bytes < after


def test_losses_of_others_do_not_count() -> None:
    window = ReadWindow(4 << 20, 4 << 20)
    window.lost(0, 25 * MS)
    size_bytes = window.post(1 << 40, 30 * MS)
    window.completed(size_bytes, 30 * MS, 31 * MS)
    window.lost(50 * MS, 75 * MS)
    assert window.bytes == 4 << 20


def test_what_was_learnt_outlives_a_rest_and_ages() -> None:
    window = ReadWindow(4 << 20, 4 << 20)
    window.post(1 << 40, 0)
    window.lost(0, 25 * MS)
    window.dropped()
    assert window.post(1 << 40, 2 * SECOND)
    assert window.bytes < 4 << 20
    window.dropped()
    assert window.post(1 << 40, 30 * SECOND)
    assert window.bytes == 4 << 20
