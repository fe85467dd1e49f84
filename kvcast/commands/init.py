"""`kvcast init`: controller.yaml and agent.yaml from flags, or from a few questions on a terminal."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import yaml
from rich.table import Table

import controlplane.config
import hostagent.config
from kvcast.arguments import checked
from kvcast.errors import UsageError
from kvcast.operator import console
from kvcast.setup.files import SEGMENT_BYTES, Answers, agent_yaml, controller_yaml, pool_for, segment_for
from kvcast.setup.machine import Interface, Machine, data_interface, look
from kvdaemon import checks
from kvdaemon.errors import ConfigError
from kvdaemon.identity import TRUST_DOMAIN
from kvdaemon.tls_settings import is_loopback
from kvproto.units import format_bytes, format_rate, parse_size_bytes

T = TypeVar("T")


def node_ports(text: str) -> dict[str, int]:
    """From n1=1,n2=2: switch ports by node. Raises ValueError."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, port = item.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) or not port.isdigit() or not 1 <= int(port) <= 510:
            raise ValueError(f"{item!r} is not NODE=PORT, as in n1=1, with a port from 1 to 510")
        if name in found or int(port) in found.values():
            raise ValueError(f"{item!r}: this node or port is there already")
        found[name] = int(port)
    return found


def switch_address(text: str) -> str:
    """HOST:PORT, or `none`. Raises ValueError."""
    return text if text == "none" else checks.endpoint(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast init`."""
    parser.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help="where the files go (default: here)")
    parser.add_argument("--only", choices=["controller", "agent"], help="write only this one's file (default: both)")
    parser.add_argument("--node", metavar="NAME", help="this node (default: the host's name)")
    parser.add_argument("--interface", metavar="IFACE", help="towards the switch (default: the likeliest)")
    parser.add_argument(
        "--controller",
        type=checked(checks.endpoints),
        metavar="HOST:PORT[,...]",
        help="where controllers listen (default: one, port 4800 of this machine's own address)",
    )
    parser.add_argument(
        "--switch",
        type=checked(switch_address),
        metavar="HOST:PORT",
        help="P4Runtime of the switch, or none (default 127.0.0.1:9559)",
    )
    parser.add_argument(
        "--nodes",
        type=checked(node_ports),
        metavar="NODE=PORT,...",
        help="where nodes have to be; one that the switch sees elsewhere gets no casts (default: ports are learned)",
    )
    parser.add_argument("--tls", metavar="DIR", help="where kvcast pki put certificates (default: no TLS)")
    parser.add_argument("--pool", type=checked(parse_size_bytes), metavar="SIZE", help="default: half of what is left")
    parser.add_argument("--force", action="store_true", help="replace files that are there")


def run(args: argparse.Namespace) -> int:
    """Look, ask what no flag has said, check, write."""
    machine = look()
    out = console()
    if machine.interfaces:
        out.print(_facts(machine))
    names = [f"{name}.yaml" for name in ("controller", "agent") if args.only in (None, name)]
    there = [str(args.dir / name) for name in names if (args.dir / name).exists()]
    if there and not args.force:
        raise UsageError(f"{' and '.join(there)} already there: --force replaces it, --dir names another folder")
    answers = _answers(args, machine)
    texts = {"controller.yaml": controller_yaml(answers), "agent.yaml": agent_yaml(answers)}
    _check({name: texts[name] for name in names}, args.dir)
    try:
        args.dir.mkdir(parents=True, exist_ok=True)
        for name in names:
            (args.dir / name).write_text(texts[name])
            out.print(f"wrote {args.dir / name}")
    except OSError as error:
        raise UsageError(f"cannot write to {args.dir}: {error.strerror}") from error
    out.print(_next_steps(answers, args.dir, names))
    return 0


def _answers(args: argparse.Namespace, machine: Machine) -> Answers:
    for_agent = args.only != "controller"
    interface = _data_interface(args, machine) if for_agent else None
    node = (args.node or _ask("Name of this node", machine.name, str)) if for_agent else machine.name
    default = f"{_management_address(machine, interface)}:4800"
    controllers = args.controller or _ask("Controller listens at", default, checks.endpoints)
    listen = _own(controllers, machine) if args.only != "agent" else controllers[0]
    switch = "none"
    if args.only != "agent":
        switch = args.switch or _ask("Switch's P4Runtime (or none)", "127.0.0.1:9559", switch_address)
    pool_bytes = args.pool or pool_for(machine.memory_bytes)
    if for_agent and not args.pool:
        pool_bytes = _ask("Pool", f"{pool_bytes >> 20}MiB", parse_size_bytes)
    return Answers(
        node,
        interface.name if interface is not None else "",
        controllers,
        listen,
        None if switch == "none" else switch,
        args.nodes or {},
        pool_bytes,
        _segment_bytes(interface) if interface is not None else None,
        args.tls,
    )


def _data_interface(args: argparse.Namespace, machine: Machine) -> Interface:
    """The one that the user names. Raises UsageError where it cannot carry casts."""
    likeliest = data_interface(machine)
    name = args.interface or _ask("Interface towards the switch", likeliest.name if likeliest else None, str)
    interface = next((one for one in machine.interfaces if one.name == name), None)
    if interface is None:
        raise UsageError(f"there is no interface {name}: {', '.join(one.name for one in machine.interfaces) or 'none'}")
    if interface.address is None:
        raise UsageError(f"{name} has no IPv4 address: ip address add ADDRESS/PREFIX dev {name}")
    _segment_bytes(interface)
    return interface


def _segment_bytes(interface: Interface) -> int:
    try:
        return segment_for(interface.mtu_bytes)
    except ValueError as error:
        raise UsageError(f"{interface.name}: {error}") from error


def _ask(what: str, default: str | None, parse: Callable[[str], T]) -> T:
    """The user's answer; the default where nobody is there to ask."""
    while True:
        text = default
        if sys.stdin.isatty():
            print(f"{what}{f' [{default}]' if default else ''}: ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                raise KeyboardInterrupt
            text = line.strip() or default
        if text is None:
            raise UsageError(f"--interface is missing: {what[0].lower()}{what[1:]}?")
        try:
            return parse(text)
        except ValueError as error:
            if not sys.stdin.isatty():
                raise UsageError(str(error)) from error
            print(error, file=sys.stderr)


def _own(controllers: tuple[str, ...], machine: Machine) -> str:
    """Where this machine's controller listens. Raises UsageError where nothing says which of several it is."""
    if len(controllers) == 1:
        return controllers[0]
    hosts = {machine.name, *machine.addresses}
    own = [one for one in controllers if checks.host_port(one)[0] in hosts]
    if len(own) != 1:
        raise UsageError(
            f"--controller names {len(controllers)} controllers, {len(own)} of them on this machine"
            f" ({', '.join(sorted(hosts))}): --only agent writes the agents' file alone"
        )
    return own[0]


def _management_address(machine: Machine, data: Interface | None) -> str:
    """An address of this machine that others reach, away from the data network where there is one."""
    others = [one.address for one in machine.interfaces if one.address and one.up and one is not data]
    return others[0] if others else (data.address if data is not None else None) or "127.0.0.1"


def _check(texts: dict[str, str], folder: Path) -> None:
    """By the daemons' own rules. Raises UsageError."""
    try:
        if "controller.yaml" in texts:
            controlplane.config.parse(yaml.safe_load(texts["controller.yaml"]), folder)
        if "agent.yaml" in texts:
            hostagent.config.parse(yaml.safe_load(texts["agent.yaml"]), folder)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def _facts(machine: Machine) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=f"found on {machine.name}", title_justify="left")
    for heading in ("INTERFACE", "ADDRESS", "RATE", "MTU", ""):
        table.add_column(heading)
    for one in machine.interfaces:
        rate = format_rate(one.rate_bit_s) if one.rate_bit_s else "-"
        remark = "down" if not one.up else "default route" if one.default_route else ""
        table.add_row(one.name, ", ".join(one.addresses) or "-", rate, str(one.mtu_bytes), remark)
    table.caption = f"{format_bytes(machine.memory_bytes)} of memory left"
    table.caption_justify = "left"
    return table


def _trust(answers: Answers) -> str:
    """Options of the switch: whom it takes."""
    if answers.switch is None or is_loopback(answers.switch):
        return ""
    if answers.tls is None:
        return " --insecure"
    folder = answers.tls
    files = f"--tls-cert {folder}/switch.pem --tls-key {folder}/switch.key --tls-ca {folder}/ca.pem"
    return f" {files} --tls-controller spiffe://{TRUST_DOMAIN}/controller"


def _next_steps(answers: Answers, folder: Path, names: list[str]) -> str:
    lines = ["", "Next:"]
    if "controller.yaml" in names:
        if answers.switch is not None:
            small = answers.segment_bytes not in (None, SEGMENT_BYTES[0])
            size = f" --segment-bytes {answers.segment_bytes}" if small else ""
            options = f"--grpc {answers.switch}{size}{_trust(answers)}"
            lines.append(f"  kvcast switch -i PORT@IFACE ... {options}   # on the switch")
        lines.append(f"  kvcast-controller --config {folder / 'controller.yaml'}")
    if "agent.yaml" in names:
        lines.append(f"  kvcast doctor agent --config {folder / 'agent.yaml'}")
        lines.append(f"  kvcast-agent --config {folder / 'agent.yaml'}   # other nodes: kvcast init --only agent")
    if answers.tls is None:
        lines.append("These files do without TLS (insecure: true): kvcast pki makes certificates, --tls DIR uses them.")
    if answers.segment_bytes not in (None, SEGMENT_BYTES[0]):
        lines.append(f"MTU 9000 on {answers.interface} and the switch's ports would carry segments of 4096 bytes.")
    return "\n".join(lines)
