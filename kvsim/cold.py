"""A simulated cold store that all hosts share, and one host's way to it: contents, time, and all that goes wrong.

It stands for hostagent.cold and a service behind it. Reads and writes take their turns at the store's rate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from hostagent.pool.chunks import Chunk
from hostagent.tree import NOT_HASHED, Hashed
from kvchunk.ids import ChunkKey
from kvproto.limits import MS
from kvsim.chance import Chance
from kvsim.engine import Engine

LATENCY_NS = MS
TIMEOUT_NS = 200 * MS
PROBE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ColdFaults:
    """Probabilities of each operation."""

    damage: float = 0.0
    """What is read is not what was written."""
    loss: float = 0.0
    """An object has vanished when it is read."""
    failure: float = 0.0
    """It does not answer in time."""
    refusal: float = 0.0
    """Of writes."""


class SimulatedColdStore:
    """What lies there: an entry and one number for each segment, as in DRAM."""

    def __init__(self, engine: Engine, rate_bytes_per_s: float, faults: ColdFaults, chance: Chance) -> None:
        self._engine = engine
        self._rate = rate_bytes_per_s
        self.faults = faults
        self.chance = chance
        self.objects: dict[ChunkKey, tuple[ChunkEntry, npt.NDArray[np.int64]]] = {}
        self.is_away = False
        self._free_ns = 0
        self._ways: list[ColdWay] = []

    def joined(self, way: "ColdWay") -> None:
        """A host uses it."""
        self._ways.append(way)

    def turn(self, away: bool) -> None:
        """Turn the store off or on. Its hosts notice at once; real shells notice after some failures."""
        self.is_away = away
        for way in self._ways:
            way.tell()

    def cost_s(self, size_bytes: int) -> float:
        """Of one operation alone."""
        return LATENCY_NS / 1e9 + size_bytes / self._rate

    def delay_ns(self, size_bytes: int) -> int:
        """Until an operation that begins now is done."""
        now_ns = self._engine.now_ns
        self._free_ns = max(self._free_ns, now_ns) + int(size_bytes / self._rate * 1e9)
        return self._free_ns + LATENCY_NS - now_ns

    def happens(self, probability: float) -> bool:
        """A fault."""
        return self.chance.fraction() < probability


class ColdHost(Protocol):
    """Whose way it is."""

    def tell(self, event: events.Event) -> None: ...
    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...
    def handle(self, event: events.Event) -> None: ...


class ColdWay:
    """One host's shell of the store. `view(chunk)`: the chunk's memory."""

    def __init__(
        self, host: ColdHost, store: SimulatedColdStore, view: Callable[[Chunk], npt.NDArray[np.int64]]
    ) -> None:
        self._host = host
        self._store = store
        self._view = view
        store.joined(self)

    def tell(self) -> None:
        """What the store is good for, and what it takes when it is there."""
        if not self._store.is_away:
            self._host.tell(events.ColdProbed(PROBE_BYTES, self._store.cost_s(PROBE_BYTES), LATENCY_NS / 1e9))
        self._host.tell(events.ColdStateGiven(ColdState.AWAY if self._store.is_away else ColdState.ON))

    def _fails(self) -> bool:
        return self._store.is_away or self._store.happens(self._store.faults.failure)

    def look_up(self, effect: effects.LookUpCold) -> None:
        """Answered by ColdLookedUp."""
        store = self._store
        if self._fails():
            self._host.after(TIMEOUT_NS, lambda: self._host.handle(events.ColdLookedUp(effect.number, ())))
            return

        def end() -> None:
            found = tuple(store.objects[key][0] for key in effect.keys if key in store.objects)
            absent = tuple(key for key in effect.keys if key not in store.objects)
            self._host.handle(events.ColdLookedUp(effect.number, found, absent))

        self._host.after(store.delay_ns(0), end)

    def load(self, effect: effects.LoadCold) -> None:
        """Answered by ColdLoadEnded; damaged bytes are written into the pool before they are found out, as they are by
        the real one."""
        into, store = effect.into, self._store
        if self._fails():
            failed = events.ColdLoadEnded(into, LoadOutcome.FAILED, NOT_HASHED)
            self._host.after(TIMEOUT_NS, lambda: self._host.handle(failed))
            return

        def end() -> None:
            found = store.objects.get(into.key)
            if found is not None and store.happens(store.faults.loss):
                del store.objects[into.key]
                found = None
            if found is None:
                self._host.handle(events.ColdLoadEnded(into, LoadOutcome.ABSENT, NOT_HASHED))
                return
            entry, contents = found
            damaged = store.happens(store.faults.damage)
            self._view(into)[:] = contents + 2 * damaged
            outcome = LoadOutcome.DAMAGED if damaged else LoadOutcome.DONE
            self._host.handle(events.ColdLoadEnded(into, outcome, NOT_HASHED if damaged else Hashed(entry.digest)))

        self._host.after(store.delay_ns(into.size_bytes), end)

    def save(self, effect: effects.SaveCold) -> None:
        """Answered by ColdSaveEnded."""
        chunk, store = effect.chunk, self._store
        if self._fails() or store.happens(store.faults.refusal):
            failed = events.ColdSaveEnded(chunk, SaveOutcome.FAILED)
            self._host.after(TIMEOUT_NS, lambda: self._host.handle(failed))
            return

        def end() -> None:
            entry = ChunkEntry(chunk.key, chunk.parent, chunk.size_bytes, chunk.digest, chunk.position, ())
            store.objects[chunk.key] = entry, self._view(chunk).copy()
            self._host.handle(events.ColdSaveEnded(chunk, SaveOutcome.STORED))

        self._host.after(store.delay_ns(chunk.size_bytes), end)

    def forget(self, effect: effects.ForgetCold) -> None:
        """Not answered."""
        if not self._store.is_away:
            self._store.objects.pop(effect.key, None)
