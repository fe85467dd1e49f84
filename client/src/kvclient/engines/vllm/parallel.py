"""How vLLM's workers split the KV of a token, by its configuration, and what kvcast is refused for. A shell around
`core.head_groups`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvclient.engines.core.head_groups import StageParts, different_ranks
from kvclient.engines.settings import Settings, SettingsError


def stage_parts(vllm_config: Any, kv_cache_config: Any, specs: Sequence[Any], settings: Settings) -> StageParts:
    """The parts of each pipeline stage. `specs`: of all layers. Raises SettingsError."""
    parallel = vllm_config.parallel_config
    ranks = int(parallel.tensor_parallel_size)
    contexts = int(getattr(parallel, "decode_context_parallel_size", 1))
    if contexts > 1 and not all(getattr(spec, "dcp_sharded", False) for spec in specs):
        raise SettingsError(
            "kvcast cannot cache this model with decode_context_parallel_size above 1: vLLM splits the contexts of "
            "some of its layers only; leave it at 1"
        )
    head_ranks = max(1, ranks // int(kv_cache_config.kv_tp_replicas))
    # Keys of engines without these settings stay what they were.
    if (settings.kv_head_groups or contexts > 1) and head_ranks > 1:
        head_ranks = _head_ranks(vllm_config.model_config, specs, ranks)
    groups = _groups(settings, specs, head_ranks)
    try:
        return StageParts(
            ranks,
            head_ranks,
            groups,
            contexts,
            int(getattr(parallel, "prefill_context_parallel_size", 1)),
            int(getattr(parallel, "cp_kv_cache_interleave_size", 1)) if contexts > 1 else 1,
        )
    except ValueError as error:
        raise SettingsError(f"kvcast cannot tell which worker holds which KV: {error}") from error


def _head_ranks(model: Any, specs: Sequence[Any], ranks: int) -> int:
    """Ranks with different heads. vLLM says so of latent attention only; of others it follows from their number, where
    all layers have equally many."""
    if all(getattr(spec, "max_tp_shards", None) == 1 for spec in specs):
        return 1
    heads = int(model.get_total_num_kv_heads())
    if ranks <= heads:
        return ranks
    if _differ(model) or any(getattr(spec, "num_kv_heads", 0) != 1 for spec in specs):
        raise SettingsError(
            f"kvcast cannot tell which of {ranks} tensor-parallel ranks repeat KV heads of this model, whose layers "
            "differ in them: leave kv_head_groups out and decode_context_parallel_size at 1"
        )
    return different_ranks(ranks, heads)


def _differ(model: Any) -> bool:
    """Whether layers may have different numbers of heads, as far as configurations say."""
    text = model.hf_text_config.to_dict()
    others = [name for name in text if "kv_heads" in name or "key_value_heads" in name]
    return others != ["num_key_value_heads"] or bool(getattr(model.model_arch_config, "per_layer_overrides", None))


def _groups(settings: Settings, specs: Sequence[Any], head_ranks: int) -> int:
    """Groups of heads of the whole model. Raises SettingsError."""
    wanted = settings.kv_head_groups
    heads = head_ranks * min(spec.num_kv_heads for spec in specs if hasattr(spec, "num_kv_heads"))
    if not wanted or heads == 1:
        return head_ranks  # each rank's own, or one head that all of them have
    try:
        groups = different_ranks(wanted, heads)
    except ValueError as error:
        raise SettingsError(f"kv_head_groups is {wanted}, and {error}") from error
    if groups % head_ranks:
        raise SettingsError(
            f"kv_head_groups is {wanted}; this engine has {head_ranks} ranks with different heads: set it to the "
            "largest tensor-parallel size among the engines that are to share"
        )
    each = groups // head_ranks
    if each > 1 and any(not _is_split(spec, each) for spec in specs):
        raise SettingsError(
            f"kv_head_groups is {wanted}; kvcast cannot take the heads of this model's caches apart into {each} groups "
            "(recurrent layers, scales beside the heads, or numbers of heads that differ): leave it out"
        )
    return groups


def _is_split(spec: Any, groups: int) -> bool:
    """Whether a layer's pages are their heads, a multiple of `groups`, and nothing else."""
    has_scales = bool(getattr(getattr(spec, "kv_quant_mode", None), "is_per_token_head", False))
    is_packed = getattr(spec, "num_head_slots", None) is not None or getattr(spec, "state_content_bytes", None)
    return getattr(spec, "num_kv_heads", 1) % groups == 0 and not has_scales and not is_packed
