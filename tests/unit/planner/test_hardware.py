"""Models and engines: published sizes, operations, what a wrong name says."""

from __future__ import annotations

import pytest

from planner.errors import PlanError
from planner.hardware import MODELS, Attention, Model, engine_of, find_model
from planner.hardware.model import sum_of_windows


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("llama-3-8b", 128),
        ("llama-3-70b", 320),
        ("llama-2-7b", 512),
        ("qwen2.5-7b", 56),
        ("qwen3-30b-a3b", 96),
        ("deepseek-v3", 68.625),
        ("deepseek-v2-lite", 30.375),
        ("mistral-7b", 128),
        ("gpt-oss-120b", 72),
    ],
)
def test_kv_of_a_token(name: str, kib: float) -> None:
    assert find_model(name).bytes_per_token == kib * 1024


def test_every_model_has_a_source_and_a_plausible_shape() -> None:
    for name, model in MODELS.items():
        assert model.name == name == name.lower()
        assert "config.json" in model.source
        assert model.active_parameters <= model.parameters
        assert model.heads % model.kv_heads == 0
        assert model.sliding_layers <= model.layers


def test_names_as_people_write_them() -> None:
    assert find_model("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3-8b"
    assert find_model("deepseek-ai/DeepSeek-R1").name == "deepseek-v3"
    assert find_model("nemo").name == "mistral-nemo-12b"
    with pytest.raises(PlanError, match=r"unknown model 'lllama-3-8b': did you mean .*llama-3-8b"):
        find_model("lllama-3-8b")
    with pytest.raises(PlanError, match="known are llama-2-7b"):
        find_model("xyzzy")


def test_sliding_layers_carry_their_window_only() -> None:
    model = find_model("gpt-oss-20b")
    assert model.chunk_bytes(512) == 12 * (512 + 128) * 2 * 8 * 64 * 2
    assert model.chunk_bytes(64) == 24 * 64 * 2 * 8 * 64 * 2
    assert model.with_dtype(1).chunk_bytes(512) * 2 == model.chunk_bytes(512)


def test_operations_of_a_prefill() -> None:
    model = Model("tiny", 2, 4, 2, 8, 1000.0, 1000.0)
    # 2 a parameter and token; 4 a head, dimension, layer and position looked at: 0 + 1 + ... is n^2 / 2.
    assert model.prefill_flops(0, 10) == 2 * 1000 * 10 + 4 * 4 * 8 * 2 * 50
    assert model.prefill_flops(4, 10) == pytest.approx(model.prefill_flops(0, 10) - model.prefill_flops(0, 4))
    assert model.prefill_flops(10, 10) == 0
    latent = Model("latent", 1, 1, 1, 576, 0.0, 0.0, Attention.MLA)
    assert latent.bytes_per_token == 1152


@pytest.mark.parametrize("span", [(0, 10), (3, 10), (0, 3), (8, 12)])
def test_positions_in_a_window(span: tuple[int, int]) -> None:
    exact = sum(min(position + 0.5, 6) for position in range(*span))
    assert sum_of_windows(*span, 6) == pytest.approx(exact)


def test_engines() -> None:
    llama = find_model("llama-3-8b")
    # Fetching is known to beat one H100 above some 30 Gbit/s, and eight with 70B above some 70.
    assert 25e9 < engine_of(llama).break_even_bit_s < 40e9
    assert 60e9 < engine_of(find_model("llama-3-70b"), accelerators=8).break_even_bit_s < 80e9
    measured = engine_of(llama, prefill_tokens_per_s=12_345)
    assert measured.prefill_tokens_per_s == pytest.approx(12_345)
    assert measured.prefill_s(0, 1000) > measured.prefill_s(500, 1000) > 0
    with pytest.raises(PlanError, match="unknown accelerator 'h1000': known are"):
        engine_of(llama, "h1000")
