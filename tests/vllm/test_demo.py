"""`kvcast demo-vllm`, `kvcast demo-pd` and `kvcast bench ttft`, smaller."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from bmv2_testbed.bench.first_token import Case, FirstTokenPlan, run_first_token_bench
from bmv2_testbed.demo.prefill import PrefillDemoFigures, PrefillDemoPlan, run_prefill_demo
from bmv2_testbed.demo.vllm import CHUNK_TOKENS, VllmDemoPlan, run_vllm_demo
from bmv2_testbed.network.namespaces import can_unshare


def test_the_demo_says_the_same_everywhere(models: Callable[..., Path], tmp_path: Path) -> None:
    plan = VllmDemoPlan(document_tokens=1000, cold_engines=2)
    figures = run_vllm_demo(plan, models(), tmp_path, lambda text: None)
    assert figures.good
    assert figures.plain.cached_tokens == 0
    for each in (figures.asked, *figures.cold):
        assert each.result.cached_tokens == 1000 // CHUNK_TOKENS * CHUNK_TOKENS
        assert sum(count for source, count in each.chunks_from.items() if source != "local") > 0
    assert len(figures.cold) == 2
    assert figures.document_bytes > 0


CAN_NIXL = can_unshare() and importlib.util.find_spec("nixl") is not None


# The next one shows the same, where it can run.
@pytest.mark.skipif(CAN_NIXL, reason="NIXL's test has these rounds, too")
def test_one_computes_and_others_decode(models: Callable[..., Path], tmp_path: Path) -> None:
    plan = PrefillDemoPlan(prompt_tokens=1000, decoders=2, rounds=1)
    figures = run_prefill_demo(plan, models(), tmp_path, lambda text: None)
    assert [each.decoders for each in figures.rounds] == [1, 2]
    nothing_is_computed_again(figures)


def nothing_is_computed_again(figures: PrefillDemoFigures) -> None:
    assert figures.good
    for each in figures.rounds:
        if each.system == "kvcast":
            assert set(each.cached_tokens) == {1000 // CHUNK_TOKENS * CHUNK_TOKENS}, "decoders computed nothing of it"
        assert each.sent_bytes >= figures.prompt_bytes
        assert len(figures.of(each.system, each.decoders).first_token_s) == each.decoders


@pytest.mark.skipif(not can_unshare(), reason="hosts with networks of their own need root")
@pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="no NIXL here: tools/setup_vllm.sh installs it")
def test_nixl_does_the_same_on_the_same_hosts(models: Callable[..., Path], tmp_path: Path) -> None:
    plan = PrefillDemoPlan(prompt_tokens=1000, decoders=2, rounds=1, with_nixl=True)
    figures = run_prefill_demo(plan, models(), tmp_path, lambda text: None)
    assert [(each.system, each.decoders) for each in figures.rounds] == [
        ("kvcast", 1),
        ("kvcast", 2),
        ("NIXL", 1),
        ("NIXL", 2),
    ]
    nothing_is_computed_again(figures)
    for count in (1, 2):
        sent_bytes = figures.of("NIXL", count).sent_bytes
        assert sent_bytes >= count * figures.prompt_bytes, "each decoder reads all of it over the host's link"


def test_first_tokens_from_every_place(models: Callable[..., Path], tmp_path: Path) -> None:
    """The benchmark itself refuses a prompt that was not found whole where it should be."""
    plan = FirstTokenPlan(prompt_tokens=500, repeat=1, engines_at_once=2)
    figures = run_first_token_bench(plan, models(), tmp_path, lambda text: None)
    assert figures.same_tokens
    assert {case: len(seconds) for case, seconds in figures.seconds.items()} == dict.fromkeys(Case, 1)
