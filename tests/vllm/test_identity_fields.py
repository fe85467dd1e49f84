"""Each fact that names an engine's KV, changed alone: vLLM's own configuration objects and real tensors, no engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvclient.engines.settings import Settings, SettingsError

EXTENSION = f"{__name__}.Extension"


class Extension:
    """What a trainer adds to vLLM's workers."""

    def receive(self) -> str:
        """Weights, by a way of its own."""
        return "received"


def configuration(folder: Path) -> Any:
    """Of an engine with a multimodal model in a folder."""
    import torch
    from vllm.config import AttentionConfig, LoadConfig, MultiModalConfig

    fields = {"rope_theta": 10000.0}
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": 224}))
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(folder),
            revision=None,
            dtype=torch.bfloat16,
            quantization=None,
            hf_config=SimpleNamespace(to_dict=lambda: fields, fields=fields),
            multimodal_config=MultiModalConfig(),
            disable_sliding_window=False,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", kv_sharing_fast_prefill=False, enable_prefix_caching=True),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        ec_transfer_config=None,
        load_config=LoadConfig(),
        attention_config=AttentionConfig(),
        speculative_config=None,
    )


def set_at(owner: str, name: str, value: Any) -> Callable[[Any], None]:
    """Sets one field of one of the configurations."""
    return lambda config: setattr(getattr(config, owner), name, value)


def write_preparation(config: Any) -> None:
    Path(config.model_config.model, "preprocessor_config.json").write_text(json.dumps({"size": 448}))


CHANGES: dict[str, Callable[[Any], None]] = {
    "nothing": lambda config: None,
    "load format": set_at("load_config", "load_format", "pt"),
    "attention option": set_at("attention_config", "use_prefill_query_quantization", True),
    "windows": set_at("model_config", "disable_sliding_window", True),
    "layers that share": set_at("cache_config", "kv_sharing_fast_prefill", True),
    "rope": lambda config: config.model_config.hf_config.fields.update(rope_theta=1e6),
    "quantization": set_at("model_config", "quantization", "fp8"),
    "media options": lambda config: setattr(
        config.model_config.multimodal_config, "mm_processor_kwargs", {"do_resize": False}
    ),
    "media files": write_preparation,
    "video pruning": lambda config: setattr(config.model_config.multimodal_config, "video_pruning_rate", 0.5),
    "revision": set_at("model_config", "revision", "main"),
    "draft": lambda config: setattr(config, "speculative_config", SimpleNamespace(method="eagle", model="draft")),
}


def test_every_option_that_decides_bytes_counts(tmp_path: Path) -> None:
    from kvclient.engines.core.identity import RequestBinding, Shard
    from kvclient.engines.vllm.facts import make_identity

    found = {}
    for number, (what, change) in enumerate(CHANGES.items()):
        # Folders with one name: the rest of a path is no fact of the model.
        folder = tmp_path / str(number) / "model"
        folder.mkdir(parents=True)
        config = configuration(folder)
        change(config)
        identity = make_identity(config, Settings(chunk_tokens=64), 16, "digest", (Shard(0, 1, 0, 1, "l", 1),))
        (found[what],) = identity.digests(RequestBinding())
    again = tmp_path / "again" / "model"
    again.mkdir(parents=True)
    same = make_identity(configuration(again), Settings(chunk_tokens=64), 16, "digest", (Shard(0, 1, 0, 1, "l", 1),))
    assert same.digests(RequestBinding()) == (found["nothing"],)
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    ("load_format", "read"),
    [("auto", ["a.safetensors"]), ("safetensors", ["a.safetensors"]), ("pt", ["c.pt"]), ("mistral", None)],
)
def test_the_files_are_those_that_the_format_reads(tmp_path: Path, load_format: str, read: list[str] | None) -> None:
    from vllm.config import LoadConfig

    from kvclient.engines.vllm.facts import weight_files

    for name in ("a.safetensors", "b.bin", "c.pt"):
        (tmp_path / name).write_bytes(name.encode())
    config = SimpleNamespace(
        model_config=SimpleNamespace(model=str(tmp_path), revision=None),
        load_config=LoadConfig(load_format=load_format),
        speculative_config=None,
    )
    if read is None:
        with pytest.raises(SettingsError, match="set weights_digest"):
            weight_files(config)
        return
    assert [file.name for file in weight_files(config)] == read
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "d.pt").write_bytes(b"d")
    config.speculative_config = SimpleNamespace(
        draft_model_config=SimpleNamespace(model=str(draft), revision=None),
        draft_load_config=LoadConfig(load_format="pt"),
    )
    assert [file.name for file in weight_files(config)] == [*read, "d.pt"]


def test_a_format_of_unknown_files_is_refused(tmp_path: Path) -> None:
    from vllm.config import LoadConfig

    from kvclient.engines.vllm.facts import weight_files

    (tmp_path / "a.safetensors").write_bytes(b"a")
    model = SimpleNamespace(model=str(tmp_path), revision=None)
    for load_format, why in (("tensorizer", "load_format tensorizer"), ("dummy", "random")):
        load = LoadConfig(load_format=load_format)
        with pytest.raises(SettingsError, match=why):
            weight_files(SimpleNamespace(model_config=model, load_config=load, speculative_config=None))


ALONE = (0, 0)
"""The rank of the only worker."""


def names_of(folder: Path, weights: str, **settings: Any) -> Any:
    """The names of an engine whose only worker has loaded its weights."""
    from kvclient.engines.vllm.chunk_names import ChunkNames
    from kvclient.engines.vllm.facts import CacheGroups, ShardFacts

    link: Any = SimpleNamespace(away=False)
    chosen = Settings(chunk_tokens=64, weights_digest="w", **settings)
    names = ChunkNames(configuration(folder), chosen, CacheGroups(16), link)
    names.workers_reported({ALONE: ShardFacts("layout", 1000, "backend", weights=weights)})
    return names


def key_of(names: Any) -> bytes:
    return bytes(names.find().of_text(range(64)).keys[0][0])


def changed(names: Any, weights: str) -> bytes:
    """The key of a text after the weights changed."""
    from kvclient.engines.core.generations import Told

    names.weights_may_have_changed(cache_emptied=True)
    assert names.awaits_workers
    assert names.find() is None
    assert names.weights_told({ALONE: (names.question, weights)}) == {Told.CHANGED}
    assert not names.awaits_workers
    return key_of(names)


def test_changed_weights_have_names_of_their_own(tmp_path: Path) -> None:
    one, other = names_of(tmp_path, "a"), names_of(tmp_path, "b")
    assert key_of(one) == key_of(other), "the files name them, however each engine keeps them in memory"
    loaded, namespace = key_of(one), one.namespace
    first = changed(one, "c")
    assert first != loaded
    assert one.namespace != namespace
    assert changed(other, "c") == first
    assert changed(one, "d") not in (first, loaded)
    assert changed(one, "a") == loaded
    assert one.namespace == namespace


def test_the_callers_version_is_shared_by_engines_of_any_layout(tmp_path: Path) -> None:
    version = tmp_path / "version"
    one, other = (names_of(tmp_path, weights, weights_version_file=str(version)) for weights in "ab")
    version.write_text("step 1")
    first = changed(one, "c")
    assert changed(other, "d") == first
    assert changed(other, "e") != first, "step 1 names other weights"
    version.write_text("step 2")
    assert changed(one, "f") == changed(other, "g") != first


def test_a_change_that_a_worker_noticed_leaves_nothing_with_a_name_until_the_cache_is_empty(tmp_path: Path) -> None:
    from kvclient.engines.core.generations import Told

    names = names_of(tmp_path, "a")
    assert names.weights_told({ALONE: (0, "b")}) == {Told.NOTICED}
    assert names.find() is None
    assert names.weights_told({ALONE: (names.question, "b")}) == {Told.CHANGED}
    assert not names.awaits_workers, "requests do not wait for what no step brings"
    assert names.find() is None
    names.weights_may_have_changed(cache_emptied=True)
    assert names.weights_told({ALONE: (names.question, "b")}) == {Told.UNCHANGED}
    assert key_of(names) == changed(names_of(tmp_path, "a"), "b")


def test_files_of_which_kvcast_does_not_know_name_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from kvclient.engines.vllm.chunk_names import ChunkNames
    from kvclient.engines.vllm.facts import CacheGroups, ShardFacts

    link: Any = SimpleNamespace(away=False)
    settings = Settings(chunk_tokens=64)
    names = ChunkNames(configuration(tmp_path), settings, CacheGroups(16), link)
    files = frozenset({"model.safetensors", "language.safetensors"})
    names.workers_reported({ALONE: ShardFacts("layout", 1000, "backend", weights="a", files=files)})
    assert names.find() is None
    assert not names.awaits_workers
    assert "vLLM has loaded language.safetensors" in caplog.text


class Engine:
    """A model of two modules, in a worker."""

    def __init__(self, extension: str = "") -> None:
        import torch
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        from kvclient.engines.vllm.model import WorkersModel

        class RotaryEmbedding(torch.nn.Module):
            """Positions, with a switch that chooses among the factors of its table."""

            def __init__(self) -> None:
                super().__init__()
                self.long = False
                self.original_tokens = 1024
                self.plain_table = torch.arange(4)
                self.register_buffer("table", torch.arange(8.0), persistent=False)

        class Compiled(torch.nn.Module):
            """As vLLM marks what it compiles."""

            def __init__(self) -> None:
                super().__init__()
                self.do_not_compile = False
                self.was_loaded_from_disk = False

        class Model(torch.nn.Module):
            """The rest."""

            def __init__(self) -> None:
                super().__init__()
                self.rotary = RotaryEmbedding()
                self.weight = torch.nn.Parameter(torch.ones(3, 5))
                self.linear = torch.nn.Linear(2, 2)
                self.compiled = Compiled()
                self.register_buffer("expert_map", torch.zeros(4))
                self.tunes_temperature = False
                self.factor = 0.5
                self.sequences_max = 8

            def load_weights(self, weights: Any) -> str:
                """As vLLM's models."""
                return "loaded"

        class Layer(AttentionLayerBase):  # type: ignore[misc]
            """A layer with a cache."""

            def __init__(self) -> None:
                self.sliding_window: int | None = None
                self.impl = SimpleNamespace(scale=0.25, alibi_slopes=torch.ones(2))

            def get_attn_backend(self) -> Any:
                raise NotImplementedError

            def get_kv_cache_spec(self, vllm_config: Any) -> Any:
                raise NotImplementedError

        class Worker(Extension):
            """As vLLM's workers, with a trainer's extension."""

            def __init__(self, model: Any) -> None:
                self.model = model

            def get_model(self) -> Any:
                """Of this worker."""
                return self.model

            def reload_weights(self) -> str:
                """From the files."""
                return "reloaded"

            def execute_model(self) -> str:
                """One step."""
                return "computed"

            def sleep(self, level: int = 1) -> None:
                """The cache's memory goes."""
                told.append("asleep")

            def wake_up(self, tags: list[str] | None = None) -> None:
                """Memory comes back, of some kinds or of all."""
                told.append("awake")

        told: list[str] = []
        self.told = told
        self.layer = Layer()
        self.model = Model()
        self.worker = Worker(self.model)
        config = SimpleNamespace(
            compilation_config=SimpleNamespace(static_forward_context={"layer": self.layer}),
            parallel_config=SimpleNamespace(worker_extension_cls=extension),
        )
        self.facts = WorkersModel(self.worker, config, lambda: told.append("sleeps"), lambda: told.append("wakes"))


BUFFERS_AND_FLAGS: dict[str, Callable[[Engine], Any]] = {
    "a buffer": lambda engine: engine.model.rotary.table.add_(1),
    "a plain table": lambda engine: engine.model.rotary.plain_table.add_(1),
    "a switch of a rotary module": lambda engine: setattr(engine.model.rotary, "long", True),
    "a size of a rotary module": lambda engine: setattr(engine.model.rotary, "original_tokens", 2048),
    "a switch": lambda engine: setattr(engine.model, "tunes_temperature", True),
    "a factor": lambda engine: setattr(engine.model, "factor", 0.75),
    "a window": lambda engine: setattr(engine.layer, "sliding_window", 128),
    "a scale": lambda engine: setattr(engine.layer.impl, "scale", 0.5),
    "slopes": lambda engine: engine.layer.impl.alibi_slopes.mul_(2),
}


@pytest.mark.parametrize("what", BUFFERS_AND_FLAGS)
def test_every_buffer_and_flag_of_the_model_counts(what: str) -> None:
    engine = Engine()
    first = engine.facts.digest()
    assert Engine().facts.digest() == first
    BUFFERS_AND_FLAGS[what](engine)
    assert engine.facts.digest() != first


def test_how_an_engine_computes_and_its_weights_are_no_facts_of_its_buffers() -> None:
    engine = Engine()
    first = engine.facts.digest()
    engine.model.sequences_max = 16
    engine.model.linear.dropout = 0.5
    engine.model.compiled.was_loaded_from_disk = True
    engine.model.expert_map.add_(1)
    engine.model.weight.detach().add_(1)
    assert engine.facts.digest() == first


def test_the_checksum_is_of_parameters_and_buffers() -> None:
    engine = Engine()
    seen = {engine.facts.take_checksum()}
    assert engine.facts.take_checksum() in seen
    for tensor in (engine.model.weight.detach(), engine.model.rotary.table):
        tensor[0] += 1
        seen.add(engine.facts.take_checksum())
    assert len(seen) == 3


def test_copies_know_when_the_caches_memory_goes_and_when_it_is_back() -> None:
    engine = Engine()
    engine.worker.sleep(level=1)
    engine.worker.wake_up(tags=["weights"])
    assert engine.told == ["sleeps", "asleep", "awake"]
    engine.worker.wake_up(["kv_cache"])
    engine.worker.sleep()
    engine.worker.wake_up()
    assert engine.told[3:] == ["awake", "wakes", "sleeps", "asleep", "awake", "wakes"]


def test_calls_that_may_change_weights_are_noticed_and_steps_are_not() -> None:
    engine = Engine(EXTENSION)
    assert engine.worker.execute_model() == "computed"
    assert engine.worker.get_model() is engine.model
    assert not engine.facts.weights_touched
    for call, answer in (
        (engine.worker.reload_weights, "reloaded"),
        (engine.worker.receive, "received"),
        (lambda: engine.model.load_weights([]), "loaded"),
    ):
        assert call() == answer
        assert engine.facts.weights_touched
        engine.facts.take_checksum()
        assert not engine.facts.weights_touched


def specs() -> dict[str, Any]:
    """vLLM's descriptions of layers that kvcast understands."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    sizes: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    return {
        "full": FullAttentionSpec(**sizes),
        "window": FullAttentionSpec(**sizes, sliding_window=128),
        "chunked": FullAttentionSpec(**sizes, attention_chunk_size=128),
        "latent": MLAAttentionSpec(**sizes),
    }


def check(spec: Any, **more: Any) -> None:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    from kvclient.engines.vllm.facts import check_engine

    model = SimpleNamespace(use_mla=False, get_total_num_kv_heads=lambda: 1, get_total_num_hidden_layers=lambda: 1)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        model_config=model,
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
        attention_config=SimpleNamespace(**more),
    )
    caches = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    check_engine(config, caches, Settings())


@pytest.mark.parametrize("kind", ["full", "window", "chunked", "latent"])
def test_layers_whose_tokens_look_back_are_understood(kind: str) -> None:
    check(specs()[kind])


def test_what_else_a_layer_keeps_is_refused_by_its_name() -> None:
    import torch
    from vllm.v1 import kv_cache_interface as caches

    sizes: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    for spec, why in (
        (replace(specs()["full"], non_causal=True), "FullAttentionSpec with non_causal=True"),
        (replace(specs()["full"], tokens_per_state=4), "FullAttentionSpec with tokens_per_state=4"),
        (replace(specs()["latent"], non_causal_multi_token_decode=True), "non_causal_multi_token_decode=True"),
        (caches.RSWASpec(**sizes, rswa_window=64), "RSWASpec"),
        (caches.SinkFullAttentionSpec(**sizes, sink_len=16), "SinkFullAttentionSpec"),
        (caches.HiddenStateCacheSpec(**sizes), "HiddenStateCacheSpec"),
        (caches.ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=64), "ChunkedLocalAttentionSpec"),
        (caches.SlidingWindowMLASpec(**sizes, sliding_window=64), "SlidingWindowMLASpec"),
        (caches.CrossAttentionSpec(**sizes), "CrossAttentionSpec"),
    ):
        with pytest.raises(SettingsError, match=why):
            check(spec)
    with pytest.raises(SettingsError, match="attend to later ones"):
        check(specs()["full"], use_non_causal=True)
