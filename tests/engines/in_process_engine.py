"""A vLLM engine with LMCache inside it (`LMCacheConnectorV1`), forked by `bmv2_testbed.engines.launcher`.

LMCache 0.5.6 copies between its memory and an engine's cache on accelerators alone: on a CPU it says "No supported cpu
connector found" and ends. `SimulatedDeviceCopies` stands in for that one class, by torch. All else is LMCache's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.engines import chain_process


def simulate_device_copies() -> None:
    """Have LMCache find a connector for the CPU."""
    import torch
    from lmcache.v1 import gpu_connector

    class SimulatedDeviceCopies(gpu_connector.GPUConnectorInterface):
        """Between memory objects (2, layers, tokens, heads x size) and vLLM's cache on the CPU, which is
        (blocks, heads, block tokens, 2 x size) a layer: a head's key, then its value."""

        def __init__(self, metadata: Any) -> None:
            self.kvcaches: Any = None
            self._metadata = metadata

        def initialize_kvcaches_ptr(self, **kwargs: Any) -> None:
            self.kvcaches = kwargs.get("kvcaches", self.kvcaches)

        def get_shape(self, num_tokens: int) -> torch.Size:
            layers, _, _, heads, size = self._metadata.kv_shape
            return torch.Size([2, layers, num_tokens, heads * size])

        def _rows(self, start: int, end: int, **kwargs: Any) -> Iterator[tuple[int, torch.Tensor, Any]]:
            """Of each layer: its number, its cache, and where in it the tokens are."""
            self.initialize_kvcaches_ptr(**kwargs)
            slots = kwargs["slot_mapping"][start:end]
            for layer, cache in enumerate(self.kvcaches):
                tokens = cache.shape[2]
                yield layer, cache, (slots // tokens, slice(None), slots % tokens)

        def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
            for layer, cache, at in self._rows(start, end, **kwargs):
                key, value = cache[at].chunk(2, dim=-1)
                memory_obj.tensor[:, layer] = torch.stack([key.flatten(1), value.flatten(1)])

        def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
            for layer, cache, at in self._rows(start, end, **kwargs):
                key, value = memory_obj.tensor[:, layer].unflatten(2, (cache.shape[1], -1))
                cache[at] = torch.cat([key, value], dim=-1)

        def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
            for each in zip(memory_objs, starts, ends, strict=True):
                self.from_gpu(*each, **kwargs)

        def batched_to_gpu(self, memory_objs: Any = None, starts: Any = None, ends: Any = None, **kwargs: Any) -> None:
            for each in zip(memory_objs, starts, ends, strict=True):
                self.to_gpu(*each, **kwargs)

    def create(config: Any, metadata: Any, engine: Any, layout_hints: Any = None) -> SimulatedDeviceCopies:
        return SimulatedDeviceCopies(metadata)

    gpu_connector.CreateGPUConnector = create


def main(argv: Sequence[str] | None = None) -> int:
    """Run an engine until it is asked to stop."""
    simulate_device_copies()
    return chain_process.main(argv)
