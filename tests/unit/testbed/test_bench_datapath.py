"""`kvcast bench datapath`: every way brings every byte to every reader."""

from __future__ import annotations

from bmv2_testbed.bench.datapath import WAYS, DatapathPlan, run_datapath


def test_every_way_brings_every_byte() -> None:
    moved: list[float] = []
    figures = run_datapath(DatapathPlan(1 << 20, 4096, (2,), 1), lambda _: None, moved.append)
    assert [figure.way for figure in figures] == list(WAYS)
    assert all(figure.right for figure in figures)
    assert all(figure.holder_us > 0 and figure.reader_us > 0 for figure in figures)
    assert moved[-1] == 1
