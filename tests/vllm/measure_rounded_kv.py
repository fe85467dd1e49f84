"""What a real vLLM engine says on KV that was rounded: tokens and logits at each rate, beside those on exact KV.

    .venv-vllm/bin/python tools/train_kv_model.py out/kv_model.npz
    .venv-vllm/bin/python -m tests.vllm.measure_rounded_kv out/kv_model.npz [--windows 16]

The model is the small one that was trained (4 layers, 2 heads of 64 numbers), in vLLM on the CPU, in bfloat16. The
engine computes a context and saves its KV; each chunk in the pool is then replaced by what comes back from a form; and
the engine loads those and goes on with text that the model never saw.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from bmv2_testbed import client
from bmv2_testbed.bench.kv_quality import SCORED_TOKENS, Tokens, load_model, quality, windows
from bmv2_testbed.bench.small_llama import Floats, LlamaShape
from bmv2_testbed.engines.engine_client import Engine, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, launching
from bmv2_testbed.engines.small_models import COMMON, make_tokenizer
from bmv2_testbed.spec import TestbedSpec
from kvchunk.kv_layout import KvLayout
from kvclient.client import AgentClient, PutOutcome
from kvcodec import lossy, planes
from kvcodec.native import native_loops

BLOCK_TOKENS, CHUNK_TOKENS, CONTEXT_TOKENS = 32, 64, 192
NAMES: Final = {
    "attention_norm": "input_layernorm.weight",
    "query.weight": "self_attn.q_proj.weight",
    "key.weight": "self_attn.k_proj.weight",
    "value.weight": "self_attn.v_proj.weight",
    "output.weight": "self_attn.o_proj.weight",
    "feed_norm": "post_attention_layernorm.weight",
    "gate.weight": "mlp.gate_proj.weight",
    "up.weight": "mlp.up_proj.weight",
    "down.weight": "mlp.down_proj.weight",
}
"""transformers' names of a layer's weights, by the training's."""
NO_SAVE: Final = {"kvcast.no_save": True}
Way = Callable[[memoryview, KvLayout], tuple[int, bytes]]
"""(bytes it is stored in, what comes back) of a chunk."""


def write_model(trained: Path, folder: Path) -> None:
    """The trained model as transformers and vLLM read one."""
    import torch
    import transformers

    with np.load(trained, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    shape = LlamaShape.from_array(arrays.pop("shape"))
    arrays.pop("held_out")
    config = transformers.LlamaConfig(
        **COMMON
        | {"vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "intermediate_size": shape.feed_forward}
        | {"num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "head_dim": shape.head_numbers}
        | {"num_key_value_heads": shape.kv_heads, "rms_norm_eps": shape.NORM_EPSILON, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": shape.ROPE_BASE}}
    )
    named = {"model.embed_tokens.weight": arrays.pop("embedding.weight"), "model.norm.weight": arrays.pop("final_norm")}
    for name, numbers in arrays.items():
        _, layer, rest = name.split(".", 2)
        named[f"model.layers.{layer}.{NAMES[rest]}"] = numbers
    model = transformers.LlamaForCausalLM(config)
    missing, unknown = model.load_state_dict({name: torch.from_numpy(one) for name, one in named.items()}, strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing
    assert not unknown, unknown
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def ways() -> dict[str, Way]:
    """Each form at each rate."""
    loops = native_loops()

    def lossless(chunk: memoryview, layout: KvLayout) -> tuple[int, bytes]:
        stored = planes.encode(chunk, loops, 2)
        back = bytearray(chunk.nbytes)
        planes.decode(memoryview(stored or b""), memoryview(back), loops)
        return len(stored or b""), bytes(back)

    def rounded(level: lossy.Level) -> Way:
        def way(chunk: memoryview, layout: KvLayout) -> tuple[int, bytes]:
            stored = lossy.encode(chunk, layout, loops, level)
            assert stored is not None
            back = bytearray(chunk.nbytes)
            lossy.decode(memoryview(stored), memoryview(back), loops)
            return len(stored), bytes(back)

        return way

    return {"planes": lossless} | {f"lossy, {name}": rounded(level) for name, level in lossy.LEVELS.items()}


def scores_of(engine: Engine, context: Tokens, following: Tokens, vocabulary: int) -> Floats:
    """Logarithms of the next token's probabilities behind the context and each of SCORED_TOKENS tokens more."""
    prompts = [[*context.tolist(), *following[: count + 1].tolist()] for count in range(SCORED_TOKENS)]
    requests = [
        {"id": f"r{at}", "tokens": one, "max_tokens": 1, "scores": vocabulary, "kv_transfer_params": NO_SAVE}
        for at, one in enumerate(prompts)
    ]
    answers = engine.ask("generate", requests=requests)
    found = np.full((SCORED_TOKENS, vocabulary), -100.0)
    for at in range(SCORED_TOKENS):
        answer = answers[f"r{at}"]
        assert answer["cached_tokens"] == CONTEXT_TOKENS, answer["cached_tokens"]
        for token, score in answer["scores"][0].items():
            found[at, int(token)] = score
    scores: Floats = found
    return scores


def answer_of(engine: Engine, context: Tokens, following: Tokens) -> tuple[int, ...]:
    """The engine's own answer."""
    prompt = [*context.tolist(), int(following[0])]
    (result,) = engine.generate([prompt], max_tokens=SCORED_TOKENS, kv_transfer_params=NO_SAVE)
    assert result is not None
    return result.tokens


def replaced(agent: AgentClient, keys: Sequence[bytes], contents: Sequence[bytes]) -> None:
    """The pool has these bytes under these names from now on."""
    assert all(agent.drop(keys)), "a chunk is in use"
    for at, (key, content) in enumerate(zip(keys, contents, strict=True)):
        put = agent.put(key, keys[at - 1] if at else None, content, position=at)
        assert put is PutOutcome.STORED, put


def same_until(said: Sequence[int], exact: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    return next((at for at, (one, other) in enumerate(zip(said, exact, strict=True)) if one != other), len(exact))


def measure(engine: Engine, agent: AgentClient, model: Path, count: int) -> list[dict[str, Any]]:
    """Of exact KV and each form: ratio, perplexity, divergence, first tokens and answers that are the same."""
    shape, made = load_model(model)[0].shape, list(windows(load_model(model)[1], count, CONTEXT_TOKENS))
    sizes = {"l": shape.layers, "b": CHUNK_TOKENS // BLOCK_TOKENS, "h": shape.kv_heads, "p": 2, "t": BLOCK_TOKENS}
    layout = KvLayout("bf16", (*sizes.items(), ("d", shape.head_numbers)), keys_across=True)
    every = ways()
    scores: dict[str, list[Floats]] = {name: [] for name in ("exact", *every)}
    lengths: dict[str, list[int]] = {name: [] for name in every}
    stored: dict[str, int] = dict.fromkeys(every, 0)
    raw = 0
    for context, following in made:
        engine.generate([context.tolist()], max_tokens=1)
        engine.ask("run_until_idle")
        keys = [key for key, _ in engine.where(context.tolist())]
        with agent.fetch(keys, deadline_s=60) as got:
            exact = [bytes(view) for view in got.views]
        raw += sum(map(len, exact))
        scores["exact"].append(scores_of(engine, context, following, shape.vocabulary))
        said = answer_of(engine, context, following)
        for name, way in every.items():
            coded = [way(memoryview(one), layout) for one in exact]
            stored[name] += sum(size for size, _ in coded)
            replaced(agent, keys, [back for _, back in coded])
            scores[name].append(scores_of(engine, context, following, shape.vocabulary))
            lengths[name].append(same_until(answer_of(engine, context, following), said))
    rows = []
    for name, mine in scores.items():
        found = quality(mine, scores["exact"], [following for _, following in made])
        rows.append(
            {
                "form": name,
                "ratio": raw / stored[name] if name in stored else 1.0,
                "perplexity": found.perplexity,
                "divergence": found.divergence,
                "same_first": found.same_first,
                "same_answer_tokens": float(np.mean(lengths[name])) if name in lengths else float(SCORED_TOKENS),
            }
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=16)
    args = parser.parse_args()
    spec = TestbedSpec(hosts=2, pool_bytes=64 << 20)
    with tempfile.TemporaryDirectory(prefix="kvcast-rounded-") as made, client.running(spec) as testbed:
        folder = Path(made)
        write_model(args.model, folder / "model")
        socket = str(testbed.directory / "h0.sock")
        settings = {"kv_form": "lossy", "gate": "off", "load_deadline_s": 300, "lookup_timeout_s": 300}
        arguments = engine_arguments(
            folder / "model",
            socket,
            chunk_tokens=CHUNK_TOKENS,
            settings={**settings, "lookup_wait_s": 1, "answer_timeout_s": 300},
            block_size=BLOCK_TOKENS,
            max_model_len=1024,
            dtype="bfloat16",
            max_logprobs=-1,
            enable_prefix_caching=False,
        )
        with (
            launching(folder, ONE_THREAD) as launcher,
            running(launcher, arguments, folder) as engine,
            AgentClient(socket) as agent,
        ):
            for row in measure(engine, agent, args.model, args.windows):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
