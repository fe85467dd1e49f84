"""Chunks that cross shaped links in fewer bytes, by real agents: every byte is compared, bytes on links are counted."""

from __future__ import annotations

import pytest

from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode
from kvpolicy.tiers.form_costs import FormChoice

SHARE = 0.7
"""Of their bytes that the twins of normal numbers have, about."""
PLAN = IncastPlan(readers=3, rate_bit_s=20_000_000, size_bytes=2 * 2**20, chunk_bytes=512 * 1024)


def run(mode: Mode, form: FormChoice) -> IncastFigures:
    plan = IncastPlan(PLAN.readers, PLAN.rate_bit_s, PLAN.size_bytes, PLAN.chunk_bytes, form=form)
    figures, _ = IncastRun(plan, lambda _text: None, lambda _share: None).mode(mode)
    assert figures.verified, figures.problems
    return figures


@pytest.mark.root
def test_the_holder_of_twins_sends_their_bytes_to_each_reader() -> None:
    figures = run(Mode.UNICAST, FormChoice.LOSSLESS)
    sent = figures.holder_tx_S + figures.readers_tx_S
    assert SHARE * 0.9 * PLAN.readers < sent < 0.85 * PLAN.readers


@pytest.mark.root
def test_a_cast_of_twins_is_still_one_cast() -> None:
    figures = run(Mode.CAST, FormChoice.LOSSLESS)
    sent = figures.holder_tx_S + figures.readers_tx_S
    assert sent < PLAN.readers * SHARE - 0.3, "less than a copy for each reader"
    assert "cast" in figures.origins


@pytest.mark.root
def test_the_switch_serves_twins_and_the_holder_sends_nothing() -> None:
    figures = run(Mode.CACHE, FormChoice.LOSSLESS)
    assert figures.holder_tx_S < 0.5
    assert figures.origins["switch"] > 0
    assert figures.readers_tx_S < 0.5
