"""`kvcast bench blend`: KV that is turned and computed again, against KV computed in full; documents through agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from bmv2_testbed.bench.blend import BlendPlan, BlendReport, Carried, blend_table, carry_between, run_blend
from bmv2_testbed.bench.small_llama import LlamaShape, SmallLlama
from bmv2_testbed.errors import TestbedError
from hostagent.tree import LEAF_BYTES, PIECE_BYTES
from kvchunk.ids import ChunkKey
from kvchunk.kv_layout import KvLayout
from kvclient.engines.blend.choice import deviation, most_deviating
from kvclient.engines.blend.rotation import turned
from tests.unit.hostagent.agent_harness import cluster
from tests.unit.testbed.test_kv_forms import weights

SHAPE = LlamaShape(vocabulary=40, hidden=32, layers=3, heads=4, kv_heads=2, head_numbers=64, feed_forward=48)
"""A layer of a document is one piece of a chunk."""
WINDOWS = 2


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    held_out = np.random.default_rng(3).integers(0, SHAPE.vocabulary, 600).astype(np.int32)
    path = tmp_path / "model.npz"
    np.savez(path, shape=SHAPE.to_array(), held_out=held_out, **weights(SHAPE))
    return path


def carry(layout: KvLayout, contents: Mapping[ChunkKey, bytes], keys: Sequence[ChunkKey], label: str) -> Carried:
    """Through two agents of this process."""
    assert list(contents) != list(keys), "put in another order than it is fetched in"
    with cluster(2) as two:

        def told() -> None:
            pool = two.agents[0].core.pool
            for key in contents:
                chunk = pool.find(key)
                assert chunk is not None
                assert chunk.namespace == label
                two.publish(int.from_bytes(key, "big"), 0, namespace=label)

        return carry_between(two.client(0), two.client(1), layout, contents, keys, label, told)


@pytest.fixture
def report(model_file: Path) -> BlendReport:
    return run_blend(BlendPlan(model_file, WINDOWS), carry, lambda _: None, lambda _: None)


def test_all_tokens_computed_again_are_kv_computed_in_full(report: BlendReport) -> None:
    by_share = {one.share: one for one in report.figures}
    everything = by_share[1.0]
    assert everything.kv_error < 1e-5
    assert everything.quality.divergence < 1e-9
    assert (everything.quality.same_first, everything.computed) == (1.0, 1.0)
    assert everything.quality.perplexity == pytest.approx(report.full_perplexity, rel=1e-6)
    assert by_share[0.0].kv_error > 0.01, "a document behind another is not what it is alone"
    assert by_share[0.0].quality.divergence > by_share[0.15].quality.divergence > everything.quality.divergence
    assert by_share[0.0].computed == 0.0
    assert report.unturned.quality.divergence > by_share[0.0].quality.divergence, "turning K brings it nearer"
    assert by_share[0.15].computed == pytest.approx((1 + 2 * 0.15) / 3)
    written = report.to_json()
    assert [one["perplexity"] for one in written["figures"]] == [one.quality.perplexity for one in report.figures]
    assert written["unturned"]["divergence"] == report.unturned.quality.divergence


def test_a_document_that_is_a_prefix_is_what_it_is_alone_and_less_crosses_without_a_layer(report: BlendReport) -> None:
    assert report.prefix_error < 1e-5, "float32, summed in another order where the batch has another shape"
    assert report.documents == 3 * WINDOWS
    assert report.whole_bytes == report.documents * SHAPE.layers * PIECE_BYTES
    leaves_bytes = SHAPE.layers * LEAF_BYTES
    assert report.later_bytes == report.documents * ((SHAPE.layers - 1) * PIECE_BYTES + leaves_bytes)
    table = blend_table(report)
    assert table.row_count == len(report.figures) + 1


def test_other_bytes_than_were_put_are_an_error(model_file: Path) -> None:
    def lying(layout: KvLayout, contents: Mapping[ChunkKey, bytes], keys: Sequence[ChunkKey], _: str) -> Carried:
        whole = [contents[key] for key in keys]
        whole[1] = whole[0]
        return Carried(whole, [one[layout.size_bytes // 3 :] for one in whole], 0, 0)

    with pytest.raises(TestbedError, match="came with other bytes"):
        run_blend(BlendPlan(model_file, WINDOWS), lying, lambda _: None, lambda _: None)


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
