"""Documents behind others, with a small model: K turned, tokens computed again; beside KV that is computed in full."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from bmv2_testbed.bench.small_llama import Floats, LlamaShape, SmallLlama
from kvclient.engines.blend.choice import deviation, most_deviating
from kvclient.engines.blend.rotation import turned
from tests.unit.testbed.test_kv_forms import weights

SHAPE = LlamaShape(vocabulary=40, hidden=32, layers=3, heads=4, kv_heads=2, head_numbers=64, feed_forward=48)


def blended(model: SmallLlama, tokens: npt.NDArray[np.int32], reused: Floats, share: float) -> Floats:
    """KV of a prompt as an engine makes it of reused KV: all tokens on the first layer, a share of them behind it."""
    kv = reused.copy()
    positions = np.arange(len(tokens))
    hidden = model.embedded(tokens)
    query, kv[0] = model.own(0, hidden, positions)
    hidden = model.mixed(0, hidden, query, kv[0], positions)
    _, fresh = model.own(1, hidden, positions)
    chosen = most_deviating(deviation(fresh, reused[1]), share)
    kv[1], hidden = fresh, hidden[chosen]
    for layer in range(1, model.shape.layers):
        query, kv[layer][:, chosen] = model.own(layer, hidden, chosen)
        hidden = model.mixed(layer, hidden, query, kv[layer], chosen)
    return kv


def test_the_more_tokens_are_computed_again_the_nearer_is_kv_to_that_computed_in_full() -> None:
    model = SmallLlama(SHAPE, weights(SHAPE))
    documents = np.random.default_rng(2).integers(0, SHAPE.vocabulary, (3, 24)).astype(np.int32)
    _, whole = model.run(documents.reshape(-1), model.no_past())
    alone = [model.run(one, model.no_past())[1] for one in documents]
    for place, kv in enumerate(alone):
        kv[:, 0] = turned(kv[:, 0], 24 * place, SHAPE.ROPE_BASE)
    reused = np.concatenate(alone, axis=2)
    assert np.allclose(reused[:, :, :24], whole[:, :, :24], atol=1e-5), "a prefix is what it is alone"
    errors = [
        float(np.abs(blended(model, documents.reshape(-1), reused, share) - whole).sum()) for share in (0.15, 0.5, 1)
    ]
    assert np.abs(reused - whole).sum() > errors[0] > errors[1] > errors[2]
    assert np.allclose(blended(model, documents.reshape(-1), reused, 1.0), whole, atol=1e-5)


def test_k_turned_is_k_computed_there() -> None:
    model = SmallLlama(SHAPE, weights(SHAPE))
    tokens = np.random.default_rng(1).integers(0, SHAPE.vocabulary, 40).astype(np.int32)
    _, alone = model.run(tokens[17:], model.no_past())
    _, whole = model.run(tokens, model.no_past())
    keys = turned(alone[0, 0], 17, SHAPE.ROPE_BASE)
    assert np.allclose(keys, whole[0, 0, 17:], atol=1e-5), "K of the first layer is of the token and its place alone"
    assert not np.allclose(alone[0, 0], whole[0, 0, 17:], atol=1e-2)
    assert np.allclose(turned(keys, -17, SHAPE.ROPE_BASE), alone[0, 0], atol=1e-5)
    with pytest.raises(ValueError, match="RoPE turns pairs"):
        turned(np.zeros((2, 3), np.float32), 1)


def test_the_tokens_that_deviate_most_are_chosen() -> None:
    fresh, reused = np.zeros((2, 5, 2, 4), np.float32), np.zeros((2, 5, 2, 4), np.float32)
    reused[0, 3], reused[1, 1] = 2.0, 1.0
    deviations = deviation(fresh, reused)
    assert deviations.tolist() == [0, 8, 0, 32, 0]
    assert most_deviating(deviations, 0.2).tolist() == [3]
    assert most_deviating(deviations, 0.4).tolist() == [1, 3]
    assert most_deviating(deviations, 0.41).tolist() == [0, 1, 3]
    assert most_deviating(deviations, 0.0).tolist() == []
    assert most_deviating(deviations, 1.0).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        most_deviating(deviations, 1.1)
    with pytest.raises(ValueError, match="beside one of"):
        deviation(fresh, reused[:, :4])
