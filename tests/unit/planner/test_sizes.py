"""`kvcast size`: the arithmetic, models from their config.json, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcast.cli import main
from planner.errors import PlanError
from planner.hardware import MODELS, Attention, engine_of, find_model
from planner.hardware.model_files import BYTES_MAX, model_from
from planner.sizes import sizes

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
QWEN3_SPARSE: dict[str, Any] = {
    "hidden_size": 4096,
    "head_dim": 128,
    "moe_intermediate_size": 1536,
    "intermediate_size": 12288,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
    "sliding_window": None,
}
GPT_OSS: dict[str, Any] = {
    "hidden_size": 2880,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
DEEPSEEK: dict[str, Any] = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
PUBLISHED = {"llama-3-8b": LLAMA, "qwen3-235b-a22b": QWEN3_SPARSE, "gpt-oss-20b": GPT_OSS, "deepseek-v3": DEEPSEEK}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_describes_the_model_that_is_published(name: str) -> None:
    model, known = model_from(json.dumps(PUBLISHED[name]).encode(), "config.json"), MODELS[name]
    assert model.bytes_per_token == known.bytes_per_token
    assert model.chunk_bytes(512) == known.chunk_bytes(512)
    assert (model.layers, model.heads, model.attention) == (known.layers, known.heads, known.attention)
    assert model.parameters == pytest.approx(known.parameters, rel=0.02)
    assert model.active_parameters == pytest.approx(known.active_parameters, rel=0.05)


def test_of_a_model_that_sees_the_text_counts() -> None:
    content = json.dumps({"model_type": "seer", "text_config": LLAMA, "vision_config": {}}).encode()
    assert model_from(content, "x").bytes_per_token == 128 * 1024


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff", "is no JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "num_hidden_layers is None, not a number: is it a model's config.json?"),
        (json.dumps(LLAMA | {"num_attention_heads": 0}).encode(), "num_attention_heads is 0"),
        (json.dumps(LLAMA | {"hidden_size": "4096"}).encode(), "hidden_size is 4096, not a number"),
        (
            json.dumps(LLAMA | {"layer_types": ["linear_attention", "full_attention"]}).encode(),
            "layers of linear_attention keep a state in place of KV",
        ),
    ],
)
def test_what_describes_no_model_is_said(content: bytes, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        model_from(content, "config.json")


def test_the_arithmetic_is_the_planners() -> None:
    found = sizes(find_model("llama-3-8b"), "fp8", 8192, 4, {"pool": 1 << 30})
    assert (found.bytes_per_token, found.bytes_per_token_and_rank) == (64 * 1024, 16 * 1024)
    assert (found.chunk_tokens, found.chunk_bytes, found.chunks) == (128, 8 << 20, 64)
    assert found.prompt_bytes == 512 << 20
    (pool,) = found.places
    assert (pool.chunks, pool.tokens, pool.prompts) == (128, 16384, 2.0)
    hundred = next(link for link in found.links if link.gbit_s == 100)
    assert hundred.seconds == pytest.approx(0.044, rel=0.01)
    for one in found.computed:
        engine = engine_of(find_model("llama-3-8b").with_dtype(1), one.accelerator, 4)
        assert one.break_even_gbit_s == pytest.approx(engine.break_even_bit_s / 1e9)
        brought_s = found.prompt_bytes * 8 / (one.break_even_gbit_s * 1e9)
        assert brought_s == pytest.approx(one.seconds), "at the break-even it takes as long as computing it"


def test_heads_that_ranks_share_and_latent_vectors_are_on_each_of_them() -> None:
    few_heads = sizes(find_model("qwen2.5-7b"), "bf16", 64, 7, {})
    assert few_heads.bytes_per_token_and_rank == few_heads.bytes_per_token / 4
    latent = sizes(find_model("deepseek-v3"), "bf16", 64, 8, {})
    assert find_model("deepseek-v3").attention is Attention.MLA
    assert latent.bytes_per_token_and_rank == latent.bytes_per_token


def test_a_prompt_below_a_chunk_has_none() -> None:
    found = sizes(find_model("llama-3-8b"), "bf16", 10, 1, {"pool": 1 << 30})
    assert (found.chunks, found.prompt_bytes, found.places[0].prompts) == (0, 0, 0.0)


def test_the_command_fits_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["size", str(tmp_path), "--tokens", "8192", "--pool", "100g"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 72
    assert "128 KiB a token" in said
    assert "819,200" in said


def test_other_programs_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "llama-3-8b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes_per_token"] == 131072
    assert [place["name"] for place in found["places"]][:2] == ["this node's pool", "p4switch"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lllama-3-8b"], "unknown model 'lllama-3-8b': did you mean"),
        (["xyzzy"], "give its config.json"),
        (["llama-3-8b", "--tp", "3"], "3 ranks do not divide 32 query heads of llama-3-8b"),
        (["llama-3-8b", "--pool", "12"], "size '12' has no unit"),
        (["llama-3-8b", "--tokens", "99999999"], "1 to 16777216 can be a prompt"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_is_no_configuration_of_a_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b" " * (BYTES_MAX + 1))
    assert main(["size", str(path)]) == 2
    assert f"{path} is larger than a model's config.json" in capsys.readouterr().err
