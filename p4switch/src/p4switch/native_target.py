"""The native switch as the P4Runtime server wants it: p4switch.server.target.Target, compiler included."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch import runtime
from p4switch.compiler import BuildError, CompileError, compile_program
from p4switch.compiler import CompiledProgram as Compiled
from p4switch.device_config import ProgramSource, parse_device_config
from p4switch.errors import SwitchError
from p4switch.ir import program as ir
from p4switch.ir.types import width_of
from p4switch.logs import printable
from p4switch.native_pipeline import NativePipeline
from p4switch.p4info import p4info_of
from p4switch.p4info_types import shown_fields
from p4switch.proto import p4info_pb2 as p4i
from p4switch.server import target
from p4switch.server.limits import MULTICAST_GROUP_MAX
from p4switch.server.schema import ProgramIndex

log = logging.getLogger(__name__)


FLOOD_ANNOTATION = "p4switch_flood_group"
"""Stands at a program's `main` and names the multicast group that holds all ports while no controller writes it."""

NO_FLOOD = 0
"""Instead of a group's number: no group is filled, whatever the program says."""


@dataclass(frozen=True, slots=True)
class NativeProgram:
    """A program compiled to a shared object, and what the control plane knows of it."""

    compiled: Compiled
    p4info: p4i.P4Info
    index: ProgramIndex
    flood_group: int
    """Of FLOOD_ANNOTATION, or NO_FLOOD."""

    @staticmethod
    def of(compiled: Compiled) -> NativeProgram:
        """Describe a compiled program. Raises SwitchError when its flood group is none."""
        return NativeProgram(compiled, p4info_of(compiled.ir), program_index(compiled.ir), flood_group_of(compiled.ir))


def flood_group_of(program: ir.Program) -> int:
    """What FLOOD_ANNOTATION says; NO_FLOOD without it. Raises SwitchError."""
    for annotation in program.package_annotations:
        if annotation.name == FLOOD_ANNOTATION:
            match annotation.body:
                case (int(group),) if not isinstance(group, bool) and 0 < group <= MULTICAST_GROUP_MAX:
                    return group
            raise SwitchError(
                f"@{FLOOD_ANNOTATION}({annotation.text}): write the number of a group, 1 to {MULTICAST_GROUP_MAX}"
            )
    return NO_FLOOD


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


def compile_source(source: ProgramSource, within: Sequence[Path] | None = None) -> NativeProgram:
    """Compile a program. Raises ConfigError with the compiler's diagnostics.

    `within`: the folders of this machine whose files it may be made of; None: any. Files that came along are always
    good. The compiler's messages quote lines, so anyone who may name a file can read it.
    """
    try:
        if source.path is not None:
            if within is not None and not any(source.path.resolve().is_relative_to(d.resolve()) for d in within):
                raise target.ConfigError(
                    f"{source.path} is not in a folder that a controller may name programs from: the program's"
                    " own and those that the switch was started with as -I"
                )
            if not source.path.is_file():
                raise target.ConfigError(f"no P4 program at {source.path}")
            return NativeProgram.of(
                compile_program(
                    source.path, dict(source.defines), list(source.include_dirs), source.architecture, within
                )
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
                    [Path(folder)],
                )
            )
    except CompileError as error:
        raise target.ConfigError(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise target.ConfigError(f"the program cannot be read: {error}") from error
    except (BuildError, SwitchError) as error:
        raise target.ConfigError(str(error)) from error


class NativeTarget:
    """p4switch.server.target.Target over the runtime's switch.

    `flood_group`: filled with all ports while the control plane does not write it; None: the program's own
    (FLOOD_ANNOTATION), NO_FLOOD: none. `program_dirs`: the folders of this machine that controllers may name programs
    and includes from. `traces`: print each packet's way through the switch, log_msg included.
    """

    def __init__(
        self,
        switch: runtime.Switch,
        *,
        has_cpu_port: bool,
        flood_group: int | None = None,
        program_dirs: Sequence[Path] = (),
        traces: bool = False,
    ) -> None:
        self._switch = switch
        self._has_cpu_port = has_cpu_port
        self._flood_group = flood_group
        self._program_dirs = tuple(program_dirs)
        self._traces = traces
        self._ports: set[int] = set()
        self._active: NativePipeline | None = None

    def compile(self, device_config: bytes, *, pushed: bool) -> NativeProgram:
        return compile_source(parse_device_config(device_config), self._program_dirs if pushed else None)

    def prepare(self, program: target.CompiledProgram) -> NativePipeline:
        assert isinstance(program, NativeProgram)
        rounds = _recirculation_ports(self._switch, program.compiled.ir) & self._ports
        if rounds:
            raise target.ConfigError(f"port {min(rounds)} is attached, and this program has it for recirculation")
        try:
            loaded = runtime.Program.load(program.compiled.shared_object_path)
            group = program.flood_group if self._flood_group is None else self._flood_group
            pipeline = NativePipeline(self._switch.prepare(loaded), program.compiled.ir, flood_group=group)
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

    def recirculates(self, port: int) -> bool:
        """Whether a port leads from egress back to ingress in the program that runs."""
        return self._active is not None and port in _recirculation_ports(self._switch, self._active.program)

    def table_use(self) -> dict[str, dict[str, int]]:
        """Entries and size of each table of the program that runs, by its name."""
        return {} if self._active is None else self._active.table_use()

    def group_sizes(self) -> dict[int, int]:
        """How many copies each multicast group of the program that runs makes, by its id."""
        return {} if self._active is None else self._active.group_sizes()

    def program_name(self) -> str | None:
        """Of the program that runs."""
        return None if self._active is None else self._active.native.program.name

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
        pipeline.flood_to(sorted(self._ports))

    def _show(self, line: str) -> None:
        try:
            print(line, flush=True)
        except OSError as error:
            # As with `| head`: nobody reads the trace any more, so the switch goes on without it.
            log.warning("the trace ends: %s", error)
            self._traces = False
            self._switch.set_trace(False)

    def _event(self, event: runtime.Event) -> target.Event | None:
        active = self._active
        match event:
            case runtime.PacketInEvent(frame):
                return target.PacketInEvent(frame)
            case runtime.PortEvent(port, up):
                log.info("port %d is %s", port, "up" if up else "down")
            case runtime.LogEvent(text, trace):
                if self._traces:
                    self._show(printable(text if trace else f"log: {text}"))
                if not trace:
                    log.info("%s", text)
            case runtime.DigestEvent() if active is not None and event.pipeline is active.native:
                return target.DigestEvent(active, event.digest, event.values)
            case runtime.IdleEvent() if active is not None and event.pipeline is active.native:
                handle = active.timed_entry(event.table, event.handle)
                return None if handle is None else target.IdleEvent(active, event.table, handle)
        return None


def _recirculation_ports(switch: runtime.Switch, program: ir.Program) -> set[int]:
    return set(switch.config.recirculation_ports) if program.architecture == "tna" else set()
