"""Which weights the engine of this process computes with, from its start to its last update.

SGLang's own thread tells (`hooks`), threads of the storage backend ask. While weights may be changing, and while the
engine may still have KV of weights of before, nothing has a name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch

from kvclient.engines.checksum import tensors_checksum
from kvclient.engines.core.generations import Generations
from kvclient.engines.rotary import rotary_digest

log = logging.getLogger("kvcast")

Models = Callable[[], Iterable[tuple[str, torch.nn.Module]]]
"""The models of this rank by their roles: the target's, and a draft's where there is one."""
Gather = Callable[[str], Sequence[str]]
"""Gives each tensor-parallel rank's text to all of them, in their order. All ranks call it together."""

NO_PLUGIN: Final = (
    "SGLang has not loaded kvcast's plugin, which sees updates of weights: install kvcast-client into its environment, "
    "and let SGLANG_PLUGINS name kvcast if it names any"
)
STALE: Final = "the weights have changed, and the engine may keep KV of before until flush_cache is called"
UNTOLD: Final = (
    "the weights changed without an update that SGLang knows, and under tensor parallelism one rank cannot tell the "
    "others: restart the engine"
)
LATE: Final = "the weights were updated before kvcast was attached: restart the engine"
_ENGINE: Final = "engine"


class EngineWeights:
    """One process has one engine: `ENGINE_WEIGHTS`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: Models = lambda: ()
        self._gather: Gather = lambda own: [own]
        self._generations = Generations([_ENGINE], has_cache=True)
        self._ranks: Sequence[str] = ()
        """The last checksum of each rank's tensors; empty: none was taken, for nobody asks."""
        self._own = ""
        """This rank's."""
        self._has_started = self._is_asked = self._is_changing = self._was_touched = False
        self._version = ""
        """The caller's own name of the weights of now; empty: it gave none."""
        self._version_told: str | None = ""
        """What the change under way is told for it so far; None: a part of it failed, so no name may stand for it."""
        self._emptied_at = -1
        """After how many steps the engine last emptied its cache."""
        self._problem = NO_PLUGIN
        self.rotary = ""
        """Digest of what turns keys by their positions."""

    def backend_attached(self) -> None:
        """Somebody will ask. All ranks call it together where the engine has started already."""
        self._is_asked = True
        self._begin()

    def engine_started(self, models: Models, gather: Gather) -> None:
        """The engine has its weights and has computed nothing yet. All ranks call it together."""
        self._models, self._gather, self._has_started = models, gather, True
        self._begin()

    def _begin(self) -> None:
        if not (self._is_asked and self._has_started) or self._ranks:
            return
        if self._was_touched:
            self.refuse(LATE)
            return
        self.rotary = rotary_digest(self._models())
        self._own = self._checksum()
        self._ranks = self._gather(self._own)
        with self._lock:
            self._generations.worker_loaded(_ENGINE, "\n".join(self._ranks))
            self._problem = ""

    def _checksum(self) -> str:
        """Of all parameters and buffers of this rank."""
        return tensors_checksum(
            (f"{role}.{name}", tensor)
            for role, model in self._models()
            for tensors in (model.named_parameters(), model.named_buffers())
            for name, tensor in tensors
        )

    def weights_may_change(self) -> None:
        """Nothing has a name until `weights_settled`."""
        with self._lock:
            if not self._is_changing:
                self._version_told = ""
            self._is_changing = self._was_touched = True

    def part_loaded(self, version: str) -> None:
        """A part of the change is done. `version`: the caller's own name of the weights once all parts are; empty:
        none with this part."""
        if self._version_told is not None:
            self._version_told = version or self._version_told

    def part_failed(self) -> None:
        """The weights may be neither those of before nor those that the caller has named."""
        self._version_told = None

    def weights_settled(self, step: int) -> None:
        """What may have changed weights is over, after so many steps. All ranks call it together."""
        if not self._ranks:
            return
        self._own, before = self._checksum(), self._ranks
        self._ranks = self._gather(self._own)
        told = set(self._gather(self._version_told or ""))
        if self._ranks != before or told != {""}:
            # Where one rank's part failed, what the others compute from now on is not what the name says either.
            self._version = told.pop() if len(told) == 1 else ""
        self._answer(cache_emptied=self._emptied_at == step)

    def cache_emptied(self, step: int) -> None:
        """The engine keeps no KV of before, after so many steps. Ranks need not come here together."""
        self._emptied_at = step
        if self._is_changing or not self._ranks:
            return
        own = self._checksum()
        if own != self._own and len(self._ranks) > 1:
            self.refuse(UNTOLD)
            return
        if own != self._own:
            self._own, self._ranks, self._version = own, [own], ""
        self._answer(cache_emptied=True)

    def _answer(self, *, cache_emptied: bool) -> None:
        with self._lock:
            self._is_changing = False
            self._generations.weights_may_have_changed(cache_emptied=cache_emptied)
            self._generations.worker_told(_ENGINE, self._generations.question, "\n".join(self._ranks))
            if self._generations.is_stale:
                log.warning("kvcast: %s; until then it runs without the pool", STALE)

    def refuse(self, problem: str) -> None:
        """From now on nothing has a name; `problem` says why, in one line."""
        with self._lock:
            self._problem = problem
        log.warning("kvcast: %s; the engine runs without the pool", problem)

    def name(self) -> str | None:
        """What tells the weights of now from those that were loaded (`Generations.name`); None: nothing has a name."""
        with self._lock:
            if self._problem or self._is_changing or self._generations.is_stale:
                return None
            return self._generations.name(self._version)

    @property
    def problem(self) -> str:
        """Why nothing has a name, until something is done about it; empty: nothing needs to be done."""
        with self._lock:
            return self._problem


ENGINE_WEIGHTS: Final = EngineWeights()
