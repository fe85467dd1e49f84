"""`kvcast demo-vllm` and `kvcast demo-pd`, smaller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bmv2_testbed.demo.prefill import PrefillDemoPlan, run_prefill_demo
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


def test_one_computes_and_others_decode(models: Callable[..., Path], tmp_path: Path) -> None:
    plan = PrefillDemoPlan(prompt_tokens=1000, decoders=2, rounds=1, wiring=Wiring.DATAGRAMS)
    figures = run_prefill_demo(plan, models(), tmp_path, lambda text: None)
    assert figures.good
    assert [each.decoders for each in figures.rounds] == [1, 2]
    for each in figures.rounds:
        assert set(each.cached_tokens) == {1000 // CHUNK_TOKENS * CHUNK_TOKENS}, "the decoders computed nothing of it"
        assert each.sent_bytes >= figures.prompt_bytes
        assert len(figures.of(each.decoders).first_token_s) == each.decoders
