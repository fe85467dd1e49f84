"""Looks every few seconds at the parts of an agent that can fail by themselves, and tells `Outages`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from hostagent import limits
from hostagent.cold.tier import ColdTier
from hostagent.controller.attachment import Attachment
from hostagent.core.core import AgentCore
from hostagent.core.disk_index import DiskState
from hostagent.core.events import ColdState
from hostagent.data_network import group_fault, network_fault
from hostagent.disk.store import DiskStore
from hostagent.outages import Outages, Part, Unanswered
from hostagent.tier_metrics import labelled_gauge
from hostagent.transport.base import TransportCounters

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchedParts:
    """What is looked at."""

    core: AgentCore
    counters: TransportCounters
    attachment: Attachment
    store: DiskStore | None
    cold: ColdTier | None
    place: Callable[[], tuple[str, str | None]]
    """This node's address on the data network, and its interface; None: nobody knows, as with the loopback."""
    network_trouble: Callable[[], str]
    """Why nothing is bound to the data network as it is now; empty: all is."""
    rails: Callable[[], Sequence[tuple[str, str | None]]] = tuple
    """As `place`, of the second rail and further ones."""


class OutageWatch:
    """`start` once everything runs, `close` before it ends."""

    def __init__(self, parts: WatchedParts, loop: asyncio.AbstractEventLoop) -> None:
        self.outages = Outages(limits.OUTAGE_S)
        self.parts = parts
        self._loop = loop
        self._joins = Unanswered(limits.OUTAGE_ASKED_MIN)
        self._reads = Unanswered(limits.OUTAGE_ASKED_MIN)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and again and again."""
        self._timer = self._loop.call_later(limits.OUTAGE_LOOK_S, self.start)
        self.look()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """What works, and what does not, at this moment."""
        for line in self.outages.looked(self._reasons(), self._loop.time()):
            log.warning("%s", line)

    def missing(self) -> list[str]:
        """Why the node is not ready."""
        return self.outages.missing(self._loop.time())

    def facts(self) -> Mapping[str, object]:
        """For /healthz: what does not work."""
        now_s = self._loop.time()
        return {
            one.part.value: {"reason": one.reason, "seconds": round(now_s - one.since_s)}
            for one in self.outages.lasting()
        }

    def figures(self) -> Iterator[Metric]:
        """For /metrics."""
        seconds = self.outages.seconds(self._loop.time())
        text = "For how long a part has not worked; 0: it works, or there is none"
        yield labelled_gauge("outage_seconds", text, "part", [(part.value, one) for part, one in seconds.items()])

    def _reasons(self) -> Mapping[Part, str | None]:
        return {
            Part.CONTROLLER: self._controller(),
            Part.NETWORK: self._network(),
            Part.RAILS: self._rails(),
            Part.CASTS: self._casts(),
            Part.READS: self._vain_reads(),
            Part.DISK: self._disk(),
            Part.COLD: self._cold(),
        }

    def _network(self) -> str | None:
        """A node is on its network while one rail works."""
        faults = self._faults()
        fault = None if None in faults else "; ".join(filter(None, faults))
        return self.parts.network_trouble() or fault or self.parts.core.paths.own_trouble()

    def _rails(self) -> str | None:
        faults = self._faults()
        return "; ".join(filter(None, faults)) or None if len(faults) > 1 else None

    def _faults(self) -> list[str | None]:
        return [network_fault(*one) for one in (self.parts.place(), *self.parts.rails())]

    def _controller(self) -> str | None:
        if not self.parts.attachment.has_controller or self.parts.core.connected:
            return None
        return "no controller takes this node: see the lines above, or kvcast doctor agent"

    def _casts(self) -> str | None:
        parts = self.parts
        if parts.core.member is None:
            return None
        if reason := group_fault(parts.attachment.fabric.group, parts.place()[1]):
            return reason
        joins = self._joins.count(parts.counters.joins_sent, parts.counters.control_received)
        return f"none of {joins} JOINs was answered: does the switch see this node?" if joins else None

    def _vain_reads(self) -> str | None:
        counters = self.parts.counters
        reads = self._reads.count(counters.reads_failed, counters.read_bytes_received)
        if reads:
            return f"{reads} reads from other nodes failed, and none ended well"
        unreached = self.parts.core.paths.unreached_count
        return f"nodes that cannot be reached on the data network: {unreached}" if unreached else None

    def _disk(self) -> str | None:
        store = self.parts.store
        return None if store is None or store.state is DiskState.ON else f"it is {store.state.value}: {store.reason}"

    def _cold(self) -> str | None:
        cold = self.parts.cold
        return None if cold is None or cold.state is ColdState.ON else f"it is {cold.state.value}: {cold.reason}"
