"""A worker's copies between leased chunks and its paged cache, in threads. Nothing here raises into the engine's step.

A load holds a lease of its own while it copies, and looks whether the agent holds it still before it calls the copy
good: an agent that ended meanwhile may have left the memory to one that gives it to others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvclient.client import AgentClient, AgentError, AgentUnavailableError, Fetched, PoolFullError
from kvclient.engines.core.requests import Load
from kvclient.engines.core.saves import Save
from kvclient.engines.core.states import StatePart
from kvclient.engines.link import AgentLink
from kvclient.engines.paged import GroupedLayers, PagedLayers, StateLayers
from kvclient.forks import Threads


@dataclass(slots=True)
class TransferFigures:
    """Copies since the last look."""

    loaded_chunks: int = 0
    loaded_bytes: int = 0
    load_s: list[float] = field(default_factory=list)
    failed_blocks: int = 0
    saved_chunks: int = 0
    saved_bytes: int = 0
    save_s: list[float] = field(default_factory=list)
    saves_failed: dict[str, int] = field(default_factory=dict)
    """By reason: away, pool_full, refused, error."""
    errors_count: int = 0
    """Unexpected exceptions."""


@dataclass(slots=True)
class TransferResults:
    """Loads and saves that ended since the last look."""

    loads: dict[str, bool] = field(default_factory=dict)
    """By request: whether all blocks arrived."""
    failed_blocks: set[int] = field(default_factory=set)
    saves: dict[int, bool] = field(default_factory=dict)


class LayerGate:
    """Lets each layer of a forward pass through once the KV of all its loads is there."""

    def __init__(self, layers_count: int) -> None:
        self._condition = threading.Condition()
        self._missing = [0] * layers_count
        self._loads_count = 0

    def expect(self) -> None:
        """One more load, of all layers."""
        with self._condition:
            self._loads_count += 1
            self._missing = [count + 1 for count in self._missing]

    def layer_arrived(self, layer: int) -> None:
        """A layer of one load has arrived."""
        with self._condition:
            self._missing[layer] -= 1
            self._condition.notify_all()

    def load_ended(self, layers_missing: range) -> None:
        """One load has ended without these layers."""
        with self._condition:
            for layer in layers_missing:
                self._missing[layer] -= 1
            self._loads_count -= 1
            self._condition.notify_all()

    def wait(self, layer: int) -> None:
        """Wait for a layer of all loads."""
        with self._condition:
            self._condition.wait_for(lambda: self._missing[layer] <= 0)

    def wait_all(self) -> None:
        """Wait until all loads are over."""
        with self._condition:
            self._condition.wait_for(lambda: self._loads_count == 0)


@dataclass(slots=True)
class _Progress:
    layers_count: int = 0
    """Layers reported to the gate."""


@dataclass(frozen=True, slots=True)
class CopyRules:
    """What is copied, and how."""

    shards: tuple[int, ...]
    """Of a chunk's keys, those of the parts that this worker has."""
    writes: bool
    """False for a worker whose KV another worker has too and saves for both."""
    blocks_in_chunk: int
    deadline_s: float
    """Of a fetch."""
    threads: int
    """That load."""


class Transfers:
    """All copies of one worker."""

    def __init__(
        self,
        link: AgentLink[AgentClient],
        parts: Sequence[PagedLayers],
        states: StateLayers | None,
        rules: CopyRules,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        """`parts`: the layers, once for each of the rules' shards. `states`: recurrent layers, if there are any: then
        there is one part."""
        self._link = link
        self._parts = list(parts)
        self._layers_count = self._parts[0].layers_count
        self._rules = rules
        self._blocks_in_chunk = rules.blocks_in_chunk
        self._part_bytes = self._parts[0].chunk_bytes(rules.blocks_in_chunk)
        self._states = states
        self._state_bytes = states.state_bytes if states is not None else 0
        self._namespace = ""
        self._log = log
        self._clock = clock
        self._loaders = Threads(rules.threads, "kvcast-load")
        # One at a time: no request waits for saves, and they should stay out of the way of loads.
        self._savers = Threads(1, "kvcast-save")
        self._lock = threading.Condition()
        """Notified when a load ends, and when the last of the saves does."""
        self._loads_count = self._saves_count = 0
        """Under way."""
        self._abandoned = 0
        """How often the saves under way were abandoned."""
        self._results = TransferResults()
        self._figures = TransferFigures()
        self.has_results = self.has_figures = False
        """Whether `take_results` and `take_figures` have something. Most steps look at nothing else."""

    # ------------------------------------------------------------------ from the engine's step

    def load(self, load: Load, gate: LayerGate | None = None) -> None:
        """Begin a load; with `gate`, layer by layer for the forward pass that waits there.

        The blocks are not written before the work submitted so far is done: they may have been another request's.
        """
        with self._lock:
            self._loads_count += 1
        try:
            self._loaders.submit(self._load, load, gate, self._parts[0].mark())
        except Exception:  # noqa: BLE001 - a bug of ours must not end the engine's step; logged in full and counted
            self._failed("beginning a load")
            self._load_over(load, 0, self._clock(), gate, _Progress())

    def save(self, saves: Sequence[Save], namespace: str) -> None:
        """Begin saves of blocks that the work submitted so far computes. `namespace`: of an engine's chunks, for people
        and for engines that start; it does not change."""
        if not saves:
            return
        self._namespace = namespace
        with self._lock:
            self._saves_count += len(saves)
        try:
            self._savers.submit(self._save_all, saves, self._parts[0].mark(), self._abandoned)
        except Exception:  # noqa: BLE001 - a bug of ours must not end the engine's step; logged in full and counted
            self._failed("beginning saves")
            for save in saves:
                self._save_over(save, "error")

    def abandon_saves(self) -> None:
        """Their blocks may be written again from now on: no save that was begun so far becomes a chunk, unless it has
        read them already."""
        self._abandoned += 1

    def await_load(self, timeout_s: float) -> None:
        """Wait a moment for a load to end, for an engine that has nothing else to do."""
        with self._lock:
            self._lock.wait_for(lambda: self._results.loads, timeout_s)

    def await_saves(self, timeout_s: float) -> None:
        """Wait a moment for all saves to end, for an engine that has nothing else to do."""
        with self._lock:
            self._lock.wait_for(lambda: not self._saves_count, timeout_s)

    def await_copies(self, timeout_s: float) -> bool:
        """Wait for all loads and saves to end; whether they have."""
        with self._lock:
            return self._lock.wait_for(lambda: not (self._loads_count or self._saves_count), timeout_s)

    def take_results(self) -> TransferResults:
        """Loads and saves that ended; each is reported once."""
        with self._lock:
            results, self._results = self._results, TransferResults()
            self.has_results = False
        return results

    def take_figures(self) -> TransferFigures:
        """Figures of copies; each copy is counted once."""
        with self._lock:
            figures, self._figures = self._figures, TransferFigures()
            self.has_figures = False
        return figures

    def close(self) -> None:
        """Wait for the copies under way, forget the rest. Close the link first: then no copy waits for the agent."""
        self._loaders.shutdown(wait=True, cancel_futures=True)
        self._savers.shutdown(wait=True, cancel_futures=True)

    def _failed(self, doing: str) -> None:
        """Log and count an unexpected exception."""
        self._log.exception("kvcast: %s failed", doing)
        with self._lock:
            self._figures.errors_count += 1
            self.has_figures = True

    # ------------------------------------------------------------------ loads

    def _load(self, load: Load, gate: LayerGate | None, after: Any) -> None:
        started_s = self._clock()
        chunks = 0
        progress = _Progress()
        try:
            chunks = self._copy_in(load, gate, progress, after)
        except (AgentUnavailableError, AgentError) as error:
            self._log.warning("kvcast: a load of %d blocks failed: %s", len(load.block_ids), error)
        except Exception:  # noqa: BLE001 - a bug of ours must not end the engine's step; logged in full and counted
            self._failed(f"a load of {len(load.block_ids)} blocks")
        finally:
            self._load_over(load, chunks, started_s, gate, progress)

    def _load_over(
        self, load: Load, chunks: int, started_s: float, gate: LayerGate | None, progress: _Progress
    ) -> None:
        good = max(0, chunks * self._blocks_in_chunk - load.skip_blocks)
        failed = load.block_ids[good:]
        with self._lock:
            self._loads_count -= 1
            self._results.loads[load.request] = not failed
            self._results.failed_blocks.update(failed)
            figures = self._figures
            figures.loaded_chunks += chunks
            figures.loaded_bytes += chunks * len(self._parts) * self._part_bytes
            if load.state is not None and chunks:
                figures.loaded_bytes += self._state_bytes
            figures.load_s.append(self._clock() - started_s)
            figures.failed_blocks += len(failed)
            self.has_results = self.has_figures = True
            self._lock.notify_all()
        if gate is not None:
            gate.load_ended(range(progress.layers_count, self._layers_count))

    def _copy_in(self, load: Load, gate: LayerGate | None, progress: _Progress, after: Any) -> int:
        """Copy chunks into the paged cache; returns how many are there for certain."""
        client = self._link.client
        if client is None or not load.keys:
            return 0
        keys = [keys[shard] for keys in load.keys for shard in self._rules.shards]
        if load.state is not None:
            keys += [load.state.keys[shard] for shard in self._rules.shards]
        try:
            # Leaving this raises when the lease was lost before.
            with client.fetch(keys, deadline_s=self._rules.deadline_s) as got:
                count = self._whole(got, len(load.keys) * len(self._parts))
                if load.state is not None:
                    if count < len(keys):
                        return 0  # without the state the engine cannot compute what follows these chunks
                    count -= 1
                    self._copy_state(load.state, got.views[-1], after)
                count //= len(self._parts)
                layers = range(self._layers_count) if gate is not None else (None,)
                for layer in layers:
                    self._copy_layer(load, got, count, layer, after)
                    if gate is not None and layer is not None:
                        gate.layer_arrived(layer)
                        progress.layers_count += 1
                return count
        except AgentUnavailableError as error:
            self._link.connection_lost(client, str(error))
            raise

    def _whole(self, got: Fetched, parts: int) -> int:
        """How many leading parts have the size that this cache takes. The one after `parts` of them is a state."""
        for count, view in enumerate(got.views):
            size_bytes = self._part_bytes if count < parts else self._state_bytes
            if len(view) != size_bytes:
                self._log.error("kvcast: a chunk has %d bytes, not %d: the engine computes it", len(view), size_bytes)
                return count
        return got.count

    def _copy_state(self, part: StatePart, view: memoryview, after: Any) -> None:
        assert self._states is not None, "a load brings a state to an engine without recurrent layers"
        self._states.scatter(view, part.block_ids, after)

    def _copy_layer(self, load: Load, got: Fetched, count: int, layer: int | None, after: Any) -> None:
        size = self._blocks_in_chunk
        for chunk in range(count):
            skip = load.skip_blocks if chunk == 0 else 0
            start = chunk * size + skip - load.skip_blocks
            ids = load.block_ids[start : start + size - skip]
            for number, part in enumerate(self._parts):
                view = got.views[chunk * len(self._parts) + number]
                part.scatter(view, size, skip, ids, layer, after)
                if load.windows and isinstance(part, GroupedLayers):
                    part.scatter_windows(view, load.windows[chunk], after)

    # ------------------------------------------------------------------ saves

    def _save_all(self, saves: Sequence[Save], after: Any, abandoned: int) -> None:
        for save in saves:
            self._save(save, after, abandoned)

    def _save(self, save: Save, after: Any, abandoned: int) -> None:
        started_s = self._clock()
        reason, written_bytes = "error", 0
        try:
            reason, written_bytes = self._copy_out(save, after, abandoned) if self._rules.writes else ("", 0)
        except Exception:  # noqa: BLE001 - a bug of ours must not end the engine's step; logged in full and counted
            self._failed("saving a chunk")
        finally:
            self._save_over(save, reason, written_bytes, self._clock() - started_s)

    def _save_over(self, save: Save, reason: str, written_bytes: int = 0, took_s: float = 0.0) -> None:
        """`written_bytes`: what was written here; 0 where another worker or node had it already."""
        with self._lock:
            self._results.saves[save.save] = not reason
            self._saves_count -= 1
            if not self._saves_count:
                self._lock.notify_all()
            self.has_results = self.has_figures = True
            figures = self._figures
            if reason:
                figures.saves_failed[reason] = figures.saves_failed.get(reason, 0) + 1
            elif written_bytes:
                figures.saved_chunks += 1
                figures.saved_bytes += written_bytes
                figures.save_s.append(took_s)

    def _copy_out(self, save: Save, after: Any, abandoned: int) -> tuple[str, int]:
        """(why it is not in the pool, empty if it is; bytes that were written here)."""
        client = self._link.client
        if client is None:
            return "away", 0
        try:
            written_bytes = 0
            for number in range(len(self._parts)):
                reason, part_bytes = self._put(client, save, number, after, abandoned)
                if reason:
                    return reason, 0
                written_bytes += part_bytes
            return "", written_bytes
        except AgentUnavailableError as error:
            self._link.connection_lost(client, str(error))
            return "away", 0
        except PoolFullError:
            return "pool_full", 0
        except AgentError as error:
            self._log.warning("kvcast: a chunk is not saved: %s", error)
            return "refused", 0

    def _put(self, client: AgentClient, save: Save, part: int, after: Any, abandoned: int) -> tuple[str, int]:
        shard, size_bytes = self._rules.shards[part], self._state_bytes if save.is_state else self._part_bytes
        slot = client.reserve(
            save.keys[shard], save.parents[shard], size_bytes, position=save.position, namespace=self._namespace
        )
        if slot is None:
            return "", 0
        with slot:
            if save.is_state:
                assert self._states is not None, "a state is saved of an engine without recurrent layers"
                self._states.gather(save.block_ids, slot.view, after)
            else:
                self._parts[part].gather(save.block_ids, slot.view, after)
            # Looked at behind the copy: then the bytes were read before anything wrote over them.
            if abandoned != self._abandoned:
                return "refused", 0
            slot.commit()
        return "", size_bytes
