"""What the control plane asks of a switch, whichever it is.

The contract, checked by `tests/contracts/switch_target` on every implementation:

* `run` holds a session until it is cancelled, however often the switch goes away, and reports what happens to `sink`
  in this order: Up (or Standby), any number of HeatReport, LostReport and Sighting, Down, and again.
* `read` and `write` raise SwitchUnavailableError outside Up .. Down or when the switch does not answer.
* `write` applies updates in the given order; an update that the switch refuses does not hinder the others, and is
  in the result. Updates are atomic one by one.
* `read` returns what `write` wrote, entry for entry, until the switch restarts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from controlplane.core.ids import ChunkKey, SwitchPort
from controlplane.core.locations import Location
from controlplane.core.switch.entries import Entry, SwitchContents


class SwitchUnavailableError(Exception):
    """The switch is away, or this controller is not its primary."""


@dataclass(frozen=True, slots=True)
class SwitchFacts:
    """Sizes of the program that runs in the switch, as its P4Info says."""

    slots: int
    """Segments that may be in it at a time."""
    segment_bytes: int
    recirculation_port: SwitchPort | None = None
    """Where cached segments circulate (Tofino); None: they lie in registers (v1model)."""
    asks_to_flood: bool = False
    """The program asks p4switch to fill the group of all ports by itself until a controller writes it."""
    casts_fills: bool = False
    """The program casts a FILL that says CAST_TOO; older ones store it and acknowledge it only."""


@dataclass(frozen=True, slots=True)
class Up:
    """This controller is primary and the program is known."""

    facts: SwitchFacts


@dataclass(frozen=True, slots=True)
class Standby:
    """Another controller is primary; Up follows when it goes."""


@dataclass(frozen=True, slots=True)
class Down:
    """The session with the switch ended; what it holds is not known any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class HeatReport:
    """Members wait for this chunk together, or it is asked for again and again."""

    key: ChunkKey
    members: int
    """Interest set, bit i is member i."""
    gets: int
    """Within the heat window; 0 when a JOIN caused the report."""


@dataclass(frozen=True, slots=True)
class LostReport:
    """A segment of a chunk that the switch serves does not circulate any more (Tofino)."""

    key: ChunkKey
    segment: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node said HERE, from where it is not known to be."""

    key: bytes
    """What it said: only the controller and the node know it."""
    seen: Location


SwitchEvent: TypeAlias = Up | Standby | Down | HeatReport | LostReport | Sighting


class Operation(enum.Enum):
    """What an update does with its entry."""

    INSERT = "insert"
    MODIFY = "modify"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Update:
    """One change of one entry."""

    operation: Operation
    entry: Entry


@dataclass(frozen=True, slots=True)
class OrbitTraffic:
    """What happened to packets at the orbit since the program started."""

    packets: Mapping[str, int]
    """By event, as the data plane names it."""
    circulating_packets: int
    """Packets that entered minus packets that left; packets lost on their round still count."""
    circulating_bytes: int


@dataclass(frozen=True, slots=True)
class SwitchCounters:
    """What the data plane counted since it started."""

    drops: Mapping[str, int]
    """Packets by reason, ingress and egress together."""
    orbit: OrbitTraffic | None = None
    """None where nothing circulates."""


class SwitchTarget(Protocol):
    """A switch that runs the kvcast program."""

    @property
    def address(self) -> str:
        """Where it listens for P4Runtime."""

    async def run(self, sink: Callable[[SwitchEvent], None], election_id: int | None = None) -> None:
        """Keep a session; report to `sink`. Ends only by cancellation. `election_id`: of this session, where something
        else than the switch elects: the switch takes writes of the highest one only; None: the configured one."""

    async def read(self) -> SwitchContents:
        """Everything in the tables and groups that the control plane owns."""

    async def write(self, updates: Sequence[Update]) -> dict[int, str]:
        """Apply updates; returns what was refused: index into `updates` -> reason."""

    async def counters(self) -> SwitchCounters:
        """Read the data plane's counters."""
