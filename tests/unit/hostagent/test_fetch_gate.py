"""The gate learns rate and overhead from fetches and compares with recomputing."""

from __future__ import annotations

import pytest

from hostagent.gate import FetchGate

MIB = 1 << 20


def test_without_a_time_to_recompute_everything_passes() -> None:
    assert FetchGate(1.0).allows(1 << 40, None)


def test_what_is_under_way_counts() -> None:
    gate = FetchGate(100e6, overhead_s=0.0)
    assert gate.allows(50_000_000, 0.6)
    gate.started(100_000_000)
    assert not gate.allows(50_000_000, 0.6)
    gate.ended(100_000_000, 0, 0.0)
    assert gate.allows(50_000_000, 0.6)


@pytest.mark.parametrize("rate", [10e6, 1e9])
def test_rate_is_learnt(rate: float) -> None:
    gate = FetchGate(100e6)
    for _ in range(40):
        gate.started(16 * MIB)
        gate.ended(16 * MIB, 16 * MIB, 16 * MIB / rate)
    assert gate.rate_bytes_per_s == pytest.approx(rate, rel=0.05)
    assert gate.under_way_bytes == 0


def test_small_fetches_teach_the_overhead() -> None:
    gate = FetchGate(1e9)
    for _ in range(60):
        gate.started(4096)
        gate.ended(4096, 4096, 0.0005)
    assert gate.overhead_s == pytest.approx(0.0005, rel=0.05)
    assert gate.rate_bytes_per_s == 1e9


def test_crowded_fetches_do_not_pass_for_a_slow_network() -> None:
    gate = FetchGate(100e6)
    gate.started(16 * MIB)
    gate.started(16 * MIB)
    gate.ended(16 * MIB, 16 * MIB, 2 * 16 * MIB / 100e6)
    assert gate.rate_bytes_per_s == 100e6
