"""The benchmark of displacement: every chunk that comes in does so for one that goes."""

from __future__ import annotations

from bmv2_testbed.bench.policy.displacement import measure_displacement


def test_a_full_switch_takes_dearer_chunks() -> None:
    cost = measure_displacement(residents=32, displaced=20, waiting=4)
    assert (cost.residents, cost.displaced) == (32, 20)
    assert cost.displacement_us > 0
