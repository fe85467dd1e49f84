"""Published models by name.

Every line restates the model's own `config.json` on its publisher's model page (num_hidden_layers,
num_attention_heads, num_key_value_heads, head_dim or hidden_size / num_attention_heads, kv_lora_rank,
qk_rope_head_dim, sliding_window and which layers use it); parameters as in the paper or model card named next to it.
"""

from __future__ import annotations

import difflib
from typing import Final

from planner.errors import PlanError
from planner.hardware.model import Attention, Model

_B = 1e9
_LLAMA2 = "Llama 2 (arXiv 2307.09288, table 1), config.json of meta-llama/Llama-2-*"
_LLAMA3 = "Llama 3 (arXiv 2407.21783, table 3), config.json of meta-llama/Llama-3*"
_QWEN25 = "Qwen2.5 (arXiv 2412.15115, table 1), config.json of Qwen/Qwen2.5-*"
_QWEN3 = "Qwen3 (arXiv 2505.09388, tables 1 and 2), config.json of Qwen/Qwen3-*"
_MISTRAL = "config.json of mistralai/*"
_DEEPSEEK2 = "DeepSeek-V2 (arXiv 2405.04434, section 3.1.2), config.json of deepseek-ai/DeepSeek-V2*"
_DEEPSEEK3 = "DeepSeek-V3 (arXiv 2412.19437, section 4.2), config.json of deepseek-ai/DeepSeek-V3"
_GPT_OSS = "gpt-oss (arXiv 2508.10925, section 2), config.json of openai/gpt-oss-*"


def _dense(name: str, layers: int, heads: int, kv_heads: int, head_dim: int, billions: float, source: str) -> Model:
    return Model(name, layers, heads, kv_heads, head_dim, billions * _B, billions * _B, source=source)


def _sparse(
    name: str, layers: int, heads: int, kv_heads: int, head_dim: int, billions: float, active: float, source: str
) -> Model:
    return Model(name, layers, heads, kv_heads, head_dim, billions * _B, active * _B, source=source)


def _mla(name: str, layers: int, heads: int, billions: float, active: float, source: str) -> Model:
    """kv_lora_rank 512 and qk_rope_head_dim 64, in all of them."""
    return Model(name, layers, heads, 1, 512 + 64, billions * _B, active * _B, Attention.MLA, source=source)


_ALL: Final = (
    _dense("llama-2-7b", 32, 32, 32, 128, 6.74, _LLAMA2),
    _dense("llama-2-13b", 40, 40, 40, 128, 13.0, _LLAMA2),
    _dense("llama-2-70b", 80, 64, 8, 128, 69.0, _LLAMA2),
    _dense("llama-3-8b", 32, 32, 8, 128, 8.03, _LLAMA3),
    _dense("llama-3-70b", 80, 64, 8, 128, 70.6, _LLAMA3),
    _dense("llama-3-405b", 126, 128, 8, 128, 405.9, _LLAMA3),
    _dense("llama-3.2-1b", 16, 32, 8, 64, 1.24, _LLAMA3),
    _dense("llama-3.2-3b", 28, 24, 8, 128, 3.21, _LLAMA3),
    _dense("qwen2.5-7b", 28, 28, 4, 128, 7.62, _QWEN25),
    _dense("qwen2.5-14b", 48, 40, 8, 128, 14.8, _QWEN25),
    _dense("qwen2.5-32b", 64, 40, 8, 128, 32.8, _QWEN25),
    _dense("qwen2.5-72b", 80, 64, 8, 128, 72.7, _QWEN25),
    _dense("qwen3-8b", 36, 32, 8, 128, 8.2, _QWEN3),
    _dense("qwen3-14b", 40, 40, 8, 128, 14.8, _QWEN3),
    _dense("qwen3-32b", 64, 64, 8, 128, 32.8, _QWEN3),
    _sparse("qwen3-30b-a3b", 48, 32, 4, 128, 30.5, 3.3, _QWEN3),
    _sparse("qwen3-235b-a22b", 94, 64, 4, 128, 235, 22, _QWEN3),
    _dense("mistral-7b", 32, 32, 8, 128, 7.25, _MISTRAL + " (Mistral-7B-v0.3: no sliding window)"),
    _dense("mistral-nemo-12b", 40, 32, 8, 128, 12.2, _MISTRAL),
    _dense("mistral-small-24b", 40, 32, 8, 128, 23.6, _MISTRAL),
    _dense("mistral-large-123b", 88, 96, 8, 128, 123, _MISTRAL),
    _sparse("mixtral-8x7b", 32, 32, 8, 128, 46.7, 12.9, "Mixtral (arXiv 2401.04088, table 1), " + _MISTRAL),
    _sparse("mixtral-8x22b", 56, 48, 8, 128, 141, 39, _MISTRAL),
    _mla("deepseek-v2", 60, 128, 236, 21, _DEEPSEEK2),
    _mla("deepseek-v2-lite", 27, 16, 15.7, 2.4, _DEEPSEEK2),
    _mla("deepseek-v3", 61, 128, 671, 37, _DEEPSEEK3),
    _mla("kimi-k2", 61, 64, 1040, 32.6, "Kimi K2 (arXiv 2507.20534, table 2), config.json of moonshotai/Kimi-K2-*"),
    Model(
        "gpt-oss-20b", 24, 64, 8, 64, 20.9 * _B, 3.6 * _B, sliding_layers=12, window=128, source=_GPT_OSS
    ),
    Model(
        "gpt-oss-120b", 36, 64, 8, 64, 116.8 * _B, 5.1 * _B, sliding_layers=18, window=128, source=_GPT_OSS
    ),
)  # fmt: skip
MODELS: Final = {model.name: model for model in _ALL}
_ALIASES: Final = {"deepseek-r1": "deepseek-v3", "llama-3.1-8b": "llama-3-8b", "llama-3.1-70b": "llama-3-70b",
                   "llama-3.3-70b": "llama-3-70b", "llama-3.1-405b": "llama-3-405b"}  # fmt: skip
"""Same shape under another name."""


def find_model(name: str, otherwise: str = "describe it by --layers, --kv-heads, --head-dim and --parameters") -> Model:
    """The published model of that name (or a name that contains all of it, if only one does). Raises PlanError, which
    says `otherwise`, too: what else the user may do."""
    wanted = name.lower().rpartition("/")[2].removesuffix("-instruct")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted in MODELS:
        return MODELS[wanted]
    inside = [known for known in MODELS if wanted and wanted in known]
    if len(inside) == 1:
        return MODELS[inside[0]]
    near = inside or difflib.get_close_matches(wanted, MODELS, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else f"known are {', '.join(MODELS)}; "
    raise PlanError(f"unknown model '{name}': {hint}or {otherwise}")
