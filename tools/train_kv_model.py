"""Train a small language model whose KV `kvcast bench codec` measures: minutes on two cores, nothing is downloaded.

    .venv-vllm/bin/python tools/train_kv_model.py out/kv_model.npz

A Llama-like model (RMS norm, RoPE, SwiGLU, tied embeddings) reads the sources of Python's standard library, in tokens
of a byte-level BPE that is trained on the same files. One file in eight is held out: its tokens are stored beside the
weights, as what quality is measured on. `bmv2_testbed.bench.small_llama` runs the model with numpy alone.
"""

from __future__ import annotations

import argparse
import glob
import math
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from bmv2_testbed.bench.small_llama import LlamaShape

SHAPE = LlamaShape(vocabulary=1024, hidden=128, layers=4, heads=2, kv_heads=2, head_numbers=64, feed_forward=352)
HELD_OUT_EVERY = 8
HELD_OUT_TOKENS = 65_536
WINDOW_TOKENS = 256
BATCH = 8
LEARNING_RATE = 3e-3
SAVE_EVERY = 100
"""Steps between two saves: a training that is ended early leaves the last one."""


class Layer(nn.Module):
    """Attention and feed-forward of one layer, each behind a norm."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        wide, narrow = shape.heads * shape.head_numbers, shape.kv_heads * shape.head_numbers
        self.shape = shape
        self.attention_norm = nn.Parameter(torch.ones(shape.hidden))
        self.query = nn.Linear(shape.hidden, wide, bias=False)
        self.key = nn.Linear(shape.hidden, narrow, bias=False)
        self.value = nn.Linear(shape.hidden, narrow, bias=False)
        self.output = nn.Linear(wide, shape.hidden, bias=False)
        self.feed_norm = nn.Parameter(torch.ones(shape.hidden))
        self.gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """`hidden`: (batch, tokens, hidden)."""
        shape = self.shape
        batch, tokens, _ = hidden.shape
        normed = normalised(hidden, self.attention_norm)
        query, key, value = (
            part(normed).view(batch, tokens, -1, shape.head_numbers).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query, key = (rotated(part, cosines, sines) for part in (query, key))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.output(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        normed = normalised(hidden, self.feed_norm)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.final_norm = nn.Parameter(torch.ones(shape.hidden))
        angles = torch.from_numpy(shape.angles(np.arange(WINDOW_TOKENS)))
        self.cosines, self.sines = angles.cos(), angles.sin()
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """`tokens`: (batch, WINDOW_TOKENS)."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, self.cosines, self.sines)
        return normalised(hidden, self.final_norm) @ self.embedding.weight.T


def normalised(hidden: Tensor, weight: Tensor) -> Tensor:
    """RMS norm."""
    return functional.rms_norm(hidden, weight.shape, weight, LlamaShape.NORM_EPSILON)


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """RoPE: number i and number i + half of a head turn together."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def tokens_of_library() -> tuple[np.ndarray, np.ndarray]:
    """(tokens to learn from, tokens held out)."""
    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "**", "*.py"), recursive=True))
    files = [file for file in files if "site-packages" not in file and "dist-packages" not in file]
    texts = [Path(file).read_text("utf-8", errors="replace") for file in files]
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SHAPE.vocabulary, initial_alphabet=alphabet, show_progress=False)
    learned = [text for place, text in enumerate(texts) if place % HELD_OUT_EVERY]
    tokenizer.train_from_iterator(learned, trainer)
    held_out = texts[::HELD_OUT_EVERY]
    parts = [
        np.concatenate([np.asarray(one.ids, np.int64) for one in tokenizer.encode_batch(part)])
        for part in (learned, held_out)
    ]
    return parts[0], parts[1][:HELD_OUT_TOKENS]


def train(model: Model, tokens: Tensor, steps: int, save: Callable[[], None]) -> None:
    """AdamW with a short warm-up and a cosine to a tenth; `save` comes now and then and at the end."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        share = min(1.0, (step + 1) / 30) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * share
        starts = torch.randint(len(tokens) - WINDOW_TOKENS - 1, (BATCH,))
        windows = torch.stack([tokens[start : start + WINDOW_TOKENS + 1] for start in starts])
        logits = model(windows[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, SHAPE.vocabulary), windows[:, 1:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % SAVE_EVERY == SAVE_EVERY - 1 or step == steps - 1:
            print(f"step {step + 1}: {loss.item():.3f} nats a token", flush=True)
            save()


def main() -> None:
    """Train, and write weights and held-out tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    learned, held_out = tokens_of_library()
    print(f"{len(learned)} tokens to learn from, {len(held_out)} held out", flush=True)
    model = Model(SHAPE)
    args.file.parent.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        weights = {name: one.detach().numpy() for name, one in model.named_parameters()}
        np.savez_compressed(args.file, shape=SHAPE.to_array(), held_out=held_out.astype(np.int32), **weights)

    train(model, torch.from_numpy(learned), args.steps, save)
    print(f"{args.file}: {args.file.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
