"""`kvcast demo-vllm`, smaller: a document read once, answered from the pool by another engine and by two at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bmv2_testbed.demo.vllm import CHUNK_TOKENS, VllmDemoPlan, run_vllm_demo
from bmv2_testbed.spec import Wiring


def test_the_demo_says_the_same_everywhere(models: Callable[..., Path], tmp_path: Path) -> None:
    plan = VllmDemoPlan(document_tokens=1000, cold_engines=2, wiring=Wiring.DATAGRAMS)
    figures = run_vllm_demo(plan, models(), tmp_path, lambda text: None)
    assert figures.good
    assert figures.plain.cached_tokens == 0
    for each in (figures.asked, *figures.cold):
        assert each.result.cached_tokens == 1000 // CHUNK_TOKENS * CHUNK_TOKENS
        assert sum(count for source, count in each.chunks_from.items() if source != "local") > 0
    assert len(figures.cold) == 2
    assert figures.document_bytes > 0
