"""`kvcast-switch`: the command line of the embedded P4 switch."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from p4switch.device_config import ARCHITECTURE_NAMES, ProgramSource
from p4switch.errors import SwitchError
from p4switch.ports import PORT_NUMBER_MAX, PortOptions, parse_port, parse_port_options
from p4switch.recirculation import parse_recirculation

EPILOG = """\
ports:
  -i 1@eth1                                  a Linux interface (needs CAP_NET_RAW, e.g. root)
  -i 2@udp:127.0.0.1:5001,127.0.0.1:5002     datagrams: own address, peer's address
  -i 3@unix:/run/in.sock,/run/out.sock       UNIX datagrams: own path, peer's path

examples:
  kvcast-switch l2.p4 -i 1@veth1 -i 2@veth2 --grpc 127.0.0.1:9559
  kvcast-switch --no-p4 -i 1@veth1 --grpc 127.0.0.1:9559      (a controller brings the program)
  kvcast-switch l2.p4 --p4info l2.p4info.txtpb
"""


class UsageError(Exception):
    """Arguments that cannot work: one line for the person."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class _Version(argparse.Action):
    """Looks the version up when somebody asks."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"{parser.prog} {version('kvcast')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0, 1 for errors (one line on stderr), 2 for unsupported programs."""
    arguments = [a for a in (sys.argv[1:] if argv is None else argv) if a != "--"]
    try:
        return _run(_parser().parse_args(arguments))
    except (SwitchError, UsageError) as error:
        print(f"kvcast-switch: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvcast-switch",
        description="A P4_16 switch (v1model and TNA): native code, P4Runtime server.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add in (_add_program, _add_ports, _add_recirculation, _add_control, _add_output):
        add(parser)
    return parser


def _add_program(parser: argparse.ArgumentParser) -> None:
    program = parser.add_argument_group("program")
    program.add_argument("program", nargs="?", type=Path, metavar="PROGRAM.p4", help="P4_16 source")
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
        help="loss, duplicate, reorder, corrupt, delay, jitter, rate, burst, queue, seed, direction",
    )
    ports.add_argument("--cpu-port", type=int, metavar="PORT", help="port of packet-in and packet-out")
    ports.add_argument(
        "--flood-group",
        type=int,
        metavar="GROUP",
        help="multicast group that holds all ports until a controller programs it",
    )
    ports.add_argument(
        "--pcap", type=Path, metavar="DIR", help="record every port into DIR/portN_in.pcap and portN_out.pcap"
    )


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
        "--device-id", type=int, default=1, metavar="N", help="P4Runtime device id (default %(default)s)"
    )
    control.add_argument(
        "--admin", metavar="unix:PATH", help="admin socket: statistics, faults, ports, reload; JSON lines"
    )
    control.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="write the P4Runtime address here once it is served"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--version", action=_Version, nargs=0, help="print it and exit")
    output.add_argument("--stats", action="store_true", help="print the counters at the end")
    output.add_argument("--trace", action="store_true", help="print what happens to each packet")
    output.add_argument(
        "-L",
        "--log-level",
        default="warning",
        metavar="LEVEL",
        choices=["debug", "info", "warning", "error", "off"],
        help="debug, info, warning, error or off (default %(default)s)",
    )


def _run(args: argparse.Namespace) -> int:
    level = logging.CRITICAL + 1 if args.log_level == "off" else getattr(logging, args.log_level.upper())
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if args.program is None and not args.no_p4:
        raise UsageError("name a P4 program, or --no-p4 to start without one (see kvcast-switch --help)")
    if args.program is not None and args.no_p4:
        raise UsageError("--no-p4 and a program exclude each other")
    source = None if args.program is None else _source(args)
    if source is not None and args.stf is not None:
        return _run_stf(source, args.stf)
    if source is not None and (args.check or args.p4info is not None):
        return _describe(source, args.p4info)
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
    return ProgramSource(
        path=args.program.resolve(),
        defines=defines,
        include_dirs=tuple(d.resolve() for d in args.include_dirs),
        architecture=None if args.arch == "auto" else args.arch,
    )


def _describe(source: ProgramSource, p4info_file: str | None) -> int:
    """Front end only: diagnostics, and P4Info where it is asked for."""
    from p4switch.compiler import CompileError, compile_to_ir
    from p4switch.p4info import p4info_of, render_p4info, write_p4info

    assert source.path is not None
    try:
        program, warnings = compile_to_ir(
            source.path, dict(source.defines), list(source.include_dirs), source.architecture
        )
    except CompileError as error:
        print(error, file=sys.stderr)
        return 2 if error.unsupported else 1
    for warning in warnings:
        print(warning, file=sys.stderr)
    if p4info_file == "-":
        sys.stdout.write(render_p4info(p4info_of(program), ".txtpb").decode())
    elif p4info_file is not None:
        write_p4info(p4info_of(program), Path(p4info_file))
    return 0


def _run_stf(source: ProgramSource, case: Path) -> int:
    from p4switch.stf import run_stf

    if not case.is_file():
        raise SwitchError(f"no test case at {case}")
    assert source.path is not None
    return run_stf(source.path, case, dict(source.defines), list(source.include_dirs))


def _serve(args: argparse.Namespace, source: ProgramSource | None) -> int:
    from p4switch.switch import Switch, SwitchOptions

    options = SwitchOptions(
        program=source,
        ports=tuple(parse_port(text) for text in args.ports),
        port_options=_port_options(args.port_options),
        grpc=args.grpc,
        device_id=_device_id(args.device_id),
        cpu_port=_number("--cpu-port", args.cpu_port, PORT_NUMBER_MAX),
        flood_group=_number("--flood-group", args.flood_group, 0xFFFF),
        pcap_dir=args.pcap,
        admin=_admin(args.admin),
        trace=args.trace,
        recirculation=parse_recirculation(args.recirculation_ports, args.recirculation_rate, args.recirculation_queue),
    )
    # Not an Event: a handler that interrupts Event.wait() at the wrong moment would wait for its lock for ever.
    stopped, stop = socket.socketpair()
    with stopped, stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.send(b"."))
        with Switch(options) as switch:
            print(f"listening on {switch.address}", flush=True)
            if args.ready_file is not None:
                _write_ready_file(args.ready_file, switch.address)
            _notify_ready()
            stopped.recv(1)
            if args.stats:
                _print_stats(switch.stats())
    return 0


def _port_options(texts: Sequence[str]) -> dict[int, PortOptions]:
    options: dict[int, PortOptions] = {}
    for text in texts:
        number, parsed = parse_port_options(text)
        if number in options:
            raise UsageError(f"--port-option {text}: port {number} has options already; give them in one")
        options[number] = parsed
    return options


def _number(flag: str, value: int | None, maximum: int) -> int | None:
    if value is not None and not 0 < value <= maximum:
        raise UsageError(f"{flag} {value}: from 1 to {maximum}")
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


def _write_ready_file(path: Path, address: str) -> None:
    """Appears whole or not at all, so that a waiting reader never sees half an address."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(address + "\n")
        part.rename(path)
    except OSError as error:
        raise SwitchError(f"cannot write {path}: {error.strerror}") from error


def _notify_ready() -> None:
    """Tell a service manager (or whoever set the variable) that the switch works: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        try:
            notifier.sendto(b"READY=1", address.replace("@", "\0", 1) if address.startswith("@") else address)
        except OSError as error:
            print(f"kvcast-switch: cannot notify {address}: {error.strerror}", file=sys.stderr)


def _print_stats(stats: dict[str, dict[str, object]]) -> None:
    print("switch: " + _nonzero(stats["switch"]))
    for number, port in stats["ports"].items():
        assert isinstance(port, dict)
        print(f"port {number} ({port.pop('medium')}): {_nonzero(port)}")


def _nonzero(counters: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counters.items() if value) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
