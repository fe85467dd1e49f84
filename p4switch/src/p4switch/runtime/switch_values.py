"""The values that go in and out of a switch: what tables hold, how ports behave, what happened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag

from p4switch.values import ColorCounts, CounterValue, EntryAction, MeterConfig

PORTS_MAX = 512
DROP_PORT_DEFAULT = 511
NO_ACTION = 0xFFFFFFFF
"""Index of the action that does nothing: what a value set's members have."""


class MatchKind(IntEnum):
    """How a key field matches, as in the ABI."""

    EXACT = 0
    LPM = 1
    TERNARY = 2
    RANGE = 3
    OPTIONAL = 4


class TableFlag(IntFlag):
    """Properties of a table, as in the ABI."""

    COUNTS_PACKETS = 1
    COUNTS_BYTES = 2
    METERS = 4
    METERS_PACKETS = 8
    AGES = 16
    CONST_ENTRIES = 32
    CONST_DEFAULT = 64
    VALUE_SET = 128


class Unit(IntFlag):
    """What a counter or meter counts, as in the ABI."""

    BYTES = 1
    PACKETS = 2


class Direction(IntEnum):
    """Of frames, seen from the switch."""

    RX = 0
    TX = 1


class Status(Enum):
    """What became of one operation of a batch."""

    OK = 0
    FULL = 1
    EXISTS = 2
    NOT_FOUND = 3
    CONST = 4
    INVALID = 5
    IN_USE = 6


@dataclass(frozen=True, slots=True)
class Result:
    """Status of an operation; ``handle`` names the entry that an insert made."""

    status: Status
    handle: int


Match = tuple[int, int]
"""One key field. exact (value, ignored); lpm (value, prefix bits); ternary (value, mask); range (low, high);
optional (value, 1), or (0, 0) for any value."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A table entry as it stands now. ``handle`` is -1 for the default entry, ``action`` None for a value set's."""

    handle: int
    match: tuple[Match, ...]
    priority: int
    action: EntryAction | None
    counter: CounterValue
    meter: MeterConfig | None
    colors: ColorCounts
    timeout_us: int
    idle_us: int


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of one direction of a port. Probabilities from 0 to 1, each drawn by itself for every frame."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay_us: int = 0
    jitter_us: int = 0
    reorder_gap: int = 3
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A port's output rate: a token bucket with a queue behind it that holds ``queue_bytes`` at most."""

    rate_bits: int
    burst_bytes: int = 65536
    queue_bytes: int = 262144


@dataclass(frozen=True, slots=True)
class Queue:
    """What may wait for a busy port before egress: packets, their bytes, and in how many strict priorities."""

    packets: int = 64
    bytes: int = 4 << 20
    priorities: int = 1


@dataclass(frozen=True, slots=True)
class PortStats:
    """Frames and bytes of a port since it was added; faults are those that were injected. ``up``: 0 or 1."""

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int
    tx_queue_dropped: int
    rx_lost: int
    rx_duplicated: int
    rx_reordered: int
    rx_corrupted: int
    rx_delayed: int
    tx_lost: int
    tx_duplicated: int
    tx_reordered: int
    tx_corrupted: int
    tx_delayed: int
    up: int


@dataclass(frozen=True, slots=True)
class SwitchStats:
    """Packets by what happened to them. ``processed`` counts passes through ingress, so also recirculated packets.

    ``recirculating`` and its bytes are what waits at recirculation ports now.
    """

    received: int
    processed: int
    dropped_ingress: int
    dropped_egress: int
    no_pipeline: int
    no_group: int
    no_session: int
    no_port: int
    no_buffer: int
    parser_errors: int
    recirculated: int
    resubmitted: int
    cloned: int
    replicated: int
    queue_full: int
    clone_too_deep: int
    digests: int
    digests_dropped: int
    packet_ins: int
    packet_ins_dropped: int
    wakeups: int
    recirculation_lost: int
    recirculating: int
    recirculating_bytes: int


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """How a switch is set up. ``virtual_clock``: time stands still but for :meth:`Switch.advance`."""

    cpu_port: int | None = None
    drop_port: int = DROP_PORT_DEFAULT
    seed: int = 1
    virtual_clock: bool = False
    trace: bool = False
    recirculation_ports: tuple[int, ...] = ()
    recirculation_rate_bits: int = 0
    recirculation_queue_bytes: int = 0
