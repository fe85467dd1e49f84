"""What it costs the controller that a chunk comes into a full switch: CPU time of `SwitchCache` alone."""

from __future__ import annotations

import time
from dataclasses import dataclass

from controlplane.core.admission.admissions import Source
from controlplane.core.directory import ChunkFacts, Directory
from controlplane.core.ids import ChunkKey, NodeIndex, SwitchPort
from controlplane.core.switch.cache import FillWanted, SwitchCache, SwitchCacheRules
from controlplane.core.switch.programmer import SwitchProgrammer, WriteSwitch
from controlplane.core.switch.target import SwitchFacts
from controlplane.core.values import ClusterValues
from kvproto.integrity import Integrity, digest_of

_SEGMENT_BYTES = 4096
_SEGMENTS = 8
_DIGEST = digest_of(Integrity.BLAKE3, bytes(32))
_HOLDERS = 8
_STEP_NS = 1_000_000
_WARM_UP = 8
"""Displaced before anything is measured: the first one finds an order that nobody has asked for yet."""


@dataclass(frozen=True, slots=True)
class DisplacementCost:
    residents: int
    waiting: int
    """Candidates that are there all the time."""
    displaced: int
    displacement_us: float
    """Weighed, room made, filled, served: CPU time for one chunk."""


class _FullSwitch:
    """A switch that takes every write at once, nodes that fill at once."""

    def __init__(self, residents: int) -> None:
        self.now_ns = 0
        self.directory = Directory()
        self.values = ClusterValues(self.directory)
        self.programmer = SwitchProgrammer(check_interval_ns=1 << 62)
        self.cache = SwitchCache(
            self.directory,
            self.values,
            self.programmer,
            SwitchCacheRules(),
            self._sources,
            lambda excluded, namespace: [],
        )
        facts = SwitchFacts(residents * _SEGMENTS, _SEGMENT_BYTES, residents, 64)
        self.programmer.up(facts)
        self.programmer.next(0)
        self.programmer.read_done({}, 0)
        self.cache.switch_up(facts)
        self.cache.switch_read({}, False, 0)
        self.cache_s = 0.0

    def _sources(self, key: ChunkKey) -> list[Source]:
        chunk = self.directory.get(key)
        return [] if chunk is None else [Source(node, SwitchPort(node + 1)) for node in sorted(chunk.holders)]

    def offer(self, number: int, fetches: int) -> None:
        """Offer a chunk that one node holds, that was fetched `fetches` times, and that two readers want."""
        key = ChunkKey(number.to_bytes(16, "big"))
        self.directory.add_copy(
            NodeIndex(number % _HOLDERS), ChunkFacts(key, None, _SEGMENTS * _SEGMENT_BYTES, _DIGEST, 0, "")
        )
        for _ in range(fetches):
            self.values.fetched([key], self.now_ns)
        self.cache.report(key, 2, self.now_ns)

    def run_until(self, serving: int) -> None:
        """Go on until `serving` chunks have come to be served, counted from the start."""
        while self.cache.decisions["serving"] < serving:
            self.now_ns += _STEP_NS
            start_s = time.process_time()
            self.cache.advance(self.now_ns)
            effects = self.cache.take_effects()
            for effect in effects:
                if isinstance(effect, FillWanted):
                    self.cache.filled(effect.key)
            self.cache_s += time.process_time() - start_s
            while isinstance(self.programmer.next(self.now_ns), WriteSwitch):
                self.programmer.write_done({}, self.now_ns)


def measure_displacement(residents: int, displaced: int = 100, waiting: int = 64) -> DisplacementCost:
    """Fill a switch with `residents` chunks, then let in more valuable ones; `waiting` further candidates wait."""
    switch = _FullSwitch(residents)
    for number in range(residents):
        switch.offer(number, 1)
        switch.run_until(number)
    switch.run_until(residents)
    first = residents + _WARM_UP
    for number in range(residents, first + displaced + waiting):
        switch.offer(number, 4)
    switch.run_until(first)
    switch.cache_s = 0.0
    switch.run_until(first + displaced)
    return DisplacementCost(residents, waiting, displaced, 1e6 * switch.cache_s / displaced)
