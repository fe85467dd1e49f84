"""The network model against the testbed (figures of `kvcast bench incast` in docs/research/performance) and
against the packet-level simulation of the protocol's state machines, where no benchmark has been."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from kvproto.limits import MS
from kvsim.incast import QUICK
from kvsim.world import Setting, World
from tests.seeds import also_long
from tests.unit.planner.incast_model import Incast, incast_of, predict

CARRIED = Path(__file__).resolve().parents[3] / "docs" / "research" / "performance"
CASES = ("unicast", "cast", "cast_staggered", "cache", "cache_staggered", "slow", "loss")
WITHIN = 0.1
JOINERS_WITHIN = 0.05
"""Of means over some seeds, where readers come while a cast is under way."""
SMALL = 0.02
"""Of all bytes that readers took: below it a difference in bytes moves nothing."""


def _figures(name: str) -> tuple[dict[str, Any], str, dict[str, Any]]:
    figures = json.loads((CARRIED / f"{name}.json").read_text())
    (mode,) = figures["modes"]
    return figures, mode, figures["modes"][mode]


@pytest.mark.parametrize("name", CASES)
def test_times_are_within_a_tenth_of_the_measured(name: str) -> None:
    figures, mode, measured = _figures(name)
    prediction = predict(incast_of(figures, mode))
    slow = {int(reader) for reader in measured["slow_ratios"]}
    full_rate = [ratio for reader, ratio in enumerate(prediction.ratios) if reader not in slow]
    assert statistics.fmean(full_rate) == pytest.approx(measured["mean_ratio"], rel=WITHIN)
    assert max(full_rate) == pytest.approx(measured["max_ratio"], rel=WITHIN)
    for reader, ratio in measured["slow_ratios"].items():
        assert prediction.ratios[int(reader)] == pytest.approx(ratio, rel=WITHIN)


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_within_a_tenth_of_the_measured(name: str) -> None:
    figures, mode, measured = _figures(name)
    prediction = predict(incast_of(figures, mode))
    small = SMALL * measured["readers_rx_S"]
    assert prediction.holder_tx == pytest.approx(measured["holder_tx_S"], rel=WITHIN, abs=small)
    assert prediction.readers_rx == pytest.approx(measured["readers_rx_S"], rel=WITHIN)
    assert prediction.readers_tx == pytest.approx(measured["readers_tx_S"], rel=WITHIN, abs=small)


@pytest.mark.parametrize(
    "setting",
    [
        Setting(readers=1, chunks=8),
        Setting(readers=16, chunks=8, segments=128, rate_bytes_per_s=125e6),
        Setting(readers=6, chunks=8, stagger_ns=2_500_000_000, rate_bytes_per_s=12.5e6),
        Setting(readers=4, chunks=8, cached=True, stagger_ns=500_000_000),
    ],
    ids=["alone", "sixteen at once, 1 Gbit/s", "spread over four transfers", "served by the switch"],
)
def test_the_simulated_protocol_agrees(setting: Setting) -> None:
    world = World(setting)
    report = world.run(linger_ns=0)
    incast = Incast(
        offsets_s=[start / 1e9 for start in world.starts],
        chunks=setting.chunks,
        chunk_bytes=setting.segments * setting.segment_bytes,
        link_rate=setting.rate_bytes_per_s,
        mode="cache" if setting.cached else "cast",
    )
    prediction = predict(incast)
    assert statistics.fmean(prediction.ratios) == pytest.approx(report.mean, rel=WITHIN)
    assert prediction.holder_tx == pytest.approx(report.holder_tx, rel=WITHIN, abs=0.01)


@pytest.mark.parametrize("stagger_ms", also_long(100, long=(50, 200)))
def test_the_simulated_protocol_agrees_on_readers_that_come_in_the_middle(stagger_ms: int) -> None:
    """A document of the demo: chunks of 21 ms, of which a leader announces several before it can ask for them. Who
    joins meanwhile must learn of them, or two lead, and those who came late have what they missed cast too soon."""
    found = []
    for seed in range(1, 9):
        setting = Setting(
            readers=7,
            chunks=10,
            segments=64,
            stagger_ns=stagger_ms * MS,
            seed=seed,
            scheduling=QUICK,
            know_link=True,
        )
        world = World(setting)
        report = world.run(linger_ns=0)
        incast = Incast(
            offsets_s=[start / 1e9 for start in world.starts],
            chunks=setting.chunks,
            chunk_bytes=setting.segments * setting.segment_bytes,
            link_rate=setting.rate_bytes_per_s,
            mode="cast",
        )
        prediction = predict(incast)
        found.append((statistics.fmean(prediction.ratios), report.mean, prediction.holder_tx, report.holder_tx))
    planned_mean, mean, planned_tx, holder_tx = map(statistics.fmean, zip(*found, strict=True))
    assert planned_mean == pytest.approx(mean, rel=JOINERS_WITHIN)
    assert planned_tx == pytest.approx(holder_tx, rel=JOINERS_WITHIN)
