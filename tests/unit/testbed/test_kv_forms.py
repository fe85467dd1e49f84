"""`kvcast bench codec`: the model in numpy goes on where it stopped, and a form that loses nothing changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bmv2_testbed.bench.kv_forms import FormsPlan, forms_table, run_forms
from bmv2_testbed.bench.kv_quality import Quality, load_model
from bmv2_testbed.bench.small_llama import LlamaShape, SmallLlama
from bmv2_testbed.errors import TestbedError

SHAPE = LlamaShape(vocabulary=40, hidden=32, layers=3, heads=4, kv_heads=2, head_numbers=16, feed_forward=48)


def weights(shape: LlamaShape = SHAPE) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)

    def made(*sizes: int) -> np.ndarray:
        return (random.standard_normal(sizes) / sizes[-1] ** 0.5).astype(np.float32)

    wide, narrow = shape.heads * shape.head_numbers, shape.kv_heads * shape.head_numbers
    found = {"embedding.weight": made(shape.vocabulary, shape.hidden), "final_norm": np.ones(shape.hidden, np.float32)}
    shapes = {
        "query": (wide, shape.hidden),
        "key": (narrow, shape.hidden),
        "value": (narrow, shape.hidden),
        "output": (shape.hidden, wide),
        "gate": (shape.feed_forward, shape.hidden),
        "up": (shape.feed_forward, shape.hidden),
        "down": (shape.hidden, shape.feed_forward),
    }
    for layer in range(shape.layers):
        found |= {f"layers.{layer}.{name}.weight": made(*sizes) for name, sizes in shapes.items()}
        found |= {f"layers.{layer}.{name}_norm": np.ones(shape.hidden, np.float32) for name in ("attention", "feed")}
    return found


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    held_out = np.random.default_rng(3).integers(0, SHAPE.vocabulary, 600).astype(np.int32)
    path = tmp_path / "model.npz"
    np.savez(path, shape=SHAPE.to_array(), held_out=held_out, **weights())
    return path


def test_on_its_own_kv_the_model_says_what_it_says_of_the_whole() -> None:
    model = SmallLlama(SHAPE, weights())
    tokens = np.random.default_rng(1).integers(0, SHAPE.vocabulary, 30).astype(np.int32)
    whole, kv = model.run(tokens, model.no_past())
    _, past = model.run(tokens[:20], model.no_past())
    rest, _ = model.run(tokens[20:], past)
    assert kv.shape == (SHAPE.layers, 2, 30, SHAPE.kv_heads, SHAPE.head_numbers)
    assert np.allclose(rest, whole[20:], atol=1e-4)
    assert not np.allclose(rest, model.run(tokens[20:], past[:, ::-1])[0], atol=1e-2), "K is not V"


def test_figures_of_all_forms(model_file: Path) -> None:
    figures = {one.name: one for one in run_forms(FormsPlan(model_file, 2, 1), lambda _: None, lambda _: None)}
    exact, lossless = figures["bf16"], figures["lossless"]
    assert lossless.quality == Quality(exact.quality.perplexity, 0.0, 1.0)
    assert lossless.ratio > 1.2
    assert figures["lossy, coarse"].ratio > figures["lossy, fine"].ratio > 2
    assert figures["lossy, coarse"].quality.divergence > figures["lossy, fine"].quality.divergence > 0
    assert forms_table(list(figures.values())).row_count == len(figures) == 5
    assert lossless.to_json().items() >= {"name": "lossless", "divergence": 0.0, "same_first": 1.0}.items()


def test_what_is_no_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="make one in some minutes: "):
        load_model(tmp_path / "nothing.npz")
    other = tmp_path / "other.npz"
    np.savez(other, a=np.zeros(3))
    with pytest.raises(TestbedError, match="is not a model of tools/train_kv_model"):
        load_model(other)
