"""Policies of libCacheSim on the same traces, block by block. Optional: it is GPL-3.0-or-later, an extra of its own.

The library knows no prefixes, as `peers` do not. Of its policies only those stand in the table that differ from our
versions of them: its LFUDA, whose priorities gather the age at each hit, and its W-TinyLFU, which counts in a sketch.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

from bmv2_testbed.bench.policy.peers import replay_blocks
from bmv2_testbed.bench.policy.replay import Tick
from bmv2_testbed.bench.policy.trees import Forest
from bmv2_testbed.errors import TestbedError

POLICIES: Final = {"lfuda-library": "LFUDA", "w-tinylfu-library": "WTinyLFU"}
_HASH_BITS: Final = 18


class LibraryCache:
    """One of libCacheSim's caches, as a `peers.BlockCache`."""

    def __init__(self, kind: str, capacity: int) -> None:
        """`kind`: the name of its class. Raises TestbedError when libcachesim is not installed."""
        try:
            import libcachesim
        except ImportError as error:
            raise TestbedError("libcachesim is not installed: pip install 'kvcast-lab[policy]'") from error
        options: dict[str, Any] = {"hashpower": _HASH_BITS}
        if kind == "S3FIFO":  # its small queue must hold a block: a tenth, as published, but one at least
            options["small_size_ratio"] = max(0.1, 1.01 / capacity)
        if kind == "WTinyLFU":
            options["window_size"] = max(0.01, 1.01 / capacity)
        self._cache: Any = getattr(libcachesim, kind)(cache_size=capacity, **options)
        self._wanted: Any = libcachesim.Request()
        self._wanted.obj_size = 1

    def asked(self, block: int) -> bool:
        """See `BlockCache`."""
        self._wanted.obj_id = block + 1
        return bool(self._cache.get(self._wanted))


def has_library() -> bool:
    """Whether libcachesim is installed."""
    return importlib.util.find_spec("libcachesim") is not None


def replay_library(trees: Forest, capacity: int, policy: str, tick: Tick = lambda _: None) -> float:
    """Token-weighted prefix hit of one of POLICIES. Raises TestbedError when libcachesim is not installed."""
    return replay_blocks(trees, LibraryCache(POLICIES[policy], max(2, capacity)), tick)
