"""The native switch: tables, traffic manager, ports and packet loop in C, built on first use, and its Python face."""

from p4switch.runtime.abi import INCLUDE_DIR
from p4switch.runtime.batch import Batch
from p4switch.runtime.compiled_program import (
    ActionLayout,
    CounterLayout,
    DigestLayout,
    FieldLayout,
    ProfileLayout,
    Program,
    RegisterLayout,
    TableLayout,
)
from p4switch.runtime.native_switch import DigestEvent, Event, IdleEvent, LogEvent, PacketInEvent, PortEvent, Switch
from p4switch.runtime.pipeline import Pipeline
from p4switch.runtime.switch_values import (
    NO_ACTION,
    Direction,
    Entry,
    Faults,
    Match,
    MatchKind,
    PortStats,
    Queue,
    Result,
    Shape,
    Status,
    SwitchConfig,
    SwitchStats,
    TableFlag,
    Unit,
)

__all__ = [
    "INCLUDE_DIR",
    "NO_ACTION",
    "ActionLayout",
    "Batch",
    "CounterLayout",
    "DigestEvent",
    "DigestLayout",
    "Direction",
    "Entry",
    "Event",
    "Faults",
    "FieldLayout",
    "IdleEvent",
    "LogEvent",
    "Match",
    "MatchKind",
    "PacketInEvent",
    "Pipeline",
    "PortEvent",
    "PortStats",
    "ProfileLayout",
    "Program",
    "Queue",
    "RegisterLayout",
    "Result",
    "Shape",
    "Status",
    "Switch",
    "SwitchConfig",
    "SwitchStats",
    "TableFlag",
    "TableLayout",
    "Unit",
]
