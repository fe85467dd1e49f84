"""What a holder hands over at a time follows the rate at which it leaves."""

from __future__ import annotations

import pytest

from kvproto.limits import MS
from kvproto.session.burst import BURST_SEGMENTS_MAX, Burst


@pytest.mark.parametrize(
    ("segments_s", "expected"),
    [(3_000, 64), (30_000, 64), (100_000, 200), (1_000_000, BURST_SEGMENTS_MAX)],
    ids=["100 Mbit/s", "1 Gbit/s", "3 Gbit/s", "33 Gbit/s"],
)
def test_it_is_what_leaves_within_two_milliseconds(segments_s: int, expected: int) -> None:
    burst, now_ns = Burst(64), 1000 * MS
    burst.begins(now_ns)
    for _ in range(1000):
        now_ns += 10 * 1_000_000_000 // segments_s
        burst.sent(10, now_ns)
    assert burst.segments == pytest.approx(expected, abs=10)


def test_idle_time_does_not_count() -> None:
    burst = Burst(64)
    burst.begins(0)
    burst.sent(400, 2 * MS)
    assert burst.segments == 400
    burst.begins(10_000 * MS)
    burst.sent(300, 10_002 * MS)
    assert burst.segments == 300
