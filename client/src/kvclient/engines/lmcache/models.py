"""What LMCache's keys leave out: of which weights a model is. And the bytes of its memory objects."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np

from kvclient.engines.pieces import Piece
from kvclient.engines.weights import WeightsError, digest_of

log = logging.getLogger("kvcast")


class Weights:
    """Digests of weights by model."""

    def __init__(self, configured: str) -> None:
        """`configured`: the setting `weights_digest`, for every model; empty: they are read."""
        self._configured = configured
        self._found: dict[str, str | None] = {}

    def of(self, model: str) -> str | None:
        """The digest of a model's weights, which LMCache's keys do not bind; None: unknown, so nothing is shared."""
        if self._configured:
            return self._configured
        if model not in self._found:
            try:
                config = Path(model, "config.json")
                of_config = hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else ""
                self._found[model] = f"{digest_of(model)}.{of_config}"
            except (WeightsError, OSError):
                self._found[model] = None
                log.warning(
                    "kvcast: no weights of %r on this machine, so nothing of it is shared: set weights_digest among "
                    "the adapter's parameters to any text that changes whenever the weights or the cache's dtype do",
                    model,
                )
        return self._found[model]


def name_of(model: str) -> str:
    """The last part of a model's path: nodes may keep a model at different places."""
    return model.rstrip("/").rpartition("/")[2]


def piece_of(memory: Any) -> Piece:
    """The bytes of one of LMCache's memory objects."""
    return np.frombuffer(memoryview(memory.byte_array).cast("B"), dtype=np.uint8)
