"""What vLLM's configuration says of this engine's KV, and what it is refused for. One line for each refusal."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
import vllm
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader import get_model_loader
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    group_kernel_blocks,
    iter_layer_specs,
)

from kvchunk.kv_layout import LOSSY
from kvclient.engines.core.chunk_sizes import chunk_tokens_for
from kvclient.engines.core.head_groups import ONE_WORKER, StageParts
from kvclient.engines.core.identity import EngineIdentity, RequestBinding, Shard
from kvclient.engines.core.kv_axes import CachePage, chunk_layout
from kvclient.engines.core.windows import kept_blocks
from kvclient.engines.layout import heads_of, page_shape, page_view
from kvclient.engines.settings import Settings, SettingsError, tenant_secret
from kvclient.engines.vllm.cpu_pages import cpu_layout
from kvclient.engines.vllm.model import WorkersModel, files_of_source
from kvclient.engines.vllm.parallel import stage_parts
from kvclient.engines.weights import WeightsDigest, WeightsError, digest_of_files, files_read, signature_of

WorkerRank: TypeAlias = tuple[int, int]
"""Pipeline rank, number within the stage (`core.head_groups.StageParts`)."""


DEFAULT_LOADER: Final = frozenset(("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "pt"))
"""Formats of vLLM's default loader, which lists the files that it reads."""
OTHER_LOADERS: Final = {"runai_streamer": ("*.safetensors",), "sharded_state": ("model-rank-*-part-*.safetensors",)}
NAMESPACE_MODEL_CHARACTERS = 140
"""Of the end of a model's name or path, in the namespace of its chunks."""


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What a worker says of its part of the cache, in the reports of its first step. (vLLM's handshake would bring it
    at start, but MultiConnector hands the handshake of one connector to all of them.)"""

    layout: str
    chunk_bytes: int
    backends: str
    kv_layout: str = ""
    """How a chunk's numbers lie (`kvchunk.kv_layout`); empty: unknown."""
    state_bytes: int = 0
    """Of the states of its recurrent layers behind one token."""
    model: str = ""
    """Digest of the model's buffers and flags (`WorkersModel.digest`)."""
    weights: str = ""
    """Checksum of the parameters as they were loaded."""
    files: frozenset[str] = frozenset()
    """Names of the files that they were loaded from, as far as this worker can tell."""


@dataclass(frozen=True, slots=True)
class CacheGroups:
    """vLLM's groups of layers, each with a block table of its own, and what a chunk holds of them."""

    block_tokens: int
    order: tuple[int, ...] = (0,)
    """Numbers of the groups of layers with attention; first the one that holds every token and leads."""
    kept_blocks: tuple[int, ...] = ()
    """Of each group after the first: how many blocks a chunk holds of it."""
    states: tuple[int, ...] = ()
    """Numbers of the groups of recurrent layers, whose blocks hold one state for all tokens so far."""
    parts: StageParts = ONE_WORKER
    """How workers split what a block holds; `block_tokens` are those of all of them."""

    @property
    def is_hybrid(self) -> bool:
        """Whether there are several."""
        return len(self.order) + len(self.states) > 1


def check_engine(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> tuple[Settings, CacheGroups]:
    """The settings with a number of tokens in a chunk, and what the engine caches. Raises SettingsError for what kvcast
    does not do."""
    _check_causality(vllm_config)
    if (
        current_platform.is_cpu()
        and getattr(vllm_config.model_config, "use_mla", False)
        and not vllm_config.scheduler_config.enable_chunked_prefill
    ):
        raise SettingsError(
            "kvcast cannot cache this model here: vLLM's latent attention on this processor computes nothing behind "
            "a cached prefix (its own prefix caching is off for it, too); GPUs and processors with AMX do"
        )
    specs = [list(iter_layer_specs(group.kv_cache_spec)) for group in kv_cache_config.kv_cache_groups]
    states = tuple(number for number, group in enumerate(specs) if all(isinstance(spec, MambaSpec) for spec in group))
    full = [number for number, group in enumerate(specs) if all(isinstance(spec, FullAttentionSpec) for spec in group)]
    _check_kinds(specs, full, states)
    if states:
        _check_states(vllm_config, [spec for number in states for spec in specs[number]])
    parts = stage_parts(vllm_config, kv_cache_config, [spec for group in specs for spec in group], settings)
    block_tokens = int(kv_cache_config.kv_cache_groups[full[0]].kv_cache_spec.block_size) * parts.contexts
    if parts.contexts > 1 and len(specs) > 1:
        raise SettingsError(
            "kvcast cannot cache this model with decode_context_parallel_size above 1: it has several groups of layers;"
            " leave it at 1"
        )
    sizes = {int(group.kv_cache_spec.block_size) * parts.contexts for group in kv_cache_config.kv_cache_groups}
    others = sizes - {block_tokens}
    if others:
        raise SettingsError(
            f"kvcast cannot cache this model: its groups of layers have blocks of {block_tokens} and of "
            f"{', '.join(map(str, sorted(others)))} tokens"
        )
    if states:
        settings = _chunks_are_blocks(settings, block_tokens)
    if not settings.chunk_tokens:
        token_bytes = _token_bytes(vllm_config.model_config, specs[full[0]][0])
        settings = replace(settings, chunk_tokens=chunk_tokens_for(token_bytes, block_tokens))
    if settings.chunk_tokens % block_tokens:
        better = -(-settings.chunk_tokens // block_tokens) * block_tokens
        raise SettingsError(
            f"chunk_tokens is {settings.chunk_tokens}; it must be a multiple of the engine's block size of "
            f"{block_tokens} tokens: use {better}"
        )
    if len(specs) > 1 and settings.load == "layerwise":
        raise SettingsError("load is layerwise; models with several groups of layers load with auto or async only")
    chunk_blocks = settings.chunk_tokens // block_tokens
    order = (full[0], *(number for number in range(len(specs)) if number != full[0] and number not in states))
    kept = tuple(_kept(specs[number], block_tokens, chunk_blocks) for number in order[1:])
    return settings, CacheGroups(block_tokens, order, kept, states, parts)


def _check_causality(vllm_config: Any) -> None:
    """Raises SettingsError where KV of a token depends on later ones, as all layers are told at once."""
    attention = getattr(vllm_config, "attention_config", None)
    if getattr(attention, "use_non_causal", False) or getattr(vllm_config.model_config, "is_diffusion", False):
        raise SettingsError(
            "kvcast cannot cache this model: its tokens attend to later ones (use_non_causal), so a prefix has other "
            "KV in every prompt"
        )


def _check_kinds(specs: Sequence[Sequence[Any]], full: Sequence[int], states: Sequence[int]) -> None:
    """Raises SettingsError for layers that keep something else than what kvcast knows, or no KV of every token."""
    odd = {
        reason
        for number, group in enumerate(specs)
        for spec in group
        if number not in states and (reason := _not_understood(spec))
    }
    if odd or not full:
        kinds = ", ".join(sorted(odd)) or ("states of recurrent layers only" if states else "sliding windows only")
        raise SettingsError(
            f"kvcast cannot cache this model: its layers keep {kinds}, and what it shares are caches of layers that "
            "hold every token of a prefix, beside layers with sliding windows and recurrent layers"
        )


def _check_states(vllm_config: Any, specs: Sequence[Any]) -> None:
    """Raises SettingsError where the engine does not keep the states of recurrent layers as kvcast shares them."""
    modes = {spec.mamba_cache_mode for spec in specs} - {"align"}
    if modes:
        raise SettingsError(
            "kvcast shares the states of recurrent layers at the ends of blocks, and with mamba_cache_mode "
            f"{', '.join(sorted(modes))} vLLM does not keep them there: start it with --enable-prefix-caching "
            "--mamba-cache-mode align"
        )
    if any(spec.num_speculative_blocks for spec in specs) or vllm_config.speculative_config is not None:
        raise SettingsError(
            "kvcast does not share the states of recurrent layers beside drafted tokens: leave speculative_config out"
        )


def _chunks_are_blocks(settings: Settings, block_tokens: int) -> Settings:
    """With chunks of one block, the only ones whose ends the engine aims at. Raises SettingsError."""
    if settings.chunk_tokens not in (0, block_tokens):
        raise SettingsError(
            f"chunk_tokens is {settings.chunk_tokens}; vLLM keeps the states of this model's recurrent layers at the "
            f"ends of blocks of {block_tokens} tokens: use {block_tokens}, or leave it out"
        )
    return replace(settings, chunk_tokens=block_tokens)


def _token_bytes(model: Any, spec: Any) -> int:
    """KV of a token in the whole model, by the cache of one of its layers at one worker."""
    head_bytes = spec.page_size_bytes // spec.block_size // spec.num_kv_heads
    heads = 1 if getattr(model, "use_mla", False) else model.get_total_num_kv_heads()
    return int(head_bytes * heads * model.get_total_num_hidden_layers())


_SIZES: Final = frozenset(
    (
        "block_size",
        "block_stride_alignment",
        "dcp_sharded",
        "max_tp_shards",
        "num_kv_heads",
        "head_size",
        "head_size_v",
        "dtype",
        "kv_quant_mode",
        "page_size_padded",
        "num_head_slots",
        "state_content_bytes",
        "sliding_window",
        "attention_chunk_size",
        "extra_retained_tokens",
        "cache_dtype_str",
        "alignment",
        "model_version",
        "cache_role",
        "is_index_group_leader",
    )
)
"""Fields of vLLM's descriptions that say how much there is, where it lies, or how far a token looks back. Whatever they
are, the KV of a token follows from the tokens up to it."""


def _not_understood(spec: Any) -> str:
    """What a layer keeps that may not be KV of single tokens, each made from no later ones; empty: it is that.

    A description of another class, or one with a field that kvcast does not know set to something, means more.
    """
    kind = type(spec).__name__
    if type(spec) not in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec):
        return kind
    told = [
        f"{field.name}={getattr(spec, field.name)}"
        for field in fields(spec)
        if field.name not in _SIZES and getattr(spec, field.name) != field.default
    ]
    return f"{kind} with {', '.join(told)}" if told else ""


def _kept(specs: Sequence[Any], block_tokens: int, chunk_blocks: int) -> int:
    """Blocks that a chunk holds of a group of layers."""
    windows = [
        spec.sliding_window + spec.extra_retained_tokens for spec in specs if isinstance(spec, SlidingWindowSpec)
    ]
    return kept_blocks(max(windows), block_tokens, chunk_blocks) if len(windows) == len(specs) else chunk_blocks


def layer_names(kv_cache_config: Any, groups: CacheGroups) -> list[list[str]]:
    """Names of the layers of each group, in the order of their parts in a chunk."""
    return [list(kv_cache_config.kv_cache_groups[number].layer_names) for number in groups.order]


def layer_views(
    kv_cache_config: Any, kv_caches: dict[str, torch.Tensor], groups: CacheGroups, part: int = 0
) -> list[dict[str, torch.Tensor]]:
    """Byte views of the layers' pages, group by group, without those that share another's cache in their group.

    `part`: of the groups of heads that this worker holds, which one.
    """
    found = []
    for number, names in zip(groups.order, layer_names(kv_cache_config, groups), strict=True):
        spec = kv_cache_config.kv_cache_groups[number].kv_cache_spec
        per_layer = getattr(spec, "kv_cache_specs", {})
        views: dict[str, torch.Tensor] = {}
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for name in names:
            cache = group_kernel_blocks(kv_caches[name], kv_cache_config.num_blocks)
            heads = heads_of(cache, part, groups.parts.groups_each)
            view = page_view(heads, per_layer.get(name, spec).page_size_bytes)
            place = (view.data_ptr(), tuple(view.stride()))
            if place not in seen:
                seen.add(place)
                views[name] = view
        found.append(views)
    return found


def state_views(kv_cache_config: Any, kv_caches: dict[str, Any], groups: CacheGroups) -> list[list[torch.Tensor]]:
    """Byte views of the states of recurrent layers, group by group: a layer has several (of its convolution, of its
    recurrence), each with a row for every block."""
    found = []
    for number in groups.states:
        group = kv_cache_config.kv_cache_groups[number]
        states = [state for name in group.layer_names for state in _states_of(kv_caches[name])]
        found.append([page_view(state, group.kv_cache_spec.page_size_bytes) for state in states])
    return found


def _states_of(cache: Any) -> Iterable[torch.Tensor]:
    """vLLM gives a recurrent layer's states as several tensors, or as one."""
    return (cache,) if isinstance(cache, torch.Tensor) else cache


def shard_facts(
    vllm_config: Any, kv_cache_config: Any, kv_caches: dict[str, Any], chunk_bytes: int, groups: CacheGroups
) -> ShardFacts:
    """This worker's cache: everything about it that decides what its bytes mean, of one group of heads. `chunk_bytes`:
    of one, too."""
    layers = []
    names = layer_names(kv_cache_config, groups)
    for name in (name for group in names for name in group):
        cache = group_kernel_blocks(kv_caches[name], kv_cache_config.num_blocks)
        layers.append([name, str(cache.dtype), *page_shape(cache, groups.parts.groups_each)])
    state_names = [kv_cache_config.kv_cache_groups[number].layer_names for number in groups.states]
    layers += [
        [name, str(state.dtype), list(state.shape[1:]), list(state.stride()[1:])]
        for group in state_names
        for name in group
        for state in _states_of(kv_caches[name])
    ]
    backends = _backends(vllm_config, [name for group in (*names, *state_names) for name in group])
    facts: list[object] = [layers, backends]
    if groups.is_hybrid:
        facts.append([[len(group) for group in names], list(groups.kept_blocks)])
    if groups.states:
        facts.append([len(group) for group in state_names])
    canonical = json.dumps(facts, separators=(",", ":"))
    layout = hashlib.blake2b(canonical.encode(), digest_size=16, person=b"kvcast-layout").hexdigest()
    kv_layout = _kv_layout(vllm_config, kv_cache_config, kv_caches, chunk_bytes, groups, backends)
    state_bytes = sum(
        math.prod(view.shape[1:]) for views in state_views(kv_cache_config, kv_caches, groups) for view in views
    )
    return ShardFacts(layout, chunk_bytes, ",".join(backends), kv_layout, state_bytes)


def _kv_layout(
    vllm_config: Any,
    kv_cache_config: Any,
    kv_caches: dict[str, torch.Tensor],
    chunk_bytes: int,
    groups: CacheGroups,
    backends: list[str],
) -> str:
    """Of a chunk; empty where it cannot be told: groups of layers, keys packed for tiles of a processor, odd axes."""
    if groups.is_hybrid:
        return ""
    (views,) = layer_views(kv_cache_config, kv_caches, groups)
    caches = [group_kernel_blocks(kv_caches[name], kv_cache_config.num_blocks) for name in views]
    each = groups.parts.groups_each
    blocks = chunk_bytes // sum(math.prod(view.shape[1:]) for view in views.values())
    if any(name.startswith("CPU") for name in backends):
        layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase, list(views)).values()
        isas = {str(getattr(layer, "isa", "")) for layer in layers} - {""}
        packed = cpu_layout(caches, isas, blocks, each)
        return packed.text if packed is not None and packed.size_bytes == chunk_bytes else ""
    shapes = [(str(cache.dtype), *page_shape(cache, each)) for cache in caches]
    pages = [CachePage(element, tuple(shape), tuple(strides)) for element, shape, strides in shapes]
    spec = next(iter(iter_layer_specs(kv_cache_config.kv_cache_groups[groups.order[0]].kv_cache_spec)))
    tokens = groups.block_tokens // groups.parts.contexts
    found = chunk_layout(pages, blocks, tokens, spec.num_kv_heads // each)
    return found.text if found is not None and found.size_bytes == chunk_bytes else ""


def _backends(vllm_config: Any, names: list[str]) -> list[str]:
    """Attention backends of the layers, and how the CPU's packs keys for its instruction set."""
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase, names)
    found = {str(layer.get_attn_backend().get_name()) for layer in layers.values()}
    if any(name.startswith("CPU") for name in found):
        packings = {f"isa={layer.isa}" for layer in layers.values() if getattr(layer, "isa", None)}
        # A layer that does not say how it packs may pack by any feature of the processor.
        features = torch.cpu.get_capabilities()
        found |= packings or {f"{name}={there}" for name, there in features.items() if there is True}
    return sorted(found)


def weights_digest(vllm_config: Any, settings: Settings) -> tuple[WeightsDigest, frozenset[str]]:
    """The digest of the weights, as configured or, in the background, from the files, and names of these. Raises
    SettingsError."""
    configured = settings.weights_digest
    if configured:
        return WeightsDigest(lambda: configured), frozenset()
    files = weight_files(vllm_config)
    return WeightsDigest(lambda: digest_of_files(files)), frozenset(file.name for file in files)


def weight_files(vllm_config: Any) -> list[Path]:
    """The files that vLLM reads for this model, and for its draft. Raises SettingsError."""
    files = _files_of(vllm_config.model_config, vllm_config.load_config)
    speculative = vllm_config.speculative_config
    draft = speculative.draft_model_config if speculative is not None else None
    if draft is not None and draft.model != vllm_config.model_config.model:
        files += _files_of(draft, speculative.draft_load_config or vllm_config.load_config)
    return files


def _files_of(model: Any, load: Any) -> list[Path]:
    if load.load_format == "dummy":
        raise SettingsError(
            "the weights are random (load_format dummy): set weights_digest to share KV among engines with equal ones"
        )
    folder = _weights_folder(model.model, model.revision, load.download_dir)
    try:
        if load.load_format in OTHER_LOADERS:
            return files_read(folder, OTHER_LOADERS[load.load_format])
        if load.load_format in DEFAULT_LOADER:
            loader = get_model_loader(load)
            return sorted(Path(file) for file in files_of_source(loader, loader.Source(folder, None)))
    except (RuntimeError, WeightsError) as error:
        raise SettingsError(f"no digest of {model.model}'s weights: {error}; set weights_digest") from error
    raise SettingsError(
        f"kvcast does not know which files load_format {load.load_format} reads: set weights_digest to any text that "
        "changes whenever the weights do"
    )


def files_loaded(vllm_config: Any, settings: Settings, model: WorkersModel) -> frozenset[str]:
    """Names of the files that a worker has loaded, where vLLM can list them for its very model."""
    load = vllm_config.load_config
    if settings.weights_digest or load.load_format not in DEFAULT_LOADER:
        return frozenset()
    folder = _weights_folder(vllm_config.model_config.model, vllm_config.model_config.revision, load.download_dir)
    return frozenset(model.files_read(get_model_loader(load), folder))


def _weights_folder(model: str, revision: str | None, cache: str | None) -> str:
    """Where the files of a model lie: a path, or the hub's cache. Raises SettingsError."""
    try:
        signature_of(model)
        return model
    except WeightsError as error:
        if not _is_hub_name(model):
            raise SettingsError(str(error)) from error
    try:
        from huggingface_hub import snapshot_download

        return str(snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True))
    except (OSError, ValueError) as error:
        raise SettingsError(f"no digest of {model}'s weights: {error}; set weights_digest") from error


def _is_hub_name(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "/"))


MEDIA_FILES: Final = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "audio_preprocessor_config.json",
)
MEDIA_SETTINGS: Final = (
    "mm_processor_kwargs",
    "mm_device_do_normalize",
    "mm_encoder_attn_backend",
    "mm_encoder_attn_dtype",
    "mm_encoder_fp8_scale_path",
    "video_pruning_rate",
    "video_pruning_method",
)


def _media_processing(vllm_config: Any) -> list[Any]:
    """How images and sounds become what the model computes with, as files next to the weights and options say."""
    model = vllm_config.model_config
    if model.multimodal_config is None:
        return []
    told = {name: str(getattr(model.multimodal_config, name, None)) for name in MEDIA_SETTINGS}
    try:
        folder = _weights_folder(model.model, model.revision, vllm_config.load_config.download_dir)
    except SettingsError:
        return [told]  # weights_digest is set for what is not on this machine
    files = [Path(folder, name) for name in MEDIA_FILES]
    return [told, *(json.loads(file.read_text()) for file in files if file.is_file())]


def _attention_flags(vllm_config: Any) -> dict[str, str]:
    """What options say of attention, but for the backends: the layout of the cache binds those that were chosen."""
    told = asdict(vllm_config.attention_config)
    flags = {name: str(value) for name, value in told.items() if name not in ("backend", "backend_per_kind")}
    flags["disable_sliding_window"] = str(vllm_config.model_config.disable_sliding_window)
    flags["kv_sharing_fast_prefill"] = str(vllm_config.cache_config.kv_sharing_fast_prefill)
    return flags


def _without_names(value: Any) -> Any:
    """A configuration without the fields that only name its origin."""
    if isinstance(value, dict):
        return {
            key: _without_names(inner) for key, inner in value.items() if not str(key).startswith(("_", "transformers"))
        }
    return [_without_names(inner) for inner in value] if isinstance(value, list | tuple) else value


def make_identity(
    vllm_config: Any,
    settings: Settings,
    block_tokens: int,
    digest: str,
    shards: tuple[Shard, ...],
    generation: str = "",
) -> EngineIdentity:
    """Everything together. `generation`: of weights that have changed since they were loaded."""
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    # The configuration decides how weights become KV (rope, norms, scaling, encoders of images and sounds).
    configurations = [model.hf_config.to_dict(), _media_processing(vllm_config)]
    text = getattr(model, "hf_text_config", None)
    if text is not None:
        configurations.append(text.to_dict())
    speculative = getattr(vllm_config, "speculative_config", None)
    extra = {
        "configuration": hashlib.blake2b(
            json.dumps(_without_names(configurations), sort_keys=True, default=str).encode(), digest_size=16
        ).hexdigest(),
        "attention": _attention_flags(vllm_config),
        "load_format": str(vllm_config.load_config.load_format),
        "quantization": str(model.quantization),
        "speculative": f"{speculative.method}:{speculative.model}" if speculative is not None else "",
    }
    return EngineIdentity(
        # The last part only: the same model lies under other paths on other machines. Its digest tells it from others.
        model=os.path.basename(model.model.rstrip("/")),
        revision=str(model.revision or ""),
        weights_digest=digest,
        dtype=str(model.dtype),
        cache_dtype=str(cache.cache_dtype),
        block_tokens=block_tokens,
        chunk_tokens=settings.chunk_tokens,
        engine=f"vllm {vllm.__version__}",
        extra=json.dumps(extra, sort_keys=True, separators=(",", ":")),
        shards=shards,
        generation=generation,
        tenant_secret=tenant_secret(settings.tenant_secret_file),
        may_lose=settings.kv_form == LOSSY,
    )


def chunks_namespace(vllm_config: Any, parts: StageParts, identity: EngineIdentity) -> str:
    """What chunks are put under: the model as it was configured, digits of its weights, and eight digits of all that
    engines must have in common to share chunks, but for the layout of each worker's cache, which a starting engine does
    not know yet."""
    parallel = vllm_config.parallel_config
    anyone = Shard(0, parts.count, 0, parallel.pipeline_parallel_size, "", 0)
    shared = identity.of_shard(anyone, RequestBinding()).digest().hex()
    return f"{vllm_config.model_config.model[-NAMESPACE_MODEL_CHARACTERS:]}@{identity.weights_digest[:8]}.{shared[:8]}"
