"""An engine's weights without an engine: a small module whose updates a test makes by itself."""

from __future__ import annotations

import torch

from kvclient.engines.sglang.engine_weights import EngineWeights, Gather


class SmallWeights:
    """One linear layer, and what a backend asks about it."""

    def __init__(self, gather: Gather = lambda own: [own]) -> None:
        self.steps = 0
        self.model = torch.nn.Linear(4, 4)
        torch.nn.init.constant_(self.model.weight, 1)
        torch.nn.init.constant_(self.model.bias, 0)
        self.seen = EngineWeights()
        self.seen.engine_started(lambda: [("target", self.model)], gather)

    def update(self, value: float, *, flushes: bool = True, version: str = "", fails: bool = False) -> None:
        """As SGLang updates weights: with a flush in between, if one is asked for. `fails`: one part of several."""
        self.seen.weights_may_change()
        self.change(value)
        if flushes:
            self.flush()
        if fails:
            self.seen.part_failed()
        self.seen.part_loaded(version)
        self.seen.weights_settled(self.steps)

    def change(self, value: float) -> None:
        """As an update that SGLang knows nothing of."""
        torch.nn.init.constant_(self.model.weight, value)

    def flush(self) -> None:
        self.seen.cache_emptied(self.steps)
