"""What stands in tables and externs: the values that compiler, runtime and P4Runtime server speak of alike.

Actions are named by their index in the program; arguments and fields are bit patterns as Python ints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

QUEUE_PACKETS_MAX = 1024
"""What may wait for a port before egress, at most; the runtime has the same bound."""
PRIORITIES_MAX = 8
"""standard_metadata.priority has three bits."""


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action with its arguments in parameter order."""

    action: int
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberRef:
    """An entry of an indirect table points at a member of its action profile."""

    member: int


@dataclass(frozen=True, slots=True)
class GroupRef:
    """An entry of an indirect table points at a group of its action selector."""

    group: int


EntryAction: TypeAlias = ActionCall | MemberRef | GroupRef


@dataclass(frozen=True, slots=True)
class CounterValue:
    """What a counter cell, or an entry's counter, has counted."""

    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ColorCounts:
    """What a meter cell, or an entry's meter, has marked with each color."""

    green: CounterValue = CounterValue()
    yellow: CounterValue = CounterValue()
    red: CounterValue = CounterValue()


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """A two-rate three-colour meter (RFC 2698): rates in units a second, bursts in units; the meter says which unit."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a packet: its port and its egress_rid."""

    port: int
    instance: int = 0


@dataclass(frozen=True, slots=True)
class WeightedMember:
    """A member of a selector group; it takes no packets while ``watch_port`` is down or not there."""

    member: int
    weight: int = 1
    watch_port: int | None = None
