"""Stands in for sgl_kernel.kvcacheio: copies between device and host pools in torch, for the io backend `direct`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def transfer_kv_direct(
    src_layers: list[Any], dst_layers: list[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Tokens of each layer, from one pool to another."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: list[Any], dst_ptrs: list[Any], src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
) -> None:
    """One layer, host pool by page -> device pool by layer."""
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        for at in range(0, len(src_indices), page_size):
            first = dst_indices[at]
            target[first : first + page_size] = source[src_indices[at] // page_size][layer_id]


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: list[Any], dst_ptrs: list[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """All layers, device pool by layer -> host pool by page. `src_ptrs`: all layers' keys, then all values."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for which, target in enumerate(dst_ptrs):
        for layer in range(layers):
            source = src_ptrs[which * layers + layer]
            for at in range(0, len(src_indices), page_size):
                first = src_indices[at]
                target[dst_indices[at] // page_size][layer] = source[first : first + page_size]


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_more: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.kvcacheio.{name} has no stand-in")

    return missing
