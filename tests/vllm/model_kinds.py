"""Small models with random weights, of each kind of attention, and adapters: nothing is downloaded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bmv2_testbed.engines.small_models import COMMON, HEADS, SIZES, VOCABULARY, make_tokenizer, save_weights

AUDIO_TOKENS = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
"""Of models that hear, behind the vocabulary. The first stands for a sound in a prompt."""
AUDIO_TOKEN = VOCABULARY
MEL_BINS = 16


def _llama() -> tuple[str, dict[str, Any]]:
    return "Llama", {**COMMON, **SIZES, **HEADS}


def _mistral() -> tuple[str, dict[str, Any]]:
    """Every layer looks back 512 tokens only."""
    return "Mistral", {**COMMON, **SIZES, **HEADS, "sliding_window": 512}


def _gemma3() -> tuple[str, dict[str, Any]]:
    """Layers with sliding windows and layers without."""
    kinds = ["sliding_attention", "full_attention"] * 2
    return "Gemma3", {
        **COMMON,
        **SIZES,
        **HEADS,
        "sliding_window": 512,
        "layer_types": kinds,
        "query_pre_attn_scalar": 32,
    }


def _gemma3_narrow() -> tuple[str, dict[str, Any]]:
    """As gemma3, with windows of less than a block of 32 tokens, and three windows to a layer without."""
    family, fields = _gemma3()
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    return family, {**fields, "sliding_window": 24, "layer_types": kinds}


def _gpt_oss() -> tuple[str, dict[str, Any]]:
    """Layers with windows and layers without, by turns, with attention sinks and experts."""
    return "GptOss", {
        **COMMON,
        **HEADS,
        "hidden_size": 256,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }


def _deepseek() -> tuple[str, dict[str, Any]]:
    """Multi-head latent attention."""
    return "DeepseekV2", {
        **COMMON,
        **SIZES,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "first_k_dense_replace": 4,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
    }


def _mamba() -> tuple[str, dict[str, Any]]:
    """Recurrent layers: no KV of single tokens at all."""
    return "Mamba", {
        **{key: value for key, value in COMMON.items() if key != "max_position_embeddings"},
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "state_size": 16,
        "expand": 2,
        "conv_kernel": 4,
    }


def _jamba() -> tuple[str, dict[str, Any]]:
    """Layers with Mamba's first kind of state and layers with attention, by turns."""
    return "Jamba", {
        **COMMON,
        **SIZES,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_dt_rank": 16,
    }


def _granite_hybrid() -> tuple[str, dict[str, Any]]:
    """Layers with Mamba's second kind of state and layers with attention, by turns, with experts."""
    return "GraniteMoeHybrid", {
        **COMMON,
        **SIZES,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_n_heads": 16,
        "mamba_d_head": 32,
        "mamba_d_state": 32,
        "mamba_chunk_size": 64,
    }


def _qwen3_next() -> tuple[str, dict[str, Any]]:
    """Three layers with gated delta rules to one with attention, with experts. On CPUs in bfloat16 only.

    A state is as large as the KV of less than 64 tokens, so that vLLM's blocks are not larger than those of others."""
    return "Qwen3Next", {
        **COMMON,
        **SIZES,
        **HEADS,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    }


def _lfm2() -> tuple[str, dict[str, Any]]:
    """Layers with short convolutions, whose state is a few tokens' inputs, and layers with attention, by turns."""
    return "Lfm2", {
        **COMMON,
        **SIZES,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "layer_types": ["conv", "full_attention"] * 2,
        # vLLM reads these, and published models have them.
        "conv_dim": 256,
        "conv_dim_out": 256,
        "block_dim": 256,
        "block_ff_dim": 688,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    }


def _phi3() -> tuple[str, dict[str, Any]]:
    """Rotary factors for short and for long contexts: vLLM takes those for long ones where `max_model_len` is above
    1024."""
    factors = {"short_factor": [1.0] * 16, "long_factor": [1.0 + place / 2 for place in range(16)]}
    return "Phi3", {
        **{key: value for key, value in COMMON.items() if key != "max_position_embeddings"},
        **SIZES,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, **factors},
    }


def _hrm() -> tuple[str, dict[str, Any]]:
    """The tokens of a prompt attend to each other in both directions."""
    return "HrmText", {**COMMON, **SIZES, "num_attention_heads": 8, "head_dim": 32, "num_hidden_layers": 1}


def _qwen2_audio() -> tuple[str, dict[str, Any]]:
    """Full attention, and an encoder of sounds before it."""
    return "Qwen2Audio", {
        "audio_config": {
            "num_mel_bins": MEL_BINS,
            "d_model": 64,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 128,
            # Much of a sound is to arrive: with less, the words around it say the same whatever was heard.
            "initializer_range": 0.5,
        },
        "text_config": {
            **COMMON,
            **SIZES,
            **HEADS,
            "model_type": "qwen2",
            "vocab_size": VOCABULARY + len(AUDIO_TOKENS),
        },
        "audio_token_index": AUDIO_TOKEN,
        "dtype": "float32",
    }


KINDS: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "gemma3": _gemma3,
    "gemma3narrow": _gemma3_narrow,
    "gptoss": _gpt_oss,
    "deepseek": _deepseek,
    "mamba": _mamba,
    "jamba": _jamba,
    "granitehybrid": _granite_hybrid,
    "qwen3next": _qwen3_next,
    "lfm2": _lfm2,
    "phi3": _phi3,
    "hrm": _hrm,
    "qwen2audio": _qwen2_audio,
}
"""By attention: full, sliding window, both, latent, none, some with recurrent layers; and one that hears."""


def make_model(folder: Path, kind: str, seed: int = 0, **changes: Any) -> Path:
    """Write a model and its tokenizer; `changes` replace fields of its configuration. Returns the folder."""
    family, fields = KINDS[kind]()
    hears = family == "Qwen2Audio"
    configuration = f"{family}{'TextConfig' if family == 'Gemma3' else 'Config'}"
    architecture = f"{family}{'ForConditionalGeneration' if hears else 'ForCausalLM'}"
    save_weights(folder, configuration, architecture, fields | changes, seed)
    if hears:
        _name_as_published(folder / "model.safetensors")
    (_audio_processor() if hears else make_tokenizer()).save_pretrained(folder)
    return folder


def _name_as_published(weights: Path) -> None:
    """transformers 5 calls the language model's layers `model.model`, published weights, and so vLLM, `model`."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(weights)
    named = {name.replace(".model.model.", ".model."): tensor for name, tensor in tensors.items()}
    save_file(named, weights, metadata={"format": "pt"})


def _audio_processor() -> Any:
    """What makes mel spectrograms of sounds and places for them in prompts: needs numpy and torch only."""
    import transformers

    tokenizer = copy.deepcopy(make_tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": list(AUDIO_TOKENS)})
    hearing = transformers.WhisperFeatureExtractor(feature_size=MEL_BINS)
    return transformers.Qwen2AudioProcessor(feature_extractor=hearing, tokenizer=tokenizer)


def make_adapter(folder: Path, model: Path, seed: int, rank: int = 4) -> Path:
    """Write a LoRA adapter with random weights for a model made here, in PEFT's format. Returns the folder."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    outputs = {
        "q_proj": config["num_attention_heads"] * config["head_dim"],
        "v_proj": config["num_key_value_heads"] * config["head_dim"],
    }
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out_size in outputs.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = torch.randn(rank, config["hidden_size"], generator=generator)
            tensors[f"{place}.lora_B.weight"] = torch.randn(out_size, rank, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    made = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": sorted(outputs)}
    (folder / "adapter_config.json").write_text(json.dumps(made))
    return folder
