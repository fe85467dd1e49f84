"""P4 register parameters on Tofino: times to live and windows, in ticks of 2^16 ns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import finsy

from controlplane.core.limits import TICK_NS
from controlplane.core.switch.entries import FabricEntry

_WANTED: Mapping[str, Callable[[FabricEntry], int]] = {
    "interest_ttl": lambda entry: of_us(entry.interest_ttl_us),
    "budget_window": lambda entry: of_us(entry.interest_ttl_us),
    "interest_turn": lambda entry: of_us(entry.interest_ttl_us) // 2,
    "heat_window": lambda entry: of_us(entry.heat_window_us),
    "report_window": lambda entry: of_us(entry.heat_window_us),
}
"""Ticks that a register parameter has, by the last part of its name."""


def of_us(time_us: int) -> int:
    """Ticks nearest to that many microseconds."""
    return (time_us * 1000 + TICK_NS // 2) // TICK_NS


def to_us(ticks: int) -> int:
    """Microseconds nearest to that many ticks."""
    return (ticks * TICK_NS + 500) // 1000


def names(schema: finsy.P4Schema) -> tuple[str, ...]:
    """The program's register parameters; none where P4Info leaves them out, as p4c's does: then the program keeps the
    times that it was built with. Raises ValueError if only some of the kinds are there."""
    found = tuple(one.alias for one in schema.registers if _kind(one.alias) in _WANTED)
    missing = _WANTED.keys() - set(map(_kind, found))
    if found and missing:
        raise ValueError(f"no register parameter {', '.join(sorted(missing))}")
    return found


def queries(registers: Iterable[str]) -> Sequence[finsy.P4RegisterEntry]:
    """What to read for these registers."""
    return [finsy.P4RegisterEntry(name, index=0) for name in registers]


def encode(entry: FabricEntry, registers: Iterable[str]) -> Sequence[finsy.P4RegisterEntry]:
    """The times of the fabric as register entries."""
    return [finsy.P4RegisterEntry(name, index=0, data=_wanted(entry, name)) for name in registers]


def checked(entry: FabricEntry, found: Iterable[finsy.P4RegisterEntry]) -> FabricEntry:
    """The entry as it takes effect: where the registers differ from the entry, they win."""
    for register in found:
        ticks = register.data
        if not isinstance(ticks, int) or ticks == _wanted(entry, register.register_id):
            continue
        match _kind(register.register_id):
            case "interest_ttl" | "budget_window":
                entry = replace(entry, interest_ttl_us=to_us(ticks))
            case "interest_turn":
                entry = replace(entry, interest_ttl_us=to_us(2 * ticks))
            case _:
                entry = replace(entry, heat_window_us=to_us(ticks))
    return entry


def _wanted(entry: FabricEntry, register: str) -> int:
    return _WANTED[_kind(register)](entry)


def _kind(alias: str) -> str:
    return alias.rpartition(".")[2]
