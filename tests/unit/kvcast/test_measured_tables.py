"""The tables of the page of performance: what is carried as JSON is what the page says."""

from __future__ import annotations

import json
from typing import Any

from tools.measure_performance import CASES, DOCUMENT, FIGURES, kept, put_into, spread, table, table_of_peers


def carried(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((FIGURES / f"{name}.json").read_text())
    return figures


def test_the_page_has_the_carried_figures() -> None:
    figures = {case.name: carried(case.name) for case in CASES}
    tables = table(figures) + "\n" + table_of_peers(carried("peers"), carried("peers_staggered"))
    document = DOCUMENT.read_text()
    assert put_into(document, tables) == document


def test_of_all_runs_the_means_are_kept() -> None:
    runs = [{"cast": {"mean_ratio": mean}, "tcp": {"mean_ratio": 8 * mean}} for mean in (1.1, 1.3, 1.0)]
    found = kept({"modes": {"cast": runs[0]["cast"]}, "runs": runs})
    assert found == {
        "modes": {"cast": {"mean_ratio": 1.1}},
        "mean_ratio_of_all_runs": {"cast": [1.1, 1.3, 1.0], "tcp": [8.8, 10.4, 8.0]},
    }
    assert spread(found, "cast") == "**1.100** (1.000 to 1.300)"
