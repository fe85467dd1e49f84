"""The routes of one request, and when the first k of its chunks would be here. Pure.

Disk, cold store and link work side by side; on each, chunks queue behind the transfers under way there. A chunk on its
way costs only its remainder. What a holder has queued for others delays its chunks, whoever asks. A chunk that somebody
computes at this moment can be asked for when it is computed (`merging`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvpolicy.tiers.merging import spared_s
from kvpolicy.tiers.prefill import Prefill
from kvpolicy.value import SourceCosts, Tier

LOCAL: Final = Tier.LOCAL_DRAM
ON_DISK: Final = Tier.LOCAL_DISK
_OWN_PATHS: Final = frozenset({ON_DISK, Tier.COLD})
"""Sources with a way of their own: this node's disk, and the cold store. All others share the link between nodes."""
PATHS: Final[Mapping[Tier, Tier]] = MappingProxyType(
    {source: source if source in _OWN_PATHS else Tier.REMOTE_DRAM for source in Tier}
)
"""The way that chunks from a source come; REMOTE_DRAM stands for the link between nodes."""
NOTHING_RECKONED: Final[Mapping[Tier, int]] = MappingProxyType({})
_ROUNDING: Final = 1e-6
_BY_HOLDERS: Final = frozenset({Tier.REMOTE_DRAM, Tier.REMOTE_DISK})
"""Sources that wait for what their holders have queued; the switch has an uplink for each reader."""


class Offer(NamedTuple):
    """One chunk of a request."""

    size_bytes: int
    sources: tuple[Tier, ...]
    """Where it can be had, at least one; LOCAL_DRAM costs nothing."""
    coming_bytes: int | None = None
    """It is on its way for another request, from the only source given, and this much of it is still to come; nothing
    more is asked for it. None: it is not on its way."""
    holder_load: HolderLoad = IDLE
    """What its least busy holder has queued for others."""
    ready_s: float = 0.0
    """It is being computed, and nobody can have it before. 0: it is there."""
    reckoned: Mapping[Tier, int] = NOTHING_RECKONED
    """By source: as many bytes of it as cost what the chunk does, where it lies there in fewer bytes and is decoded
    (`kvpolicy.tiers.form_costs`); all others have `size_bytes`."""


def queue_s(costs: SourceCosts, path: Tier, under_way: Mapping[Tier, int]) -> float:
    """Seconds until `under_way` (bytes left to come, by source) has come over a path."""
    queued_s = 0.0
    for source, size_bytes in under_way.items():
        if PATHS[source] is path:
            queued_s += size_bytes / costs.cost(source).rate_bytes_per_s
    return queued_s


def side_by_side_s(costs: SourceCosts, loads: Mapping[Tier, int]) -> float:
    """Seconds for `loads` (bytes by source), disk, cold store and link at the same time."""
    paths_s: dict[Tier, float] = {}
    for source, size in loads.items():
        path = PATHS[source]
        paths_s[path] = paths_s.get(path, 0.0) + costs.cost_s(source, size)
    return max(paths_s.values(), default=0.0)


class Plan:
    """A route for each chunk, and how long the first k of them take. Index k runs from 0 to the number of chunks."""

    def __init__(
        self,
        costs: SourceCosts,
        offers: Sequence[Offer],
        under_way: Mapping[Tier, int],
        prefill: Prefill | None,
        first: int,
        wait_max_s: float = 0.0,
    ) -> None:
        """`under_way`: bytes left to come for other requests, by source; `first`: chunks of the prefix before these;
        `wait_max_s`: how much later this request may be served to spare those behind it."""
        self.costs = costs
        self._wait_max_s = wait_max_s
        self._offers = offers
        self.routes: list[Tier] = []
        self.finish_s: list[float] = [0.0]
        """When the last of the first k is here."""
        self.brought_bytes: list[int] = [0]
        self._others: list[Tier | None] = []
        self._under_way = under_way
        self._queues_s: dict[Tier, float] = {}
        """By path, of those that are offered: what is under way there takes so long."""
        self._asked: dict[Tier, int] = {}
        self._coming_s: dict[Tier, float] = {}
        """By path: when the last chunk is here that was on its way already."""
        self._unready = len(offers)
        """The first that is being computed."""
        for place, offer in enumerate(offers):
            if offer.ready_s > 0 and place < self._unready:
                self._unready = place
            self._route(offer)
        weights = [float(offer.size_bytes) for offer in offers]
        self.compute_left_s = (0.0,) * (len(offers) + 1) if prefill is None else prefill.left_s(weights, first)
        """Seconds to compute what lies behind the first k."""
        self.prefill = prefill
        self.queue_s = 0.0 if prefill is None else prefill.queue_s
        """Until the engine begins with the request in any case."""
        is_computed = prefill is not None and self._unready < len(offers)
        self._transfers_s = self._transfers_from(self._unready) if is_computed else []
        """Seconds to transfer the first k of those from the first that is being computed on."""

    def _route(self, offer: Offer) -> None:
        sources = offer.sources
        route, other = sources[0], None
        end_s = self._end_s(offer, route)
        if len(sources) > 1:
            ends_s = {source: self._end_s(offer, source) for source in sources[1:]} | {route: end_s}
            route, other, *_ = sorted(sources, key=ends_s.__getitem__)
            end_s = ends_s[route]
        if offer.coming_bytes is not None:
            self._coming_s[PATHS[route]] = end_s
        elif route is not LOCAL:
            self._asked[route] = self._asked.get(route, 0) + offer.reckoned.get(route, offer.size_bytes)
        self.routes.append(route)
        self._others.append(None if route is LOCAL else other)
        self.finish_s.append(max(self.finish_s[-1], end_s))
        self.brought_bytes.append(self.brought_bytes[-1] + offer.size_bytes)

    def _end_s(self, offer: Offer, source: Tier) -> float:
        if source is LOCAL:
            return 0.0
        path, line = PATHS[source], self.costs.cost(source)
        if offer.coming_bytes is not None:
            rest_s = offer.coming_bytes / line.rate_bytes_per_s
            return max(offer.ready_s, self._coming_s.get(path, 0.0) + rest_s)
        asked_bytes = offer.reckoned.get(source, offer.size_bytes)
        own_bytes = self._asked.get(source, 0) + asked_bytes
        wait_s = self._queues_s.get(path)
        if wait_s is None:
            wait_s = queue_s(self.costs, path, self._under_way) if self._under_way else 0.0
            self._queues_s[path] = wait_s
        if source in _BY_HOLDERS and offer.holder_load is not IDLE:
            wait_s = max(wait_s, offer.holder_load.delay_s(own_bytes, line.rate_bytes_per_s))
        in_turn_s = wait_s + line.overhead_s + own_bytes / line.rate_bytes_per_s
        for one, size in self._asked.items():
            if one is not source and PATHS[one] is path:
                in_turn_s += self.costs.cost_s(one, size)
        if not offer.ready_s:
            return in_turn_s
        return max(in_turn_s, offer.ready_s + line.overhead_s + asked_bytes / line.rate_bytes_per_s)

    @property
    def wanted_bytes(self) -> int:
        """Of all chunks."""
        return self.brought_bytes[-1]

    @property
    def ready_s(self) -> float:
        """Until the last chunk that is being computed can be had; 0: none is."""
        return max((offer.ready_s for offer in self._offers), default=0.0)

    def total_s(self, count: int) -> float:
        """Until the engine has everything when it waits for the first `count` chunks and computes the rest."""
        return max(self.finish_s[count], self.queue_s) + self.compute_left_s[count]

    def best(self) -> int:
        """How many leading chunks to bring: what takes least, and of equals the most."""
        if self.prefill is None:
            return len(self.routes)
        queue_s = self.queue_s
        ends = zip(self.finish_s, self.compute_left_s, strict=True)
        totals = [max(end_s, queue_s) + left_s for end_s, left_s in ends]
        for count in range(self._unready + 1, len(totals)):
            totals[count] -= self.spared_s(count)
        return len(totals) - 1 - totals[::-1].index(min(totals))

    def waits(self, count: int) -> bool:
        """Whether some of the first `count` chunks are being computed."""
        return count > self._unready

    def spared_s(self, count: int) -> float:
        """How much later the first `count` chunks may be here, because computing them would keep others waiting."""
        if self.prefill is None or not self.waits(count):
            return 0.0
        unnecessary_s = self.compute_left_s[self._unready] - self.compute_left_s[count]
        transfer_s = self._transfers_s[count - self._unready]
        return spared_s(self.prefill.behind, unnecessary_s - transfer_s, self._wait_max_s)

    def _transfers_from(self, first: int) -> list[float]:
        """Seconds to transfer the chunks from `first` up to each of those behind it."""
        seconds = [0.0]
        for place in range(first, len(self._offers)):
            asked_s = 0.0
            if self._offers[place].coming_bytes is None:
                asked_s = self.asked_bytes(place) / self.costs.cost(self.routes[place]).rate_bytes_per_s
            seconds.append(seconds[-1] + asked_s)
        return seconds

    def asked_bytes(self, place: int) -> int:
        """What the source of a chunk is reckoned with."""
        offer = self._offers[place]
        return offer.reckoned.get(self.routes[place], offer.size_bytes)

    def asks_nothing(self, place: int) -> bool:
        """Whether bringing this chunk would measure nothing: it is here, on its way, or not yet computed."""
        offer = self._offers[place]
        return self.routes[place] is LOCAL or offer.coming_bytes is not None or offer.ready_s > 0

    def waits_s(self, count: int, loads: Mapping[Tier, int]) -> float:
        """Of the time until the first `count` chunks are here (see `loads`), what is spent waiting for other transfers
        and holders' queues; 0 where it is no more than rounding."""
        if not loads:
            return 0.0
        waits_s = self.finish_s[count] - side_by_side_s(self.costs, loads)
        return waits_s if waits_s > _ROUNDING * self.finish_s[count] else 0.0

    def loads_behind(self, count: int) -> Mapping[Tier, int]:
        """Bytes by source of the chunks that are not brought."""
        return self._bytes_by(self.routes[count:], self._offers[count:])

    def loads(self, count: int) -> Mapping[Tier, int]:
        """Bytes asked of each source for the first `count` chunks."""
        return self._bytes_by(self.routes[:count], self._offers[:count])

    def other_loads(self, count: int) -> Mapping[Tier, int]:
        """The same at the best source that was not chosen, of those chunks that have one."""
        return self._bytes_by(self._others[:count], self._offers[:count]) if any(self._others) else {}

    @staticmethod
    def _bytes_by(sources: Sequence[Tier | None], offers: Sequence[Offer]) -> Mapping[Tier, int]:
        found: dict[Tier, int] = {}
        for source, offer in zip(sources, offers, strict=True):
            if source is not None and source is not LOCAL and offer.coming_bytes is None:
                found[source] = found.get(source, 0) + offer.reckoned.get(source, offer.size_bytes)
        return found
