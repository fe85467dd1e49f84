"""kvcast's storage backend as it is, loaded by SGLang's engines in tests that make several bring pages at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kvclient.engines.sglang.backend import KvcastHiCache
from tests.engines.starting_line import wait_at

STARTING_LINE = "starting_line"
"""Where the socket is, in SGLang's extra configuration."""


class AtOnceHiCache(KvcastHiCache):
    """Waits at a starting line before each batch."""

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        wait_at(Path(self._config.extra_config[STARTING_LINE]))
        return super().batch_get_v1(keys, host_indices, extra_info)
