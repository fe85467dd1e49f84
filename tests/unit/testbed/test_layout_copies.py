"""`kvcast bench layout`, smaller: every layout is copied, and wrong bytes are said."""

from __future__ import annotations

import numpy as np
import pytest

from bmv2_testbed.bench.layout_copies import LAYOUTS, CopiesPlan, pages, run_copies
from kvclient.engines.paged import HostLayers

PLAN = CopiesPlan(chunk_blocks=2, rounds=1, layers=3)


def test_every_layout_comes_out_as_it_went_in() -> None:
    figures = list(run_copies(PLAN))
    assert [one.layout for one in figures] == list(LAYOUTS)
    assert all(one.is_right and one.in_share > 0 and one.out_share > 0 for one in figures)


def test_pages_have_as_few_runs_as_their_layout_allows() -> None:
    runs = {name: pages(PLAN, name)[0].shape[1:] for name in LAYOUTS}
    assert runs["LBHNC"] == runs["BLNHC"] == (8 * 16 * 512,)
    assert runs["latent"] == (16 * 1152,)
    assert runs["LHBNC"] == runs["BHLNC"] == (8, 16 * 512)
    assert runs["half of the heads, LBHNC"] == (4 * 16 * 512,)
    assert runs["half of the heads, LBNHC"] == (16, 4 * 512)


def test_a_copier_that_mixes_blocks_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = HostLayers.gather
    monkeypatch.setattr(HostLayers, "gather", lambda self, ids, chunk, after=None: gather(self, ids[::-1], chunk))
    assert not any(one.is_right for one in run_copies(PLAN))
    assert np.array_equal(*[pages(PLAN, "LBHNC")[0] for _ in range(2)]), "seeded"
