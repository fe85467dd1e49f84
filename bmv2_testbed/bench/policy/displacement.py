"""What it costs the controller that a chunk comes into a full switch: CPU time of `SwitchCache` alone."""

from __future__ import annotations

import time
from dataclasses import dataclass

from controlplane.core.cluster import Cluster
from controlplane.core.directory import ChunkFacts
from controlplane.core.ids import ChunkKey, NodeIndex, SwitchPort
from controlplane.core.last_copies import LastCopyReplication
from controlplane.core.locations import Location
from controlplane.core.nodes import Graces, NodeFacts
from controlplane.core.options import CoreOptions, FabricParameters, SwitchCacheRules
from controlplane.core.switch.entries import FabricEntry
from controlplane.core.switch.programmer import SwitchProgrammer, WriteSwitch
from controlplane.core.switch.target import SwitchFacts
from controlplane.core.switch_cache.cache import SwitchCache
from controlplane.core.tasks import FillFor
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
        fabric = FabricEntry(bytes(6), bytes(4), bytes(6), bytes(4), 10, 10_000_000, 1_000_000, 64)
        options = CoreOptions(
            FabricParameters(fabric, qkey=0),
            Graces(1 << 62, 1 << 62, 1 << 62),
            incarnation=1,
            with_switch=True,
            rules=SwitchCacheRules(price_fills=False),
        )
        self.cluster = Cluster(options)
        for number in range(_HOLDERS):
            self._attach(number)
        self.programmer = SwitchProgrammer(check_interval_ns=1 << 62)
        self.cache = SwitchCache(self.cluster, self.programmer, LastCopyReplication(self.cluster))
        facts = SwitchFacts(residents * _SEGMENTS, _SEGMENT_BYTES, residents, 64)
        self.programmer.up(facts)
        self.programmer.next(0)
        self.programmer.read_done({}, 0)
        self.cache.switch_up(facts)
        self.cache.switch_read({}, False)
        self.cache_s = 0.0

    def _attach(self, number: int) -> None:
        mac, ip = bytes((2, 0, 0, 0, 0, number)), bytes((10, 75, 0, number))
        facts = NodeFacts(f"n{number}", 1, ip, mac, "", 0, None, 1 << 40, frozenset())
        node = self.cluster.nodes.hello(number, facts, 0)
        self.cluster.nodes.sighted(node, Location(SwitchPort(number + 1), mac, ip))

    def offer(self, number: int, fetches: int) -> None:
        """Offer a chunk that one node holds, that was fetched `fetches` times, and that two readers want."""
        key = ChunkKey(number.to_bytes(16, "big"))
        self.cluster.directory.add_copy(
            NodeIndex(number % _HOLDERS), ChunkFacts(key, None, _SEGMENTS * _SEGMENT_BYTES, _DIGEST, 0, "")
        )
        for _ in range(fetches):
            self.cluster.values.fetched([key], self.cluster.now_ns)
        self.cache.heat_reported(key, 2)

    def run_until(self, serving: int) -> None:
        """Go on until `serving` chunks have come to be served, counted from the start."""
        while self.cache.decisions["serving"] < serving:
            self.cluster.now_ns += _STEP_NS
            start_s = time.process_time()
            self.cache.advance()
            for task in self.cluster.tasks.take_ready(self.cluster.now_ns):
                self.cluster.tasks.finish(task.id)
                if isinstance(task.purpose, FillFor):
                    self.cache.filled(task.purpose.key)
            self.cache_s += time.process_time() - start_s
            while isinstance(self.programmer.next(self.cluster.now_ns), WriteSwitch):
                self.programmer.write_done({}, self.cluster.now_ns)


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
