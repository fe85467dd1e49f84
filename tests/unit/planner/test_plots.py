"""Pictures of a plan: as wide as a paper's column, the same for the same figures, one colour a source."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.page import live_page
from planner import palette
from planner.bursts import Burst
from planner.cluster.options import Sharing
from planner.plan import PlanFigures, PlanOptions, SweepPoint, TraceFacts
from planner.report.page import page
from planner.report.plots import draw
from planner.verdict import headline
from tests.unit.planner.test_verdict import BASE, CLUSTER, figures

FACTS = TraceFacts(3600, 3600.0, 1000.0, 10, 10, reusable=0.6, once=0.5)


def some_plan() -> PlanFigures:
    """An example with every kind of plot."""
    replays = {
        sharing: replace(
            BASE,
            sharing=sharing,
            ttft_mean_s=0.4 - 0.05 * place,
            ttft_p99_s=4 - 0.5 * place,
            hits={
                "local": 0.3,
                "disk": 0.05,
                "holder": 0.2 if sharing is Sharing.UNICAST else 0.05,
                "cast": 0.15 if "cast" in sharing.value else 0.0,
                "switch": 0.1 if sharing is Sharing.CAST_SWITCH else 0.0,
                "computed": 0.3,
            },
        )
        for place, sharing in enumerate(Sharing)
    }
    bursts = tuple(
        Burst(readers, 8192, 1 << 30, 0.9, 0.1 * readers, 0.04 * readers, 0.3, 0.1, 0.08, float(readers), 1.0)
        for readers in (1, 2, 4, 8, 16, 32)
    )
    points = tuple(
        SweepPoint(axis, str(value), value, replays)
        for axis in ("nodes", "link", "rate", "model")
        for value in (1, 2, 4)
    )
    return replace(PlanFigures(PlanOptions(CLUSTER, "t"), FACTS, replays), bursts=bursts, points=points)


def png_width(path: Path) -> int:
    width: int = struct.unpack("!I", path.read_bytes()[16:20])[0]  # PNG, 11.2.2
    return width


def test_every_plot_fits_a_column(tmp_path: Path) -> None:
    drawn = draw(some_plan(), tmp_path)
    assert sorted(drawn) == ["bursts", "hits", "latency", "sweeps"]
    for name, element in drawn.items():
        found = re.search(r'width="([0-9.]+)pt"', element)
        assert found is not None
        assert float(found[1]) == pytest.approx(3.3 * 72)
        assert png_width(tmp_path / f"{name}.png") == 990
    assert draw(some_plan(), tmp_path) == drawn
    for source in ("local", "disk", "holder", "cast", "switch"):
        assert palette.SOURCES[source] in drawn["hits"]


def test_the_live_page_has_the_same_colours() -> None:
    css = live_page()().body.decode()
    for source, colour in palette.SOURCES.items():
        name = "missed" if source == "computed" else source
        assert f"--{name}: {colour};" in css


def test_colours_are_far_enough_apart() -> None:
    def luminance(colour: str) -> float:
        """Relative luminance (WCAG 2.1)."""
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for colour in palette.SOURCES.values():
        assert 1.05 / (luminance(colour) + 0.05) > 1.9, "seen on white"
    assert len({*palette.SOURCES.values(), palette.REPLICAS, palette.RELAY, palette.LIMIT}) == 10


def test_the_report_opens_with_the_verdict() -> None:
    plan = some_plan()
    verdict = headline(plan)
    assert verdict.startswith("Casts pay: casts+switch brings the mean time to first token to 150 ms")
    text = page("title", verdict, ["said"], [], {}, ["limit"])
    assert text.index(verdict) < text.index("said")
    nothing = PlanFigures(PlanOptions(CLUSTER, "t"), FACTS, figures(0.995))
    assert headline(nothing).startswith("You need no pool")
