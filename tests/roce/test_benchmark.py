"""`kvcast bench rdma`, one short round of it: every program moves bytes, and the tables say so."""

from __future__ import annotations

import pytest
from rich.console import Console

from bmv2_testbed.bench.rdma.guest import BESIDE, PROGRAMS, RdmaPlan, rdma_figures, rdma_table, rounds_in
from bmv2_testbed.guests.machine import Guest

pytestmark = pytest.mark.roce


def test_every_program_gets_its_turn(two_nodes: Guest) -> None:
    rounds = rounds_in(two_nodes, RdmaPlan(rounds=2, slice_s=0.25), 2)
    assert [set(each) for each in rounds] == [set(PROGRAMS)] * 2
    figures = {each["program"]: each for each in rdma_figures(rounds)}
    assert all(rate > 0 for each in figures.values() for rate in each["mib_s"])
    assert {program for program, each in figures.items() if each["ratio"]} == set(BESIDE)
    console = Console(width=80, record=True)
    console.print(rdma_table(rounds))
    shown = console.export_text()
    assert all(title in shown for title in PROGRAMS.values())
    assert "…" not in shown
