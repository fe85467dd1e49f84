"""Max-min fair rates of unicast and multi-rate multicast flows on shared links. Pure.

A flow crosses its `shared` links once, at the highest rate of its receivers, and each receiver's own links at that
receiver's rate: that is what a switch that copies in flight does, and a flow with one receiver is unicast. No
receiver's rate (over its flow's weight) can be raised without lowering one that is not higher: the unique multi-rate
max-min fair allocation of Rubenstein, Kurose and Towsley ("The impact of multicast layering on network fairness",
SIGCOMM 1999), found by raising all rates together and freezing those whose links are full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

LinkId = int
Receiver = int

_FULL: Final = 1e-9
"""Relative slack below which a link is full."""


@dataclass(slots=True, eq=False)
class Flow:
    """One sender, any number of receivers. `rates` are bytes per second by receiver, filled in by `share`."""

    shared: tuple[LinkId, ...]
    receivers: dict[Receiver, tuple[LinkId, ...]]
    """Each receiver's own links."""
    weight: float = 1.0
    rates: dict[Receiver, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Of the shared links: that of the fastest receiver."""
        return max(self.rates.values(), default=0.0)


@dataclass(slots=True)
class _Link:
    free: float
    weight: float = 0.0
    """Sum of the weights of what still grows on it."""
    own: list[tuple[Flow, Receiver]] = field(default_factory=list)
    shared: list[Flow] = field(default_factory=list)


def share(flows: Iterable[Flow], capacity: Sequence[float]) -> None:
    """Set the rates of `flows`, which have the links to themselves. `capacity`: bytes per second by link.

    Raises ValueError for a receiver without any link, whose rate nothing would bound.
    """
    flows = list(flows)
    links = _occupy(flows, capacity)
    growing: dict[Flow, set[Receiver]] = {}
    for flow in flows:
        flow.rates = {}
        if flow.receivers:
            growing[flow] = set(flow.receivers)
    while growing:
        level = min(link.free / link.weight for link in links.values() if link.weight > _FULL)
        limit = level * (1 + _FULL)
        full = [link for link in links.values() if link.weight > _FULL and link.free <= limit * link.weight]
        for link in full:
            for flow, receiver in link.own:
                _freeze(flow, receiver, level, growing, links)
            for flow in link.shared:
                for receiver in list(growing.get(flow, ())):
                    _freeze(flow, receiver, level, growing, links)


def _occupy(flows: Sequence[Flow], capacity: Sequence[float]) -> dict[LinkId, _Link]:
    links: dict[LinkId, _Link] = {}
    for flow in flows:
        for receiver, own in flow.receivers.items():
            if not own and not flow.shared:
                raise ValueError(f"receiver {receiver} has no link")
            for name in own:
                link = links.setdefault(name, _Link(capacity[name]))
                link.own.append((flow, receiver))
                link.weight += flow.weight
        if flow.receivers:
            for name in flow.shared:
                link = links.setdefault(name, _Link(capacity[name]))
                link.shared.append(flow)
                link.weight += flow.weight
    return links


def _freeze(
    flow: Flow, receiver: Receiver, level: float, growing: dict[Flow, set[Receiver]], links: dict[LinkId, _Link]
) -> None:
    """This receiver gets no more. Its flow's shared links stop growing with its last one."""
    left = growing.get(flow)
    if left is None or receiver not in left:
        return
    rate = level * flow.weight
    flow.rates[receiver] = rate
    left.discard(receiver)
    for name in flow.receivers[receiver]:
        links[name].free -= rate
        links[name].weight -= flow.weight
    if not left:
        del growing[flow]
        for name in flow.shared:
            links[name].free -= rate
            links[name].weight -= flow.weight
