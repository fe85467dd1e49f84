"""Policies of libCacheSim on the same traces, block by block. Optional: it is GPL-3.0-or-later, an extra of its own.

The library knows no prefixes: a request's chunks are asked for from the last to the first, so that by recency it has
leaves first, and a request hits with the leading chunks that were there. Where requests are single chunks its LRU is
ours, which a test checks; on prefixes it does a little worse, most so in pools of a few chunks.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

from bmv2_testbed.bench.policy.replay import Tick
from bmv2_testbed.bench.policy.trees import Forest
from bmv2_testbed.errors import TestbedError

POLICIES: Final = {"lru-library": "LRU", "arc": "ARC", "s3-fifo": "S3FIFO", "w-tinylfu": "WTinyLFU"}
_HASH_BITS: Final = 18


def has_library() -> bool:
    """Whether libcachesim is installed."""
    return importlib.util.find_spec("libcachesim") is not None


def replay_library(trees: Forest, capacity: int, policy: str, tick: Tick = lambda _: None) -> float:
    """Token-weighted prefix hit of one of POLICIES. Raises TestbedError when libcachesim is not installed."""
    try:
        import libcachesim
    except ImportError as error:
        raise TestbedError("libcachesim is not installed: pip install 'kvcast[policy]'") from error
    options: dict[str, Any] = {"hashpower": _HASH_BITS}
    if policy == "s3-fifo":
        # Its small queue must hold a chunk: a tenth, as published, but one at least.
        options["small_size_ratio"] = max(0.1, 1.01 / max(2, capacity))
    if policy == "w-tinylfu":
        options["window_size"] = max(0.01, 1.01 / max(2, capacity))
    cache: Any = getattr(libcachesim, POLICIES[policy])(cache_size=max(2, capacity), **options)
    wanted = libcachesim.Request()
    wanted.obj_size = 1
    hit = 0
    for at, step in enumerate(trees.steps):
        leading = len(step.path)
        for here in range(len(step.path) - 1, -1, -1):
            wanted.obj_id = step.path[here] + 1
            if not cache.get(wanted):
                leading = here
        hit += step.hit_tokens(leading)
        tick(at)
    return hit / trees.tokens
