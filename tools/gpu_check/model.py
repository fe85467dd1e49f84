"""Checks e to g: when fetching pays, whether tokens stay the same, and what copies cost a decode loop.

The model is Llama 3 8B's configuration with random weights, from transformers. It is no engine: what it takes for a
prompt is an upper bound of what an engine takes, so the rate from which fetching pays is a lower bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kvclient.engines.device import Staging
from tools.gpu_check.bench import LLAMA, TINY, Machine, Pool, Report, Shape, layers_of, percentile, registered, timed
from tools.gpu_check.copies import under_way

CHUNK_TOKENS = 64
NEW_TOKENS = 64
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16, by words of a card's name (NVIDIA's data sheets; SXM)."""


def make_model(machine: Machine) -> Any:
    """Random weights. Raises ImportError without transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = _shape(machine)
    sizes: dict[str, Any] = (
        {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 512, "num_attention_heads": 8}
        if machine.is_quick
        else {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256, "num_attention_heads": 32}
    )
    configuration = LlamaConfig(
        num_hidden_layers=shape.layers,
        num_key_value_heads=shape.heads,
        head_dim=shape.numbers // 2,
        rope_theta=500000.0,
        max_position_embeddings=65536,
        attn_implementation="sdpa",
        **sizes,
    )
    torch.manual_seed(0)
    with torch.device(machine.device):
        torch.set_default_dtype(shape.dtype)
        try:
            return LlamaForCausalLM(configuration).eval()
        finally:
            torch.set_default_dtype(torch.float32)


def _prefill(model: Any, tokens: torch.Tensor) -> Any:
    with torch.inference_mode():
        return model(input_ids=tokens, use_cache=True, logits_to_keep=1)


def _tokens(machine: Machine, model: Any, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(3, model.config.vocab_size, (1, count), generator=generator).to(machine.device)


def break_even(machine: Machine, report: Report, model: Any) -> None:
    """e: seconds of a prompt, computed and loaded; from which rate on fetching it is quicker."""
    shape = _shape(machine)
    ways: dict[str, Callable[[torch.Tensor], Any]] = {"SDPA": lambda tokens: _prefill(model, tokens)}
    if machine.is_cuda and not machine.is_quick:
        compiled = torch.compile(model, dynamic=False)
        ways["SDPA, torch.compile"] = lambda tokens: _prefill(compiled, tokens)
    for count in (128, 512) if machine.is_quick else (1024, 4096, 16384, 32768):
        tokens = _tokens(machine, model, count)
        took: dict[str, float] = {}
        for name, way in ways.items():
            if "compile" in name and count > 4096:
                continue  # compiling for a length takes longer than the rest of the check
            try:
                way(tokens)
            except RuntimeError as error:
                report.left_out("e", f"{count} tokens, {name}", str(error).splitlines()[0])
                continue
            took[name] = timed(machine, lambda way=way, tokens=tokens: way(tokens), 3)
        name, seconds = min(took.items(), key=lambda item: item[1])
        load_s = _load_s(machine, shape, count)
        size = shape.block_bytes // shape.tokens * count
        rate = size / max(seconds - load_s, 1e-9)
        peak = next((flops for word, flops in PEAK_FLOPS.items() if word in machine.name), None)
        share = {} if peak is None else {"share_of_peak": _flops(model, count) / seconds / peak}
        report.add(
            "e",
            f"{count} tokens by {name}",
            prefill_s=seconds,
            load_s=load_s,
            break_even_gb_s=rate / 1e9,
            break_even_gbit_s=rate * 8 / 1e9,
            **share,
        )


def _flops(model: Any, count: int) -> float:
    """Of a prompt: two for each parameter and token, but the embeddings; and attention's, of which half is masked."""
    configuration = model.config
    used = [one for name, one in model.named_parameters() if "embed" not in name and "lm_head" not in name]
    parameters = sum(one.numel() for one in used)
    attention = 2 * configuration.num_hidden_layers * configuration.num_attention_heads * configuration.head_dim * count
    return float(count * (2 * parameters + attention))


def _load_s(machine: Machine, shape: Shape, count: int) -> float:
    """Of a prompt's chunks out of a registered pool, by one thread."""
    blocks = CHUNK_TOKENS // shape.tokens
    size = shape.block_bytes * blocks
    chunks = -(-count // CHUNK_TOKENS)
    cache = _paged(machine, shape, chunks * blocks)
    pool = Pool(chunks * size)
    pool.touch()
    view = memoryview(pool.clients)
    with registered(machine, [view]) as memory:
        layers = layers_of(cache, Staging(machine.device, memory=memory))

        def load() -> None:
            for chunk in range(chunks):
                ids = list(range(chunk * blocks, (chunk + 1) * blocks))
                layers.scatter(view[chunk * size : (chunk + 1) * size], blocks, 0, ids)

        load()
        seconds = timed(machine, load, 3)
    pool.close()
    return seconds


def _shape(machine: Machine) -> Shape:
    """Of the model's KV."""
    return replace(TINY if machine.is_quick else LLAMA, dtype=_dtype(machine))


def _dtype(machine: Machine) -> torch.dtype:
    return torch.bfloat16 if machine.is_cuda else torch.float32


def _paged(machine: Machine, shape: Shape, blocks: int) -> list[torch.Tensor]:
    size = (blocks, shape.heads, shape.tokens, shape.numbers)
    return [torch.zeros(size, dtype=shape.dtype, device=machine.device) for _ in range(shape.layers)]


def same_tokens(machine: Machine, report: Report, model: Any) -> None:
    """f: tokens behind a prompt whose KV went through the pool, and behind the same KV that stayed."""
    for beyond in (0, 1, 63):
        count = 4 * CHUNK_TOKENS + beyond
        prompt = _tokens(machine, model, count + 1)
        head, rest = prompt[:, : 4 * CHUNK_TOKENS], prompt[:, 4 * CHUNK_TOKENS :]
        kept = _prefill(model, head).past_key_values
        through = _through_pool(machine, model, kept)
        said = [_greedy(model, cache, rest) for cache in (kept, through)]
        equal = sum(one == other for one, other in zip(*said, strict=True))
        report.add("f", f"{beyond} tokens beyond the chunks", equal=equal, of=NEW_TOKENS, ok=equal == NEW_TOKENS)


def _through_pool(machine: Machine, model: Any, kept: Any) -> Any:
    """The KV of a cache, saved from one paged cache and loaded into other blocks of another one."""
    from transformers import DynamicCache

    shape = _shape(machine)
    blocks = 4 * CHUNK_TOKENS // shape.tokens
    pages, into = _paged(machine, shape, blocks), _paged(machine, shape, blocks + 3)
    for page, layer in zip(pages, kept.layers, strict=True):
        both = torch.cat((layer.keys, layer.values), dim=-1)[0]  # (heads, tokens, numbers)
        page.copy_(both.unflatten(1, (blocks, shape.tokens)).transpose(0, 1))
    source, target = layers_of(pages), layers_of(into)
    chunk = bytearray(source.chunk_bytes(blocks))
    source.gather(list(range(blocks)), chunk, source.mark())
    places = list(range(blocks + 2, 2, -1))
    target.scatter(bytes(chunk), blocks, 0, places, after=target.mark())
    made = DynamicCache(config=model.config)
    for number, page in enumerate(into):
        both = page[places].transpose(0, 1).flatten(1, 2)[None]
        keys, values = both.chunk(2, dim=-1)
        made.update(keys.contiguous(), values.contiguous(), number)
    return made


def _greedy(model: Any, cache: Any, rest: torch.Tensor) -> list[int]:
    """Tokens behind a cache and the rest of its prompt."""
    found = []
    tokens = rest
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            found.append(int(tokens))
    return found


def decode_steps(machine: Machine, report: Report, model: Any) -> None:
    """g: a decode loop's steps alone, with loads, and with loads and saves under way."""
    steps = 20 if machine.is_quick else 200
    shape = _shape(machine)
    pool = Pool(4 * shape.block_bytes)
    region = Pool(4 * shape.block_bytes)
    pool.touch()
    with registered(machine, [memoryview(pool.clients), memoryview(region.agents)]) as memory:
        for name, loads, saves in (("alone", False, False), ("loads", True, False), ("loads and saves", True, True)):
            with under_way(machine, memory, pool, region, loads=loads, saves=saves) as copies:
                took = _steps(machine, model, steps)
            report.add(
                "g",
                f"decode steps, {name}",
                p50_ms=percentile(took, 0.5) * 1e3,
                p99_ms=percentile(took, 0.99) * 1e3,
                copies=copies.copies_count,
            )
    pool.close()
    region.close()


def _steps(machine: Machine, model: Any, steps: int) -> list[float]:
    prompt = _tokens(machine, model, 256)
    cache = _prefill(model, prompt).past_key_values
    tokens, took = prompt[:, -1:], []
    with torch.inference_mode():
        for _ in range(steps):
            start = time.perf_counter()
            logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            machine.synchronize()
            took.append(time.perf_counter() - start)
    return took
