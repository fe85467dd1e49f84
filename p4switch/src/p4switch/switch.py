"""A whole switch in one object: ports, native pipeline, P4Runtime server, admin socket.

`Switch` is what the command line and `p4switch.testing` share.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p4switch import runtime
from p4switch.admin import AdminServer
from p4switch.device_config import ProgramSource
from p4switch.errors import SwitchError
from p4switch.native_target import NativeTarget
from p4switch.ports import Interface, Memory, PortOptions, PortSpec, UdpSocket, UnixSocket
from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.recirculation import Recirculation
from p4switch.server.device import Device
from p4switch.server.service import P4RuntimeServer
from p4switch.server.status import StatusError
from p4switch.server.tls import TlsFiles
from p4switch.status_server import StatusServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SwitchOptions:
    """Everything that a switch is started with.

    `program` None: P4Runtime brings one. `grpc` None: no P4Runtime server; port 0 picks a free one, `tls`
    None: it answers processes of this machine's that are the switch's user's or root's; with `insecure` everybody who
    reaches it. `http`: HOST:PORT
    of the pages of p4switch.status_server. `program_dirs`: folders of this machine that controllers may name programs
    and includes from, besides those of `program`.
    `also_grpc`: more addresses of the P4Runtime server. `pcap_by_interface`: captures are named by Linux interfaces.
    `flood_group`: the multicast group that holds all ports while no controller writes it; None: the one that the
    program names (@p4switch_flood_group at its `main`), 0: none.
    """

    program: ProgramSource | None = None
    program_dirs: tuple[Path, ...] = ()
    ports: tuple[PortSpec, ...] = ()
    port_options: Mapping[int, PortOptions] = field(default_factory=dict)
    grpc: str | None = "127.0.0.1:0"
    also_grpc: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    insecure: bool = False
    device_id: int = 1
    cpu_port: int | None = None
    flood_group: int | None = None
    pcap_dir: Path | None = None
    pcap_by_interface: bool = False
    admin: Path | None = None
    http: str | None = None
    seed: int = 1
    trace: bool = False
    recirculation: Recirculation = field(default_factory=Recirculation)


class Switch:
    """A running switch. Use as a context manager. Raises SwitchError from the constructor, one line each."""

    def __init__(self, options: SwitchOptions) -> None:
        self.options = options
        self._closing = contextlib.ExitStack()
        self._ports_lock = threading.Lock()
        self._ports: dict[int, PortSpec] = {}
        self._port_options: dict[int, PortOptions] = {}
        self.udp_addresses: dict[int, tuple[str, int]] = {}
        """Bound addresses of UDP ports."""
        self.server: P4RuntimeServer | None = None
        self.pages: StatusServer | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where the P4Runtime server listens."""
        if self.server is None:
            raise SwitchError("this switch has no P4Runtime server")
        return self.server.address

    @property
    def p4info(self) -> p4i.P4Info:
        """What runs now; empty without a program."""
        query = p4r.GetForwardingPipelineConfigRequest(device_id=self.options.device_id)
        return self.device.get_pipeline(query).config.p4info

    def close(self) -> None:
        """Stop everything. May be called more than once."""
        self._closing.close()

    # -- programs --------------------------------------------------------------------------------

    def load(self, source: ProgramSource) -> None:
        """Compile a program and put it on the packets' path, with empty tables. Raises SwitchError."""
        config = p4r.ForwardingPipelineConfig(p4_device_config=source.envelope())
        try:
            self.device.load(config)
        except StatusError as error:
            raise SwitchError(error.message) from error

    # -- ports -----------------------------------------------------------------------------------

    def add_port(self, spec: PortSpec) -> None:
        """Attach a port. Raises SwitchError."""
        with self._ports_lock:
            if spec.number in self._ports:
                raise SwitchError(f"port {spec.number} is attached already")
            if spec.number == self.options.cpu_port:
                raise SwitchError(f"port {spec.number} is the CPU port")
            if self.target.recirculates(spec.number):
                raise SwitchError(f"port {spec.number} is a recirculation port of the program")
            try:
                self._attach(spec)
            except SwitchError as error:
                raise SwitchError(f"port {spec.number}: {error}") from error
            try:
                self._capture(spec)
            except SwitchError:
                self.runtime.remove_port(spec.number)
                raise
            self._ports[spec.number] = spec
            self.target.port_added(spec.number)

    def remove_port(self, number: int) -> None:
        """Detach a port. Raises SwitchError."""
        with self._ports_lock:
            self._known(number)
            self.runtime.remove_port(number)
            del self._ports[number]
            self._port_options.pop(number, None)
            self.target.port_removed(number)

    def set_port_options(self, number: int, options: PortOptions) -> None:
        """Replace the faults and the shaping of a port. Raises SwitchError."""
        with self._ports_lock:
            self._known(number)
            faults = runtime.Faults(
                loss=options.loss,
                duplicate=options.duplicate,
                reorder=options.reorder,
                corrupt=options.corrupt,
                delay_us=options.delay_us,
                jitter_us=options.jitter_us,
                seed=options.seed,
            )
            for direction, name in ((runtime.Direction.RX, "rx"), (runtime.Direction.TX, "tx")):
                self.runtime.set_faults(number, direction, faults if options.direction in (name, "both") else None)
            shape = None
            if options.rate_bits:
                shape = runtime.Shape(options.rate_bits, options.burst_bytes, options.queue_bytes)
            self.runtime.set_shape(number, shape)
            self.runtime.set_queue(
                number,
                runtime.Queue(
                    options.queue_packets,
                    options.queue_bytes if shape is not None else runtime.Queue().bytes,
                    options.priorities,
                ),
            )
            self._port_options[number] = options

    def set_exclusion(self, exclusion_id: int, ports: Iterable[int]) -> None:
        """The ports of a level-2 exclusion id (TNA), which P4Runtime has no word for. Raises SwitchError."""
        self.runtime.set_exclusion(exclusion_id, ports)

    def stats(self) -> dict[str, Any]:
        """Counters of the switch and of each port, fill of tables and groups, and P4Runtime's clients, by name."""
        with self._ports_lock:
            ports = {
                str(number): _fields(self.runtime.port_stats(number)) | {"medium": _medium_name(spec)}
                for number, spec in sorted(self._ports.items())
            }
        return {
            "program": self.target.program_name(),
            "switch": _fields(self.runtime.stats()),
            "ports": ports,
            "tables": self.target.table_use(),
            "groups": {str(group): count for group, count in self.target.group_sizes().items()},
            "p4runtime": self.device.sessions(),
        }

    # -- starting --------------------------------------------------------------------------------

    def _open(self) -> None:
        options = self.options
        config = runtime.SwitchConfig(
            cpu_port=options.cpu_port,
            seed=options.seed,
            trace=options.trace,
            recirculation_ports=options.recirculation.ports,
            recirculation_rate_bits=options.recirculation.rate_bits,
            recirculation_queue_bytes=options.recirculation.queue_bytes,
        )
        self.runtime = runtime.Switch(config)
        self._closing.callback(self.runtime.close)
        self.target = NativeTarget(
            self.runtime,
            has_cpu_port=options.cpu_port is not None,
            flood_group=options.flood_group,
            program_dirs=(*options.program_dirs, *_folders(options.program)),
            traces=options.trace,
        )
        if options.pcap_dir is not None:
            _make_folder(options.pcap_dir)
        for spec in options.ports:
            self.add_port(spec)
        for number, port_options in options.port_options.items():
            self.set_port_options(number, port_options)
        self.device = Device(options.device_id, self.target)
        self._closing.callback(self.device.close)
        if options.program is not None:
            self.load(options.program)
        self.runtime.start()
        self._closing.callback(self.runtime.stop)
        if options.admin is not None:
            self._closing.enter_context(AdminServer(options.admin, self))
        if options.grpc is not None:
            self.server = self._closing.enter_context(_p4runtime(self.device, options.grpc, options))
        for address in options.also_grpc:
            self._closing.enter_context(_p4runtime(self.device, address, options))
        if options.http is not None:
            self.pages = self._closing.enter_context(StatusServer(options.http, self))

    def _attach(self, spec: PortSpec) -> None:
        match spec.medium:
            case Interface(name):
                self.runtime.add_interface(spec.number, name)
            case UdpSocket(local, peer):
                self.udp_addresses[spec.number] = self.runtime.add_udp(spec.number, local, peer)
            case UnixSocket(local, peer):
                self.runtime.add_unix(spec.number, local, peer)
            case Memory():
                self.runtime.add_memory(spec.number)

    def _capture(self, spec: PortSpec) -> None:
        if self.options.pcap_dir is not None:
            by_interface = self.options.pcap_by_interface and isinstance(spec.medium, Interface)
            port = _medium_name(spec) if by_interface else f"port{spec.number}"
            for direction, name in ((runtime.Direction.RX, "in"), (runtime.Direction.TX, "out")):
                self.runtime.set_pcap(spec.number, direction, self.options.pcap_dir / f"{port}_{name}.pcap")

    def _known(self, number: int) -> None:
        if number not in self._ports:
            raise SwitchError(f"no port {number}")


def _p4runtime(device: Device, address: str, options: SwitchOptions) -> P4RuntimeServer:
    return P4RuntimeServer(device, address, options.tls, insecure=options.insecure)


def _folders(program: ProgramSource | None) -> tuple[Path, ...]:
    """Where a program of this machine lies, and where its includes do."""
    return () if program is None or program.path is None else (program.path.parent, *program.include_dirs)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SwitchError(f"cannot make the folder {path}: {error.strerror}") from error


def _fields(stats: object) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in stats.__dataclass_fields__}  # type: ignore[attr-defined]


def _medium_name(spec: PortSpec) -> str:
    match spec.medium:
        case Interface(name):
            return name
        case UdpSocket(local):
            return f"udp:{local[0]}:{local[1]}"
        case UnixSocket(local):
            return f"unix:{local}"
        case Memory():
            return "memory"
