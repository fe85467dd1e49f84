"""kvcast's second level as it is, loaded by LMCache's servers in tests that make several bring objects at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvclient.engines.lmcache.second_level import KvcastL2
from tests.engines.starting_line import wait_at

STARTING_LINE = "starting_line"
"""Where the socket is, among the adapter's parameters."""


class AtOnceL2(KvcastL2):
    """Waits at a starting line before each look-up, which is what brings objects to a node."""

    def __init__(self, config: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        """`config`: the adapter's parameters, and the starting line."""
        self._line = Path(config[STARTING_LINE])
        super().__init__({name: value for name, value in config.items() if name != STARTING_LINE}, l1_memory_desc)

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any = None) -> int:
        self._lookups.post(lambda: wait_at(self._line))
        return super().submit_lookup_and_lock_task(keys, group_layout_descs)
