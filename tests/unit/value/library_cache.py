"""libCacheSim's policies, block by block: what the peers of `kvcast bench policy` are compared with."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import pytest

_HASH_BITS: Final = 18
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("libcachesim") is None, reason="needs libcachesim: pip install libcachesim"
)


class LibraryCache:
    """One of libCacheSim's caches, as a `peers.BlockCache`."""

    def __init__(self, kind: str, capacity: int) -> None:
        """`kind`: the name of its class."""
        import libcachesim

        options: dict[str, Any] = {"hashpower": _HASH_BITS}
        if kind == "S3FIFO":  # its small queue must hold a block: a tenth, as published, but one at least
            options["small_size_ratio"] = max(0.1, 1.01 / capacity)
        self._cache: Any = getattr(libcachesim, kind)(cache_size=capacity, **options)
        self._wanted: Any = libcachesim.Request()
        self._wanted.obj_size = 1

    def asked(self, block: int) -> bool:
        """See `BlockCache`."""
        self._wanted.obj_id = block + 1
        return bool(self._cache.get(self._wanted))
