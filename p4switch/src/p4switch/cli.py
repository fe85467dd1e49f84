"""`p4switch`: the command line of the embedded P4 switch."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from p4switch import __version__, logs
from p4switch.device_config import ARCHITECTURE_NAMES, ProgramSource, parse_device_config
from p4switch.errors import SwitchError
from p4switch.ports import PORT_NUMBER_MAX, PORT_OPTIONS, PortOptions, PortSpec, parse_port, parse_port_options
from p4switch.recirculation import parse_recirculation
from p4switch.server.target import ConfigError
from p4switch.values import PRIORITIES_MAX

if TYPE_CHECKING:
    from p4switch.frontend.source import Diagnostic
    from p4switch.server.tls import TlsFiles

EPILOG = """\
ports:
  -i 1@eth1                                  a Linux interface (needs CAP_NET_RAW, e.g. root)
  -i 2@udp:127.0.0.1:5001,127.0.0.1:5002     datagrams: own address, peer's address
  -i 3@unix:/run/in.sock,/run/out.sock       UNIX datagrams: own path, peer's path

examples:
  p4switch l2.p4 -i 1@veth1 -i 2@veth2 --grpc 127.0.0.1:9559
  p4switch --no-p4 -i 1@veth1 --grpc 127.0.0.1:9559      (a controller brings the program)
  p4switch l2.p4 --p4info l2.p4info.txtpb
  p4switch l2.p4 -i 1@veth1 -i 2@veth2 --http 127.0.0.1:9560
  p4switch stats 127.0.0.1:9560                           (counters of that switch)
  p4switch bin ~/bmv2                                     (commands with the names of bmv2's tools)
  p4switch mininet                                        (where the file for Mininet's mn --custom lies)
"""


CIPHERS_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
TLS13_ONLY = "ECDHE-PSK-CHACHA20-POLY1305"
"""gRPC's Python API has no least version of TLS, and reads this list of what TLS 1.2 may use once, when it is imported.
TLS 1.3 has a list of its own. With a suite that needs a key shared beforehand, TLS 1.2 never works."""


class UsageError(Exception):
    """Arguments that cannot work: one line for the person."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


HUNG_UP = b"p4switch: SIGHUP changes nothing: options are read at the start\n"
"""A switch that is no terminal's goes on: an end would be taken for a clean one, after which nobody starts it again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0, 1 for errors (one line on stderr), 2 for unsupported programs."""
    arguments = [a for a in (sys.argv[1:] if argv is None else argv) if a != "--"]
    os.environ.setdefault(CIPHERS_VARIABLE, TLS13_ONLY)
    try:
        if arguments[:1] == ["stats"]:
            from p4switch import stats

            return stats.main(arguments[1:])
        if arguments[:1] == ["bin"]:
            from p4switch.bmv2 import names

            return names.write(arguments[1:])
        if arguments == ["mininet"]:
            print(Path(__file__).with_name("mininet_nodes.py"))
            return 0
        if arguments == ["examples"]:
            installed = Path(__file__).with_name("examples")
            print(installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "examples")
            return 0
        return _run(_parser().parse_args(arguments))
    except (SwitchError, UsageError) as error:
        print(logs.printable_lines(f"p4switch: {error}"), file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="p4switch",
        description="A P4_16 switch (v1model and TNA): native code, P4Runtime server.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add in (_add_program, _add_ports, _add_recirculation, _add_control, _add_output):
        add(parser)
    return parser


def _add_program(parser: argparse.ArgumentParser) -> None:
    program = parser.add_argument_group("program")
    program.add_argument(
        "program", nargs="?", type=Path, metavar="PROGRAM.p4", help="P4_16 source, or a JSON envelope of it"
    )
    program.add_argument("--no-p4", action="store_true", help="start without a program; P4Runtime brings it")
    program.add_argument(
        "-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro"
    )
    program.add_argument(
        "-I", dest="include_dirs", action="append", default=[], type=Path, metavar="DIR", help="look for includes here"
    )
    program.add_argument(
        "--arch",
        choices=["auto", *ARCHITECTURE_NAMES],
        default="auto",
        help="what the program must be written for (default auto: whatever it is written for)",
    )
    program.add_argument(
        "--check", action="store_true", help="print diagnostics and exit; status 1 if there are errors"
    )
    program.add_argument("--p4info", metavar="FILE", help="write P4Info (.txtpb, .bin, .json; - is stdout) and exit")
    program.add_argument("--stf", type=Path, metavar="CASE.stf", help="run a test case in STF and exit")


def _add_ports(parser: argparse.ArgumentParser) -> None:
    ports = parser.add_argument_group("ports")
    ports.add_argument(
        "-i", "--interface", dest="ports", action="append", default=[], metavar="PORT@MEDIUM", help="attach a port"
    )
    ports.add_argument(
        "--port-option",
        dest="port_options",
        action="append",
        default=[],
        metavar="PORT:KEY=VALUE,...",
        help=", ".join(PORT_OPTIONS),
    )
    ports.add_argument(
        "--priority-queues",
        type=int,
        metavar="N",
        help="queues of each port, served by standard_metadata.priority, the highest first (default 1)",
    )
    ports.add_argument("--cpu-port", type=int, metavar="PORT", help="port of packet-in and packet-out")
    ports.add_argument(
        "--flood-group",
        type=int,
        metavar="GROUP",
        help="multicast group that holds all ports while no controller writes it; 0: none"
        " (default: the one that the program names with @p4switch_flood_group)",
    )
    ports.add_argument(
        "--pcap", type=Path, metavar="DIR", help="record every port into DIR/portN_in.pcap and portN_out.pcap"
    )
    ports.add_argument("--pcap-by-interface", action="store_true", help="name those files by interface, as bmv2 does")


def _add_recirculation(parser: argparse.ArgumentParser) -> None:
    rounds = parser.add_argument_group("recirculation (TNA)")
    rounds.add_argument(
        "--recirculation-port",
        dest="recirculation_ports",
        action="append",
        type=int,
        metavar="PORT",
        help="a port that leads from egress back to ingress, may be repeated (default 68)",
    )
    rounds.add_argument("--recirculation-rate", metavar="RATE", help="rate of each, e.g. 1gbit (default 4gbit)")
    rounds.add_argument("--recirculation-queue", metavar="SIZE", help="what may wait at each, e.g. 64k (default 16m)")


def _add_control(parser: argparse.ArgumentParser) -> None:
    control = parser.add_argument_group("control")
    control.add_argument(
        "--grpc",
        "--grpc-server-addr",
        default="127.0.0.1:9559",
        metavar="HOST:PORT",
        help="P4Runtime address, or unix:PATH (default %(default)s; port 0 picks one)",
    )
    control.add_argument(
        "--also-grpc",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="serve P4Runtime at this address too; may be repeated",
    )
    control.add_argument("--tls-cert", type=Path, metavar="FILE", help="P4Runtime over TLS with this certificate (PEM)")
    control.add_argument("--tls-key", type=Path, metavar="FILE", help="its key")
    control.add_argument(
        "--tls-ca", type=Path, metavar="FILE", help="clients must show a certificate that this one has signed"
    )
    control.add_argument(
        "--tls-controller",
        dest="tls_controllers",
        action="append",
        default=[],
        metavar="URI",
        help="only clients whose certificate has this URI as subject alternative name may change anything;"
        " may be repeated (default: every client)",
    )
    control.add_argument(
        "--insecure",
        action="store_true",
        help="take clients without certificates from other machines and users (default: the switch's own user and root"
        " on this machine only)",
    )
    control.add_argument(
        "--device-id", type=int, default=1, metavar="N", help="P4Runtime device id (default %(default)s)"
    )
    control.add_argument(
        "--admin", metavar="unix:PATH", help="admin socket: statistics, faults, ports, reload; JSON lines"
    )
    control.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve /metrics, /livez, /readyz, /healthz and /stats there (default: nowhere)",
    )
    control.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="write the P4Runtime address here once it is served"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    output.add_argument("--stats", action="store_true", help="print the counters at the end")
    output.add_argument("--trace", action="store_true", help="print what happens to each packet")
    output.add_argument(
        "-L",
        "--log-level",
        default="warning",
        metavar="LEVEL",
        choices=logs.LEVELS,
        help="debug, info, warning, error or off (default %(default)s)",
    )
    output.add_argument(
        "--log-format", choices=logs.FORMATS, default="text", help="text, or one JSON object per line (default text)"
    )


def _run(args: argparse.Namespace) -> int:
    logs.configure(args.log_level, args.log_format)
    if args.program is None and not args.no_p4:
        raise UsageError("name a P4 program, or --no-p4 to start without one (see p4switch --help)")
    if args.program is not None and args.no_p4:
        raise UsageError("--no-p4 and a program exclude each other")
    source = None if args.program is None else _source(args)
    if source is not None and args.stf is not None:
        return _run_stf(source, args.stf)
    if source is not None and (args.check or args.p4info is not None):
        return _describe(source, args.p4info, args.log_format)
    if args.check or args.p4info is not None or args.stf is not None:
        raise UsageError("--check, --p4info and --stf need a program")
    return _serve(args, source)


def _source(args: argparse.Namespace) -> ProgramSource:
    if not args.program.is_file():
        raise SwitchError(f"no P4 program at {args.program}")
    for folder in args.include_dirs:
        if not folder.is_dir():
            raise SwitchError(f"no include directory {folder}")
    defines = {}
    for item in args.defines:
        name, _, value = item.partition("=")
        if not name.isidentifier():
            raise UsageError(f"-D {item}: {name!r} is no macro name")
        defines[name] = value if "=" in item else "1"
    if args.program.suffix == ".json":
        return _envelope(args.program)
    return ProgramSource(
        path=args.program.resolve(),
        defines=defines,
        include_dirs=tuple(d.resolve() for d in args.include_dirs),
        architecture=None if args.arch == "auto" else args.arch,
    )


def _envelope(path: Path) -> ProgramSource:
    try:
        return parse_device_config(path.read_bytes())
    except (OSError, ConfigError) as error:
        raise SwitchError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _describe(source: ProgramSource, p4info_file: str | None, log_format: str) -> int:
    """Front end only: diagnostics as text or as JSON lines, and P4Info where it is asked for."""
    from p4switch.compiler import CompileError, compile_to_ir
    from p4switch.p4info import p4info_of, render_p4info, write_p4info

    if source.path is None:
        raise UsageError("--check and --p4info need the program's source")
    try:
        program, warnings = compile_to_ir(
            source.path, dict(source.defines), list(source.include_dirs), source.architecture
        )
    except CompileError as error:
        _show(error.diagnostics, log_format)
        return 2 if error.unsupported else 1
    _show(warnings, log_format)
    if p4info_file == "-":
        sys.stdout.write(render_p4info(p4info_of(program), ".txtpb").decode())
    elif p4info_file is not None:
        write_p4info(p4info_of(program), Path(p4info_file))
    return 0


def _show(diagnostics: Sequence[Diagnostic], log_format: str) -> None:
    for one in diagnostics:
        text = one.to_json() if log_format == "json" else logs.printable_lines(one.render())
        print(text, file=sys.stderr)


def _run_stf(source: ProgramSource, case: Path) -> int:
    from p4switch.stf import run_stf

    if not case.is_file():
        raise SwitchError(f"no test case at {case}")
    if source.path is None:
        raise UsageError("--stf needs the program's source")
    return run_stf(source.path, case, dict(source.defines), list(source.include_dirs))


def _serve(args: argparse.Namespace, source: ProgramSource | None) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our own errors already contain what gRPC's library would print
    from p4switch.doorkeeper import raise_descriptors_limit
    from p4switch.stats import lines
    from p4switch.switch import Switch, SwitchOptions

    ports = tuple(parse_port(text) for text in args.ports)
    options = SwitchOptions(
        program=source,
        program_dirs=tuple(args.include_dirs),
        ports=ports,
        port_options=_with_priorities(
            _port_options(args.port_options), ports, _number("--priority-queues", args.priority_queues, PRIORITIES_MAX)
        ),
        grpc=args.grpc,
        also_grpc=tuple(args.also_grpc),
        tls=_tls(args),
        insecure=args.insecure,
        device_id=_device_id(args.device_id),
        cpu_port=_number("--cpu-port", args.cpu_port, PORT_NUMBER_MAX),
        flood_group=_number("--flood-group", args.flood_group, 0xFFFF, minimum=0),
        pcap_dir=args.pcap,
        pcap_by_interface=args.pcap_by_interface,
        admin=_admin(args.admin),
        http=args.http,
        trace=args.trace,
        recirculation=parse_recirculation(args.recirculation_ports, args.recirculation_rate, args.recirculation_queue),
    )
    raise_descriptors_limit()
    # Not an Event: a handler that interrupts Event.wait() at the wrong moment would wait for its lock for ever.
    stopped, stop = socket.socketpair()
    with stopped, stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.send(b"."))
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, lambda *_: stop.send(b".") if os.isatty(0) else os.write(2, HUNG_UP))
        with Switch(options) as switch:
            _say(f"listening on {switch.address}")
            if switch.pages is not None:
                _say(f"pages at http://{switch.pages.address}")
            if args.ready_file is not None:
                _write_ready_file(args.ready_file, switch.address)
            _notify_ready()
            stopped.recv(1)
            if args.stats:
                _say(logs.printable_lines("\n".join(lines(switch.stats()))))
    return 0


def _say(text: str) -> None:
    """Print, and go on where nobody takes it: a full disk, a reader that went away."""
    try:
        print(text, flush=True)
    except OSError as error:
        print(f"p4switch: standard output takes nothing: {error.strerror}", file=sys.stderr)
        nowhere = os.open(os.devnull, os.O_WRONLY)  # for what would be tried again at the end of the process
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _port_options(texts: Sequence[str]) -> dict[int, PortOptions]:
    options: dict[int, PortOptions] = {}
    for text in texts:
        number, parsed = parse_port_options(text)
        if number in options:
            raise UsageError(f"--port-option {text}: port {number} has options already; give them in one")
        options[number] = parsed
    return options


def _with_priorities(
    options: dict[int, PortOptions], ports: Sequence[PortSpec], priorities: int | None
) -> dict[int, PortOptions]:
    if priorities is None:
        return options
    plain = {port.number: PortOptions(priorities=priorities) for port in ports}
    return plain | {number: replace(given, priorities=priorities) for number, given in options.items()}


def _number(flag: str, value: int | None, maximum: int, minimum: int = 1) -> int | None:
    if value is not None and not minimum <= value <= maximum:
        raise UsageError(f"{flag} {value}: from {minimum} to {maximum}")
    return value


def _device_id(value: int) -> int:
    if not 0 <= value < 1 << 64:
        raise UsageError(f"--device-id {value}: from 0 to {(1 << 64) - 1}")
    return value


def _admin(text: str | None) -> Path | None:
    if text is None:
        return None
    if not text.startswith("unix:") or len(text) == len("unix:"):
        raise UsageError(f"--admin {text}: write unix:PATH")
    return Path(text.removeprefix("unix:"))


def _tls(args: argparse.Namespace) -> TlsFiles | None:
    if args.tls_cert is None and args.tls_key is None:
        if args.tls_ca is not None or args.tls_controllers:
            raise UsageError("--tls-ca and --tls-controller need --tls-cert and --tls-key")
        return None
    if args.tls_cert is None or args.tls_key is None:
        raise UsageError("--tls-cert and --tls-key go together")
    if args.tls_controllers and args.tls_ca is None:
        raise UsageError("--tls-controller needs --tls-ca: without it clients show no certificate")
    for name in args.tls_controllers:
        if "://" not in name:
            raise UsageError(f"--tls-controller: {name} is no URI, and no other name of a certificate counts")
    from p4switch.server.tls import TlsFiles

    return TlsFiles(args.tls_cert, args.tls_key, args.tls_ca, frozenset(args.tls_controllers))


def _write_ready_file(path: Path, address: str) -> None:
    """Appears whole or not at all, so that a waiting reader never sees half an address."""
    try:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(handle, "w") as file:
            file.write(address + "\n")
        os.chmod(part, 0o644)
        os.rename(part, path)
    except OSError as error:
        raise SwitchError(f"cannot write {path}: {error.strerror}") from error


def _notify_ready() -> None:
    """Notify the service manager (or whoever set the variable) that the switch works: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        try:
            notifier.sendto(b"READY=1", address.replace("@", "\0", 1) if address.startswith("@") else address)
        except OSError as error:
            print(f"p4switch: cannot notify {address}: {error.strerror}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
