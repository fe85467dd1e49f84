"""What the server asks of a packet pipeline: the seam between P4Runtime and the native switch.

Objects are named by their index in the compiled program (`p4switch.ir.program.Program`). Values are bit
patterns as Python ints. The server checks names, widths, duplicates, sizes and references before it
calls; an implementation only says when the native side has no room (`PipelineFullError`).

Methods are called by one thread at a time (the server holds its lock) while packets flow. Changes may be
deferred until `flush()`, which makes all that came before it visible between two packets. Reads see what has been
flushed; of an entry not yet flushed they see its initial state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol, TypeAlias

from p4switch.values import ActionCall, ColorCounts, CounterValue, EntryAction, MeterConfig, Replica, WeightedMember

EntryHandle = NewType("EntryHandle", int)

KeyField: TypeAlias = tuple[int, int]
"""(value, mask) of one field; exact has a full mask, lpm a prefix; a range field holds (low, high)."""

MatchKey: TypeAlias = tuple[KeyField, ...]
"""One KeyField for each field of the table's key, in order."""


class PipelineFullError(Exception):
    """The native side has no room for one more object of the requested kind."""


@dataclass(frozen=True, slots=True)
class EntryState:
    """A new entry: what it does, and how its counter, meter, meter's counters and idle timer (0: none) begin."""

    target: EntryAction
    counter: CounterValue | None = None
    meter: MeterConfig | None = None
    idle_timeout_ns: int = 0
    colors: ColorCounts | None = None


@dataclass(frozen=True, slots=True)
class CloneSession:
    """Where clones of a session go; `packet_bytes_max` 0 leaves them whole."""

    replicas: tuple[Replica, ...]
    class_of_service: int = 0
    packet_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class InitialEntry:
    """An entry that the program's source wrote, as the pipeline holds it after loading."""

    handle: EntryHandle
    key: MatchKey
    priority: int
    call: ActionCall
    is_const: bool


class Pipeline(Protocol):
    """The state of one loaded program: tables, externs, replication."""

    def initial_entries(self, table: int) -> Sequence[InitialEntry]:
        """The entries that the source gives a table."""
        ...

    def initial_default(self, table: int) -> ActionCall:
        """The default action that the source gives a table."""
        ...

    def insert_entry(self, table: int, key: MatchKey, priority: int, entry: EntryState) -> EntryHandle:
        """Add an entry; of several that match, the highest priority wins."""
        ...

    def modify_entry(self, table: int, handle: EntryHandle, target: EntryAction, idle_timeout_ns: int) -> None:
        """Replace what an entry does; its counters and meters go on."""
        ...

    def delete_entry(self, table: int, handle: EntryHandle) -> None:
        """Remove an entry."""
        ...

    def set_default(self, table: int, call: ActionCall) -> None:
        """Replace the default action."""
        ...

    def entry_counter(self, table: int, handle: EntryHandle | None) -> CounterValue:
        """The direct counter of an entry, or (None) of the default entry."""
        ...

    def set_entry_counter(self, table: int, handle: EntryHandle | None, value: CounterValue) -> None:
        """Overwrite the direct counter of an entry, or (None) of the default entry."""
        ...

    def set_entry_meter(self, table: int, handle: EntryHandle | None, rates: MeterConfig | None) -> None:
        """Configure the direct meter of an entry or (None) of the default entry; rates None: always green."""
        ...

    def entry_colors(self, table: int, handle: EntryHandle | None) -> ColorCounts:
        """What the direct meter of an entry, or (None) of the default entry, has marked."""
        ...

    def set_entry_colors(self, table: int, handle: EntryHandle | None, counts: ColorCounts) -> None:
        """Overwrite what the direct meter of an entry, or (None) of the default entry, has marked."""
        ...

    def entry_idle_ns(self, table: int, handle: EntryHandle) -> int:
        """Nanoseconds since the entry was last hit (or made)."""
        ...

    def set_member(self, profile: int, member: int, call: ActionCall) -> None:
        """Create or replace a member of an action profile."""
        ...

    def delete_member(self, profile: int, member: int) -> None:
        """Remove a member that no group and no entry uses."""
        ...

    def set_group(self, profile: int, group: int, members: Sequence[WeightedMember]) -> None:
        """Create or replace a selector group."""
        ...

    def delete_group(self, profile: int, group: int) -> None:
        """Remove a group that no entry uses."""
        ...

    def set_multicast_group(self, group: int, replicas: Sequence[Replica] | None) -> None:
        """Create, replace or (None) remove a multicast group."""
        ...

    def set_clone_session(self, session: int, clone: CloneSession | None) -> None:
        """Create, replace or (None) remove a clone session."""
        ...

    def counters(self, counter: int, start: int, count: int) -> Sequence[CounterValue]:
        """Cells start..start+count of an indexed counter."""
        ...

    def set_counters(self, counter: int, start: int, values: Sequence[CounterValue]) -> None:
        """Overwrite cells of an indexed counter."""
        ...

    def set_meters(self, meter: int, start: int, rates: Sequence[MeterConfig | None]) -> None:
        """Configure cells of an indexed meter; None: always green."""
        ...

    def meter_colors(self, meter: int, start: int, count: int) -> Sequence[ColorCounts]:
        """What cells start..start+count of an indexed meter have marked."""
        ...

    def set_meter_colors(self, meter: int, start: int, counts: Sequence[ColorCounts]) -> None:
        """Overwrite what cells of an indexed meter have marked."""
        ...

    def registers(self, register: int, start: int, count: int) -> Sequence[int]:
        """Cells start..start+count of a register, as bit patterns."""
        ...

    def set_registers(self, register: int, start: int, values: Sequence[int]) -> None:
        """Overwrite cells of a register with bit patterns."""
        ...

    def set_value_set(self, value_set: int, members: Sequence[MatchKey]) -> None:
        """Replace the members of a parser value set."""
        ...

    def flush(self) -> None:
        """Make every change so far visible, all at once between two packets.

        Raises PipelineFullError when there was no room for some of them; those are left out, the others are in.
        """
        ...
