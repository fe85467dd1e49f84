"""The runtime's pipeline as the P4Runtime server wants it: p4switch.server.target_pipeline.Pipeline.

Changes are collected and handed to the runtime in one batch per `flush`, which it applies between two packets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from p4switch import runtime
from p4switch.ir import program as ir
from p4switch.ir.types import width_of
from p4switch.server.limits import TABLE_SIZE_DEFAULT
from p4switch.server.target_pipeline import (
    CloneSession,
    EntryHandle,
    EntryState,
    InitialEntry,
    KeyField,
    MatchKey,
    PipelineFullError,
)
from p4switch.values import ActionCall, ColorCounts, CounterValue, EntryAction, MeterConfig, Replica, WeightedMember


class NativePipeline:
    """p4switch.server.target_pipeline.Pipeline over the runtime's.

    `flood_group`: the multicast group that holds all ports while the control plane does not write it; 0: none.
    """

    def __init__(self, native: runtime.Pipeline, program: ir.Program, flood_group: int = 0) -> None:
        self.native = native
        self.program = program
        self._kinds = [[k.match_kind for k in t.keys] for t in native.program.tables]
        self._widths = [[k.width for k in t.keys] for t in native.program.tables]
        self._operations: list[_Operation | None] = []
        self._unflushed: dict[EntryHandle, int] = {}
        """Entries inserted since the last flush: where in `_operations`."""
        self._native_handles: dict[EntryHandle, int] = {}
        self._timed: dict[tuple[int, int], EntryHandle] = {}
        """Entries with an idle timeout by table and native handle."""
        self._next_handle = 1
        self._groups: dict[int, int] = {}
        """Multicast groups that the control plane has written: how many copies each makes."""
        self._flood_group = flood_group
        self._flooded: list[Replica] = []

    # -- what the source brings ------------------------------------------------------------------

    def initial_entries(self, table: int) -> Sequence[InitialEntry]:
        constant = {
            _source_key(e, self.program.tables[table]) for e in self.program.tables[table].entries if e.is_const
        }
        entries = []
        for entry in self.native.entries(table):
            if isinstance(entry.action, ActionCall):
                handle = self._new_handle()
                self._native_handles[handle] = entry.handle
                key = tuple(map(self._key_field, self._kinds[table], self._widths[table], entry.match))
                is_const = self.program.tables[table].const_entries or key in constant
                entries.append(InitialEntry(handle, key, entry.priority, entry.action, is_const))
        return entries

    def initial_default(self, table: int) -> ActionCall:
        return self.program.tables[table].default_action

    # -- tables ----------------------------------------------------------------------------------

    def insert_entry(self, table: int, key: MatchKey, priority: int, entry: EntryState) -> EntryHandle:
        handle = self._new_handle()
        self._unflushed[handle] = len(self._operations)
        self._operations.append(_Insert(handle, table, self._match(table, key), priority, entry))
        return handle

    def modify_entry(self, table: int, handle: EntryHandle, target: EntryAction, idle_timeout_ns: int) -> None:
        pending = self._pending(handle)
        if pending is not None:
            state = replace(pending.state, target=target, idle_timeout_ns=idle_timeout_ns)
            self._operations[self._unflushed[handle]] = replace(pending, state=state)
        elif (native := self._native_handles.get(handle)) is not None:
            timeout_us = _us(idle_timeout_ns)
            self._defer(lambda b: b.modify(table, native, target, timeout_us))
            self._timed.pop((table, native), None)
            if timeout_us:
                self._timed[table, native] = handle

    def delete_entry(self, table: int, handle: EntryHandle) -> None:
        if handle in self._unflushed:
            self._operations[self._unflushed.pop(handle)] = None
        elif (native := self._native_handles.pop(handle, None)) is not None:
            self._defer(lambda b: b.delete(table, native))
            self._timed.pop((table, native), None)

    def set_default(self, table: int, call: ActionCall) -> None:
        self._defer(lambda b: b.set_default(table, call))

    def entry_counter(self, table: int, handle: EntryHandle | None) -> CounterValue:
        entry = self._entry(table, handle)
        return CounterValue() if entry is None or entry.counter is None else entry.counter

    def set_entry_counter(self, table: int, handle: EntryHandle | None, value: CounterValue) -> None:
        self._change_entry(handle, lambda b, native: b.set_entry_counter(table, native, value), counter=value)

    def set_entry_meter(self, table: int, handle: EntryHandle | None, rates: MeterConfig | None) -> None:
        self._change_entry(handle, lambda b, native: b.set_entry_meter(table, native, rates), meter=rates)

    def entry_colors(self, table: int, handle: EntryHandle | None) -> ColorCounts:
        entry = self._entry(table, handle)
        return ColorCounts() if entry is None or entry.colors is None else entry.colors

    def set_entry_colors(self, table: int, handle: EntryHandle | None, counts: ColorCounts) -> None:
        self._change_entry(handle, lambda b, native: b.set_entry_colors(table, native, counts), colors=counts)

    def entry_idle_ns(self, table: int, handle: EntryHandle) -> int:
        native = self._native_handles.get(handle)
        entry = None if native is None else self.native.entry(table, native)
        return 0 if entry is None else entry.idle_us * 1000

    def timed_entry(self, table: int, native_handle: int) -> EntryHandle | None:
        """The entry that an idle event of the runtime means."""
        return self._timed.get((table, native_handle))

    # -- profiles and replication ----------------------------------------------------------------

    def set_member(self, profile: int, member: int, call: ActionCall) -> None:
        self._defer(lambda b: b.set_member(profile, member, call))

    def delete_member(self, profile: int, member: int) -> None:
        self._defer(lambda b: b.delete_member(profile, member))

    def set_group(self, profile: int, group: int, members: Sequence[WeightedMember]) -> None:
        kept = list(members)
        self._defer(lambda b: b.set_group(profile, group, kept))

    def delete_group(self, profile: int, group: int) -> None:
        self._defer(lambda b: b.delete_group(profile, group))

    def set_multicast_group(self, group: int, replicas: Sequence[Replica] | None) -> None:
        if replicas is not None:
            kept = list(replicas)
            self._groups[group] = len(kept)
            self._defer(lambda b: b.set_multicast_group(group, kept))
            return
        self._groups.pop(group, None)
        if group == self._flood_group:
            self._defer(self._enter_flood)
        else:
            self._defer(lambda b: b.delete_multicast_group(group))

    def flood_to(self, ports: Sequence[int]) -> None:
        """The switch's ports now, which the flood group holds as long as the control plane has not written it.

        Takes effect at once; may be called from any thread.
        """
        self._flooded = [Replica(port, 0) for port in ports]
        if self._flood_group and self._flood_group not in self._groups:
            batch = self.native.batch()
            self._enter_flood(batch)
            batch.commit()

    def group_sizes(self) -> dict[int, int]:
        """How many copies each multicast group makes, by its id."""
        flooded = {self._flood_group: len(self._flooded)} if self._flood_group else {}
        return dict(sorted((flooded | self._groups).items()))

    def table_use(self) -> dict[str, dict[str, int]]:
        """Entries and size of each table that has a key, by its name."""
        return {
            table.name: {"entries": self.native.entry_count(table.index), "size": table.size or TABLE_SIZE_DEFAULT}
            for table in self.program.tables
            if table.keys and not any(a.name == "hidden" for a in table.annotations)
        }

    def _enter_flood(self, batch: runtime.Batch) -> None:
        batch.set_multicast_group(self._flood_group, self._flooded)

    def set_clone_session(self, session: int, clone: CloneSession | None) -> None:
        if clone is None:
            self._defer(lambda b: b.delete_clone_session(session))
        else:
            self._defer(
                lambda b: b.set_clone_session(session, clone.replicas, clone.packet_bytes_max, clone.class_of_service)
            )

    # -- arrays ----------------------------------------------------------------------------------

    def counters(self, counter: int, start: int, count: int) -> Sequence[CounterValue]:
        return self.native.counters(counter, start, count)

    def set_counters(self, counter: int, start: int, values: Sequence[CounterValue]) -> None:
        kept = list(values)
        self._defer(lambda b: b.set_counters(counter, start, kept))

    def set_meters(self, meter: int, start: int, rates: Sequence[MeterConfig | None]) -> None:
        kept = list(rates)
        self._defer(lambda b: b.set_meters(meter, start, kept))

    def meter_colors(self, meter: int, start: int, count: int) -> Sequence[ColorCounts]:
        return self.native.colors(meter, start, count)

    def set_meter_colors(self, meter: int, start: int, counts: Sequence[ColorCounts]) -> None:
        kept = list(counts)
        self._defer(lambda b: b.set_colors(meter, start, kept))

    def registers(self, register: int, start: int, count: int) -> Sequence[int]:
        return self.native.registers(register, start, count)

    def set_registers(self, register: int, start: int, values: Sequence[int]) -> None:
        kept = list(values)
        self._defer(lambda b: b.set_registers(register, start, kept))

    def set_value_set(self, value_set: int, members: Sequence[MatchKey]) -> None:
        table = self._value_set_table(value_set)
        matches = [self._match(table, member) for member in members]
        self._defer(lambda b: b.clear(table))
        for n, match in enumerate(matches):
            self._defer(lambda b, match=match, n=n: b.insert(table, match, None, len(matches) - n))  # type: ignore[misc]

    # -- flushing --------------------------------------------------------------------------------

    def flush(self) -> None:
        operations = [op for op in self._operations if op is not None]
        self._operations.clear()
        self._unflushed.clear()
        if not operations:
            return
        batch = self.native.batch()
        for operation in operations:
            operation.enter(batch)
        refused = 0
        for operation, result in zip(operations, batch.commit(), strict=True):
            if result.status is runtime.Status.OK:
                if isinstance(operation, _Insert):
                    self._native_handles[operation.handle] = result.handle
                    if operation.state.idle_timeout_ns:
                        self._timed[operation.table, result.handle] = operation.handle
            elif result.status is runtime.Status.FULL:
                refused += 1
            else:
                raise RuntimeError(f"the runtime refused a change the server had checked: {result.status.name}")
        if refused:
            raise PipelineFullError(f"{refused} of {len(operations)} changes did not fit")

    # -- helpers ---------------------------------------------------------------------------------

    def _new_handle(self) -> EntryHandle:
        handle = EntryHandle(self._next_handle)
        self._next_handle += 1
        return handle

    def _entry(self, table: int, handle: EntryHandle | None) -> EntryState | runtime.Entry | None:
        """An entry as the runtime has it, or as it is going to be inserted; None for `handle`: the default entry."""
        if handle is None:
            return self.native.default_entry(table)
        pending = self._pending(handle)
        return self.native.entry(table, self._native_handles[handle]) if pending is None else pending.state

    def _change_entry(
        self, handle: EntryHandle | None, enter: Callable[[runtime.Batch, int | None], None], **fields: Any
    ) -> None:
        """Change `fields` of an entry that waits for the flush; of one that the runtime has, by `enter`."""
        pending = None if handle is None else self._pending(handle)
        if handle is not None and pending is not None:
            self._operations[self._unflushed[handle]] = replace(pending, state=replace(pending.state, **fields))
        else:
            native = None if handle is None else self._native_handles[handle]
            self._defer(lambda b: enter(b, native))

    def _pending(self, handle: EntryHandle) -> _Insert | None:
        position = self._unflushed.get(handle)
        operation = None if position is None else self._operations[position]
        return operation if isinstance(operation, _Insert) else None

    def _defer(self, enter: Callable[[runtime.Batch], None]) -> None:
        self._operations.append(_Change(enter))

    def _value_set_table(self, value_set: int) -> int:
        """Value sets are the runtime's last tables, in the program's order."""
        return len(self.program.tables) + value_set

    def _match(self, table: int, key: MatchKey) -> list[tuple[int, int]]:
        return [_native_field(kind, part) for kind, part in zip(self._kinds[table], key, strict=True)]

    @staticmethod
    def _key_field(kind: runtime.MatchKind, width: int, match: tuple[int, int]) -> KeyField:
        ones = (1 << width) - 1
        value, second = match
        match kind:
            case runtime.MatchKind.EXACT:
                return value, ones
            case runtime.MatchKind.LPM:
                return value, ones ^ ((1 << (width - second)) - 1)
            case runtime.MatchKind.OPTIONAL:
                return (value, ones) if second else (0, 0)
            case _:
                return value, second


@dataclass(frozen=True, slots=True)
class _Insert:
    """A new entry, not yet given to the runtime."""

    handle: EntryHandle
    table: int
    match: list[tuple[int, int]]
    priority: int
    state: EntryState

    def enter(self, batch: runtime.Batch) -> None:
        state = self.state
        batch.insert(
            self.table,
            self.match,
            state.target,
            self.priority,
            _us(state.idle_timeout_ns),
            state.counter,
            state.meter,
            state.colors,
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """Any other change."""

    enter: Callable[[runtime.Batch], None]


_Operation = _Insert | _Change


def _source_key(entry: ir.ConstEntry, table: ir.Table) -> MatchKey:
    """The key of an entry that the source wrote."""
    fields = []
    for match, key in zip(entry.keys, table.keys, strict=True):
        ones = (1 << width_of(key.type)) - 1
        match key.match:
            case ir.MatchKind.EXACT:
                fields.append((match.value, ones))
            case ir.MatchKind.LPM:
                fields.append((match.value, ones ^ (ones >> match.prefix_bits)))
            case _:
                fields.append((match.value, match.mask))
    return tuple(fields)


def _native_field(kind: runtime.MatchKind, part: KeyField) -> tuple[int, int]:
    value, mask = part
    match kind:
        case runtime.MatchKind.LPM:
            return value, mask.bit_count()
        case runtime.MatchKind.OPTIONAL:
            return (value, 1) if mask else (0, 0)
        case _:
            return value, mask


def _us(duration_ns: int) -> int:
    return -(-duration_ns // 1000)
