"""A small Llama with random weights, made on the spot: nothing is downloaded."""

from __future__ import annotations

import functools
import glob
import json
import os
import sysconfig
from pathlib import Path
from typing import Any

VOCABULARY = 4096
SPECIAL_TOKENS = ("<s>", "</s>", "<pad>")
CONTEXT_TOKENS = 16384
TRAINING_FILES = 120
"""Sources of the standard library that the tokenizer is trained on."""

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT_TOKENS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "initializer_range": 0.08,
}
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}


def kv_token_bytes(model: Path) -> int:
    """Of a token's KV in float32, in a model whose layers all have full attention."""
    fields = json.loads((model / "config.json").read_text())
    return int(2 * fields["num_hidden_layers"] * fields["num_key_value_heads"] * fields["head_dim"]) * 4


def make_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write the Llama and its tokenizer; `changes` replace fields of its configuration. Returns the folder."""
    save_weights(folder, "LlamaConfig", "LlamaForCausalLM", {**COMMON, **SIZES, **HEADS, **changes}, seed)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_weights(folder: Path, configuration: str, architecture: str, fields: dict[str, Any], seed: int) -> None:
    """Write random weights of a model; its classes are named as in transformers."""
    import torch
    import transformers

    config = getattr(transformers, configuration)(**fields)
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config).to(torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)


@functools.cache
def make_tokenizer() -> Any:
    """Trained on the standard library's sources."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py")))[:TRAINING_FILES]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(files, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=CONTEXT_TOKENS,
    )
