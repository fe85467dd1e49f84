"""The native runtime behind the P4Runtime server's Pipeline and Target.

Changes are collected and handed to the runtime in one batch per `flush`, which it applies between two packets.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from p4switch import runtime
from p4switch.compiler import BuildError, CompileError, compile_program
from p4switch.compiler import CompiledProgram as Compiled
from p4switch.device_config import ProgramSource, parse_device_config
from p4switch.errors import SwitchError
from p4switch.ir import program as ir
from p4switch.ir.types import width_of
from p4switch.p4info import p4info_of
from p4switch.p4info_types import shown_fields
from p4switch.proto import p4info_pb2 as p4i
from p4switch.server import target
from p4switch.server.pipeline import (
    ActionCall,
    CloneSession,
    CounterValue,
    EntryHandle,
    EntryState,
    EntryTarget,
    GroupRef,
    InitialEntry,
    KeyField,
    MatchKey,
    MemberRef,
    MeterRates,
    PipelineFullError,
    Replica,
)
from p4switch.server.schema import ProgramIndex

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NativeProgram:
    """A program compiled to a shared object, and what the control plane knows of it."""

    compiled: Compiled
    p4info: p4i.P4Info
    index: ProgramIndex

    @staticmethod
    def of(compiled: Compiled) -> NativeProgram:
        """Describe a compiled program."""
        return NativeProgram(compiled, p4info_of(compiled.ir), program_index(compiled.ir))


def program_index(program: ir.Program) -> ProgramIndex:
    """Where a program keeps what P4Info names."""
    return ProgramIndex(
        tables={t.name: t.index for t in program.tables},
        actions={a.name: a.index for a in program.actions},
        action_profiles={p.name: p.index for p in program.action_profiles},
        counters=_runtime_indexes(program.counters),
        meters=_runtime_indexes(program.meters),
        registers={r.name: r.index for r in program.registers},
        digests={d.name: d.index for d in program.digests},
        value_sets={v.name: v.index for v in program.value_sets},
        table_widths={t.name: tuple(width_of(k.type) for k in t.keys) for t in program.tables},
        action_widths=_parameter_widths(program),
        header_widths={
            h.name: tuple(width_of(f.type) for f in shown_fields(h.header)) for h in program.controller_headers
        },
    )


def _parameter_widths(program: ir.Program) -> dict[str, tuple[int, ...]]:
    """Of actions that tables list: P4Info shows no parameters of the others."""
    listed = {ref.action for table in program.tables for ref in table.actions}
    return {a.name: tuple(width_of(p.type) for p in a.parameters) for a in program.actions if a.index in listed}


def _runtime_indexes(arrays: Sequence[ir.Counter] | Sequence[ir.Meter]) -> dict[str, int]:
    """The runtime lists indexed counters and meters only; direct ones belong to its tables and need no index."""
    indexed = [a for a in arrays if not a.direct]
    return {a.name: n for n, a in enumerate(indexed)} | {a.name: 0 for a in arrays if a.direct}


def compile_source(source: ProgramSource) -> NativeProgram:
    """Compile a program. Raises ConfigError with the compiler's diagnostics."""
    try:
        if source.path is not None:
            if not source.path.is_file():
                raise target.ConfigError(f"no P4 program at {source.path}")
            return NativeProgram.of(
                compile_program(source.path, dict(source.defines), list(source.include_dirs), source.architecture)
            )
        with tempfile.TemporaryDirectory(prefix="p4switch-") as folder:
            for name, text in source.files.items():
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            main = Path(folder, source.main)
            return NativeProgram.of(
                compile_program(
                    main,
                    dict(source.defines),
                    [Path(folder, d) for d in source.include_dirs],
                    source.architecture,
                )
            )
    except CompileError as error:
        raise target.ConfigError(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise target.ConfigError(f"the program cannot be read: {error}") from error
    except (BuildError, SwitchError) as error:
        raise target.ConfigError(str(error)) from error


class NativePipeline:
    """p4switch.server.pipeline.Pipeline over the runtime's."""

    def __init__(self, native: runtime.Pipeline, program: ir.Program) -> None:
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
        self._groups: set[int] = set()
        self._flood: tuple[int, list[runtime.Replica]] | None = None

    # -- what the source brings ------------------------------------------------------------------

    def initial_entries(self, table: int) -> Sequence[InitialEntry]:
        constant = {
            _source_key(e, self.program.tables[table]) for e in self.program.tables[table].entries if e.is_const
        }
        entries = []
        for entry in self.native.entries(table):
            if isinstance(entry.action, runtime.ActionCall):
                handle = self._new_handle()
                self._native_handles[handle] = entry.handle
                key = tuple(map(self._key_field, self._kinds[table], self._widths[table], entry.match))
                call = ActionCall(entry.action.action, tuple(entry.action.params))
                is_const = self.program.tables[table].const_entries or key in constant
                entries.append(InitialEntry(handle, key, entry.priority, call, is_const))
        return entries

    def initial_default(self, table: int) -> ActionCall:
        call = self.program.tables[table].default_action
        return ActionCall(call.action, tuple(call.arguments))

    # -- tables ----------------------------------------------------------------------------------

    def insert_entry(self, table: int, key: MatchKey, priority: int, entry: EntryState) -> EntryHandle:
        handle = self._new_handle()
        self._unflushed[handle] = len(self._operations)
        self._operations.append(_Insert(handle, table, self._match(table, key), priority, entry))
        return handle

    def modify_entry(self, table: int, handle: EntryHandle, target: EntryTarget, idle_timeout_ns: int) -> None:
        pending = self._pending(handle)
        if pending is not None:
            state = replace(pending.state, target=target, idle_timeout_ns=idle_timeout_ns)
            self._operations[self._unflushed[handle]] = replace(pending, state=state)
        elif (native := self._native_handles.get(handle)) is not None:
            timeout_us = _us(idle_timeout_ns)
            self._defer(lambda b: b.modify(table, native, _action(target), timeout_us))
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
        self._defer(lambda b: b.set_default(table, _call(call)))

    def entry_counter(self, table: int, handle: EntryHandle | None) -> CounterValue:
        if handle is None:
            return _counter(self.native.default_entry(table).counter)
        pending = self._pending(handle)
        if pending is not None:
            return pending.state.counter or CounterValue()
        entry = self.native.entry(table, self._native_handles[handle])
        return CounterValue() if entry is None else _counter(entry.counter)

    def set_entry_counter(self, table: int, handle: EntryHandle | None, value: CounterValue) -> None:
        native_value = runtime.CounterValue(value.packets, value.octets)
        pending = None if handle is None else self._pending(handle)
        if handle is not None and pending is not None:
            self._operations[self._unflushed[handle]] = replace(pending, state=replace(pending.state, counter=value))
        else:
            native = None if handle is None else self._native_handles[handle]
            self._defer(lambda b: b.set_entry_counter(table, native, native_value))

    def set_entry_meter(self, table: int, handle: EntryHandle | None, rates: MeterRates | None) -> None:
        pending = None if handle is None else self._pending(handle)
        if handle is not None and pending is not None:
            self._operations[self._unflushed[handle]] = replace(pending, state=replace(pending.state, meter=rates))
        else:
            native = None if handle is None else self._native_handles[handle]
            self._defer(lambda b: b.set_entry_meter(table, native, _meter(rates)))

    def entry_idle_ns(self, table: int, handle: EntryHandle) -> int:
        native = self._native_handles.get(handle)
        entry = None if native is None else self.native.entry(table, native)
        return 0 if entry is None else entry.idle_us * 1000

    def timed_entry(self, table: int, native_handle: int) -> EntryHandle | None:
        """The entry that an idle event of the runtime means."""
        return self._timed.get((table, native_handle))

    # -- profiles and replication ----------------------------------------------------------------

    def set_member(self, profile: int, member: int, call: ActionCall) -> None:
        self._defer(lambda b: b.set_member(profile, member, _call(call)))

    def delete_member(self, profile: int, member: int) -> None:
        self._defer(lambda b: b.delete_member(profile, member))

    def set_group(self, profile: int, group: int, members: Sequence[tuple[int, int]]) -> None:
        weighted = [runtime.WeightedMember(member, weight) for member, weight in members]
        self._defer(lambda b: b.set_group(profile, group, weighted))

    def delete_group(self, profile: int, group: int) -> None:
        self._defer(lambda b: b.delete_group(profile, group))

    def set_multicast_group(self, group: int, replicas: Sequence[Replica] | None) -> None:
        if replicas is not None:
            self._groups.add(group)
            native = _replicas(replicas)
            self._defer(lambda b: b.set_multicast_group(group, native))
            return
        self._groups.discard(group)
        if self._flood is not None and self._flood[0] == group:
            self._defer(self._enter_flood)
        else:
            self._defer(lambda b: b.delete_multicast_group(group))

    def set_flood(self, group: int, ports: Sequence[int]) -> None:
        """All ports are what a multicast group holds as long as the control plane has not programmed it.

        Takes effect at once; may be called from any thread.
        """
        self._flood = (group, [runtime.Replica(port, 0) for port in ports])
        if group not in self._groups:
            batch = self.native.batch()
            self._enter_flood(batch)
            batch.commit()

    def _enter_flood(self, batch: runtime.Batch) -> None:
        assert self._flood is not None
        batch.set_multicast_group(*self._flood)

    def set_clone_session(self, session: int, clone: CloneSession | None) -> None:
        if clone is None:
            self._defer(lambda b: b.delete_clone_session(session))
        else:
            replicas = _replicas(clone.replicas)
            octets, cos = clone.packet_bytes_max, clone.class_of_service
            self._defer(lambda b: b.set_clone_session(session, replicas, octets, cos))

    # -- arrays ----------------------------------------------------------------------------------

    def counters(self, counter: int, start: int, count: int) -> Sequence[CounterValue]:
        return [_counter(value) for value in self.native.counters(counter, start, count)]

    def set_counters(self, counter: int, start: int, values: Sequence[CounterValue]) -> None:
        native = [runtime.CounterValue(v.packets, v.octets) for v in values]
        self._defer(lambda b: b.set_counters(counter, start, native))

    def set_meters(self, meter: int, start: int, rates: Sequence[MeterRates | None]) -> None:
        native = [_meter(r) for r in rates]
        self._defer(lambda b: b.set_meters(meter, start, native))

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
        counter = None if state.counter is None else runtime.CounterValue(state.counter.packets, state.counter.octets)
        batch.insert(
            self.table,
            self.match,
            _action(state.target),
            self.priority,
            _us(state.idle_timeout_ns),
            counter,
            _meter(state.meter),
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """Any other change."""

    enter: Callable[[runtime.Batch], None]


_Operation = _Insert | _Change


class NativeTarget:
    """p4switch.server.target.Target over the runtime's switch.

    `flood_group`: see NativePipeline.set_flood. `traces`: print what the switch tells of packets, log_msg included.
    """

    def __init__(
        self, switch: runtime.Switch, *, has_cpu_port: bool, flood_group: int | None = None, traces: bool = False
    ) -> None:
        self._switch = switch
        self._has_cpu_port = has_cpu_port
        self._flood_group = flood_group
        self._traces = traces
        self._ports: set[int] = set()
        self._active: NativePipeline | None = None

    def compile(self, device_config: bytes) -> NativeProgram:
        return compile_source(parse_device_config(device_config))

    def prepare(self, program: target.CompiledProgram) -> NativePipeline:
        assert isinstance(program, NativeProgram)
        rounds = _recirculation_ports(self._switch, program.compiled.ir) & self._ports
        if rounds:
            raise target.ConfigError(f"port {min(rounds)} is attached, and this program has it for recirculation")
        try:
            loaded = runtime.Program.load(program.compiled.shared_object_path)
            pipeline = NativePipeline(self._switch.prepare(loaded), program.compiled.ir)
        except SwitchError as error:
            raise target.ConfigError(str(error)) from error
        self._flood(pipeline)
        return pipeline

    def commit(self, pipeline: object) -> None:
        assert isinstance(pipeline, NativePipeline)
        self._flood(pipeline)
        self._switch.commit(pipeline.native)
        self._active = pipeline

    def has_cpu_port(self) -> bool:
        return self._has_cpu_port

    def packet_out(self, frame: bytes) -> None:
        self._switch.packet_out(frame)

    def events(self, timeout_s: float) -> Sequence[target.Event]:
        events = (self._event(e) for e in self._switch.events(timeout_s))
        return [e for e in events if e is not None]

    def exists(self, port: int) -> bool:
        return port in self._ports

    def is_up(self, port: int) -> bool:
        return port in self._ports and bool(self._switch.port_stats(port).up)

    def recirculates(self, port: int) -> bool:
        """Whether a port leads from egress back to ingress in the program that runs."""
        return self._active is not None and port in _recirculation_ports(self._switch, self._active.program)

    def port_added(self, port: int) -> None:
        """The switch has a new port."""
        self._ports.add(port)
        self._reflood()

    def port_removed(self, port: int) -> None:
        """The switch has lost a port."""
        self._ports.discard(port)
        self._reflood()

    def _reflood(self) -> None:
        if self._active is not None:
            self._flood(self._active)

    def _flood(self, pipeline: NativePipeline) -> None:
        if self._flood_group is not None:
            pipeline.set_flood(self._flood_group, sorted(self._ports))

    def _event(self, event: runtime.Event) -> target.Event | None:
        active = self._active
        match event:
            case runtime.PacketInEvent(frame):
                return target.PacketInEvent(frame)
            case runtime.PortEvent(port):
                return target.PortEvent(port)
            case runtime.LogEvent(text, trace):
                if self._traces:
                    print(text if trace else f"log: {text}", flush=True)
                if not trace:
                    log.info("%s", text)
            case runtime.DigestEvent() if active is not None and event.pipeline is active.native:
                return target.DigestEvent(active, event.digest, event.values)
            case runtime.IdleEvent() if active is not None and event.pipeline is active.native:
                handle = active.timed_entry(event.table, event.handle)
                return None if handle is None else target.IdleEvent(active, event.table, handle)
        return None


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


def _action(target: EntryTarget) -> runtime.ActionCall | runtime.MemberRef | runtime.GroupRef:
    match target:
        case ActionCall():
            return _call(target)
        case MemberRef(member):
            return runtime.MemberRef(member)
        case GroupRef(group):
            return runtime.GroupRef(group)


def _call(call: ActionCall) -> runtime.ActionCall:
    return runtime.ActionCall(call.action, call.arguments)


def _counter(value: runtime.CounterValue) -> CounterValue:
    return CounterValue(value.packets, value.bytes)


def _meter(rates: MeterRates | None) -> runtime.MeterConfig | None:
    if rates is None:
        return None
    return runtime.MeterConfig(rates.committed_rate, rates.committed_burst, rates.peak_rate, rates.peak_burst)


def _replicas(replicas: Sequence[Replica]) -> list[runtime.Replica]:
    return [runtime.Replica(r.port, r.instance) for r in replicas]


def _us(duration_ns: int) -> int:
    return -(-duration_ns // 1000)


__all__ = ["NativePipeline", "NativeProgram", "NativeTarget", "compile_source", "program_index"]


def _recirculation_ports(switch: runtime.Switch, program: ir.Program) -> set[int]:
    return set(switch.config.recirculation_ports) if program.architecture == "tna" else set()
