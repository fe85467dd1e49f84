"""Lets SGLang's hierarchical cache run on its CPU platform, in every process with this folder on its path. Test use.

Host pools are not registered with CUDA; they copy to and from the device by the stand-in of sgl_kernel.kvcacheio; they
leave 256 MB of the machine free, not 10 GB; and of SGLang's models only Llama is imported, which saves most of the
time of a start. The storage tier, which the tests are about, is SGLang's own.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_POOLS = "sglang.srt.mem_cache.pool_host"
_COPIES = ("transfer_kv_direct", "transfer_kv_per_layer_direct_pf_lf", "transfer_kv_all_layer_direct_lf_pf")


def _unregistered(common: Any) -> None:
    names = vars(common)

    def register(buffer: Any, granularity: int | None = None) -> None:
        setattr(buffer, names["_CUDA_HOST_REGISTERED_RANGES_ATTR"], [])

    names["_cuda_host_register"] = register


def _modest(base: Any) -> None:
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 1 << 28


def _copying(pool: Any) -> None:
    copies = importlib.import_module("sgl_kernel.kvcacheio")
    for name in _COPIES:
        setattr(pool, name, getattr(copies, name))


_CHANGED: dict[str, Callable[[Any], None]] = {
    f"{_POOLS}.base": _modest,
    f"{_POOLS}.common": _unregistered,
    f"{_POOLS}.mha": _copying,
    f"{_POOLS}.mla": _copying,
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as it is, changed after it has run."""
        change = _CHANGED.get(name)
        if change is None:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_all_modules = pkgutil.iter_modules


def _few_modules(path: Any = None, prefix: str = "") -> Iterator[Any]:
    for found in _all_modules(path, prefix):
        if prefix != "sglang.srt.models." or found.name.endswith(".llama"):
            yield found


sys.meta_path.insert(0, _Finder())
pkgutil.iter_modules = _few_modules
