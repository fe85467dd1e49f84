"""Flows in time: who carries how much until when. Exact between events, as rates change only when flows do.

Owns the links, their counters and all flows under way. Only the flows that share a link, directly or through others,
with one that changed get new rates.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.network.fairness import Flow, LinkId, Receiver, share

_DONE_BYTES = 1e-3
"""What rounding leaves of a transfer."""


@dataclass(slots=True, eq=False)
class Transfer(Flow):
    """A flow of a length. `position` is how far its fastest receiver is."""

    length: float = 0.0
    position: float = 0.0
    got: dict[Receiver, float] = field(default_factory=dict)
    """Bytes of this transfer that each receiver took since it joined."""
    joined_at: dict[Receiver, float] = field(default_factory=dict)
    """The position then."""
    since_s: float = 0.0
    """Positions are of this time."""
    version: int = 0
    order: int = 0


class FluidNetwork:
    """Links by number; time in seconds, lengths in bytes on the wire."""

    def __init__(self, capacity: Sequence[float]) -> None:
        """`capacity`: bytes per second of each link."""
        self._capacity = list(capacity)
        self.carried = [0.0] * len(self._capacity)
        """Bytes by link since the beginning, up to `now_s` after `advance_to`."""
        self._on_link: list[dict[Transfer, None]] = [{} for _ in self._capacity]
        self._changed: set[LinkId] = set()
        self._ends: list[tuple[float, int, int, Transfer]] = []
        self._orders = itertools.count()
        self.transfers: dict[Transfer, None] = {}
        self.now_s = 0.0
        """Allocations computed."""

    def start(
        self,
        shared: tuple[LinkId, ...],
        receivers: dict[Receiver, tuple[LinkId, ...]],
        length: float,
        now_s: float,
        weight: float = 1.0,
    ) -> Transfer:
        """A transfer begins."""
        self._at(now_s)
        transfer = Transfer(shared, dict(receivers), weight, length=length, since_s=now_s, order=next(self._orders))
        transfer.got = dict.fromkeys(receivers, 0.0)
        transfer.joined_at = dict.fromkeys(receivers, 0.0)
        self.transfers[transfer] = None
        self._touch(transfer, self._links(transfer))
        return transfer

    def prolong(self, transfer: Transfer, length: float, now_s: float) -> None:
        """A finished transfer goes on with the same receivers and the next bytes: no rate changes."""
        self._at(now_s)
        self._move(transfer, now_s)
        transfer.length, transfer.position = length, 0.0
        transfer.got = dict.fromkeys(transfer.receivers, 0.0)
        transfer.joined_at = dict.fromkeys(transfer.receivers, 0.0)
        self._schedule(transfer)

    def join(self, transfer: Transfer, receiver: Receiver, links: tuple[LinkId, ...], now_s: float) -> None:
        """One more receiver, from the present position on."""
        self._at(now_s)
        self._move(transfer, now_s)
        transfer.receivers[receiver] = links
        transfer.got[receiver] = 0.0
        transfer.joined_at[receiver] = transfer.position
        self._touch(transfer, self._links(transfer))

    def leave(self, transfer: Transfer, receiver: Receiver, now_s: float) -> None:
        """One receiver less; there are others."""
        self._at(now_s)
        self._move(transfer, now_s)
        links = self._links(transfer)
        for link in transfer.receivers.pop(receiver):
            self._on_link[link].pop(transfer, None)
        for by_receiver in (transfer.got, transfer.joined_at, transfer.rates):
            by_receiver.pop(receiver, None)
        self._changed.update(links)

    def got(self, transfer: Transfer, receiver: Receiver, now_s: float) -> float:
        """Bytes that a receiver has of a transfer by now."""
        self._at(now_s)
        self._move(transfer, now_s)
        return transfer.got[receiver]

    def position(self, transfer: Transfer, now_s: float) -> float:
        """Bytes that have left of a transfer by now."""
        self._at(now_s)
        self._move(transfer, now_s)
        return transfer.position

    def end(self, transfer: Transfer, now_s: float) -> None:
        """A transfer is over."""
        self._at(now_s)
        self._move(transfer, now_s)
        transfer.version += 1
        del self.transfers[transfer]
        links = self._links(transfer)
        for link in links:
            self._on_link[link].pop(transfer, None)
        self._changed.update(links)

    def next_end_s(self) -> float:
        """When the next transfer is complete; infinity when none is under way."""
        self._solve()
        while self._ends:
            at_s, _, version, transfer = self._ends[0]
            if version == transfer.version:
                return at_s
            heapq.heappop(self._ends)
        return float("inf")

    def advance(self, now_s: float) -> list[Transfer]:
        """Go to this time, not beyond `next_end_s`; returns complete transfers, which the caller ends or prolongs."""
        self._at(now_s)
        complete = []
        while self._ends and self._ends[0][0] <= now_s:
            _, _, version, transfer = heapq.heappop(self._ends)
            if version != transfer.version:
                continue
            self._move(transfer, now_s)
            transfer.version += 1
            complete.append(transfer)
        return complete

    def advance_to(self, now_s: float) -> None:
        """Bring all counters up to this time."""
        self._at(now_s)
        for transfer in self.transfers:
            self._move(transfer, now_s)

    def load(self, link: LinkId) -> int:
        """Transfers on a link now."""
        return len(self._on_link[link])

    # -- inside

    def _at(self, now_s: float) -> None:
        """Time goes on: what changed before has its rates by then."""
        if now_s > self.now_s:
            self._solve()
            self.now_s = now_s

    @staticmethod
    def _links(transfer: Transfer) -> list[LinkId]:
        return [*transfer.shared, *(link for own in transfer.receivers.values() for link in own)]

    def _touch(self, transfer: Transfer, links: list[LinkId]) -> None:
        for link in links:
            self._on_link[link][transfer] = None
        self._changed.update(links)

    def _move(self, transfer: Transfer, now_s: float) -> None:
        elapsed = now_s - transfer.since_s
        if elapsed <= 0:
            return
        transfer.since_s = now_s
        if not transfer.rates:
            return
        moved = min(transfer.rate * elapsed, max(0.0, transfer.length - transfer.position))
        if transfer.length - transfer.position - moved < _DONE_BYTES:
            moved = transfer.length - transfer.position
        share_of = moved / transfer.rate if transfer.rate > 0 else 0.0
        transfer.position += moved
        for link in transfer.shared:
            self.carried[link] += moved
        for receiver, rate in transfer.rates.items():
            took = rate * share_of
            transfer.got[receiver] += took
            for link in transfer.receivers[receiver]:
                self.carried[link] += took

    def _solve(self) -> None:
        """New rates for everything connected to what changed."""
        if not self._changed:
            return
        affected: dict[Transfer, None] = {}
        seen: set[LinkId] = set()
        todo = sorted(self._changed)
        self._changed.clear()
        while todo:
            link = todo.pop()
            if link in seen:
                continue
            seen.add(link)
            for transfer in self._on_link[link]:
                if transfer not in affected:
                    affected[transfer] = None
                    todo += [other for other in self._links(transfer) if other not in seen]
        if not affected:
            return
        for transfer in affected:
            self._move(transfer, self.now_s)
        before = {transfer: transfer.rate for transfer in affected}
        share(affected, self._capacity)
        for transfer in affected:
            if transfer.rate != before[transfer] or transfer.version == 0:
                self._schedule(transfer)

    def _schedule(self, transfer: Transfer) -> None:
        transfer.version += 1
        if transfer.rate > 0:
            at_s = transfer.since_s + (transfer.length - transfer.position) / transfer.rate
            heapq.heappush(self._ends, (at_s, transfer.order, transfer.version, transfer))
