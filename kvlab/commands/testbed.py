"""`kvcast testbed`: a network with switch, controller and agents, in the background or the foreground."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import signal
import sys
from collections.abc import Callable

from rich.table import Table

from bmv2_testbed import client, state
from bmv2_testbed.client import Testbed
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import STOP_GRACE_S
from bmv2_testbed.scale import CORE_BIT_S, SCALES
from bmv2_testbed.spec import Bridge, Faults, Target, TestbedSpec, Wiring, data_ip, host_name, rack_name
from kvcast.arguments import Parser, between, probability, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.wiring import add_target, rate, size
from kvproto.units import format_bytes
from kvproto.wire.rdma import rdma_segment_bytes_max

HOSTS, ROCE_HOSTS, RACK_HOSTS = 9, 3, 16
DELAY_MS_MAX = 60_000
POOL_BYTES, ROCE_POOL_BYTES = 256 << 20, 32 << 20
ROCE_SEGMENT_BYTES = rdma_segment_bytes_max(4096)
"""With RDMA a segment and its header have to fit RDMA's largest MTU, 4096."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    _add_up(actions.add_parser("up", help="start one"))
    actions.add_parser("down", help="end it; nothing stays")
    actions.add_parser("status", help="what runs and what it has sent")
    execute = actions.add_parser("exec", help="run a command in a host and wait for it")
    execute.add_argument("host", help="h0 and on, or switch")
    execute.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    fault = actions.add_parser("fault", help="hurt the frames that leave switch ports; without options: heal them")
    fault.add_argument("--port", type=whole(1), help="which port (default: all); h0 is on port 1")
    for name in ("loss", "duplicate", "reorder", "corrupt"):
        fault.add_argument(f"--{name}", type=probability, default=0.0, metavar="P", help="0 to below 1")
    fault.add_argument(
        "--delay-ms", type=between(0, DELAY_MS_MAX), default=0.0, metavar="MS", help="of every frame (default 0)"
    )
    for name, does in (
        ("kill", "kill -9 a process of it"),
        ("restart", "start a process that ended again"),
        ("log", "the last words of a process"),
    ):
        action = actions.add_parser(name, help=does)
        action.add_argument("process", help="as `status` calls it: switch, controller, agent0 and on")
    reboot = actions.add_parser("reboot", help="pull the plug of a host that is a virtual machine; it comes back")
    link = actions.add_parser("link", help="cut or mend a host's data link, or a rack's (rack0 and on) to the others")
    for action in (reboot, link):
        action.add_argument("host", help="h0 and on")
    link.add_argument("way", choices=("up", "down"))
    for action in actions.choices.values():
        action.add_argument("--name", default="default", help="which testbed (default: default)")


def _add_up(up: argparse.ArgumentParser) -> None:
    add_target(up)
    up.add_argument("--nodes", type=whole(2), help="hosts, h0 and on (default 9; with --roce 3)")
    up.add_argument("--rate", type=rate, help="rate of every link, both ways, as 100mbit (default: not shaped)")
    up.add_argument("--slow", type=_slow, action="append", default=[], metavar="HOST=RATE", help="as 3=50mbit")
    up.add_argument("--pool", type=size, help="pool of each agent (default 256MiB; with --roce 32MiB)")
    up.add_argument(
        "--roce", action="store_true", help="hosts are virtual machines with soft-RoCE (needs QEMU, no root)"
    )
    up.add_argument(
        "--sockets-on", type=whole(), action="append", default=[], metavar="HOST", help="with --roce: without RDMA"
    )
    up.add_argument(
        "--racks",
        type=whole(1),
        default=1,
        metavar="N",
        help="hosts in N racks, a bridge each, that fetch by relays (default 1, and 16 hosts with more)",
    )
    up.add_argument(
        "--core", type=rate, default=CORE_BIT_S, help="of each rack's link to the others, both ways (default 50mbit)"
    )
    up.add_argument("--foreground", action="store_true", help="stay until interrupted")


def run(args: argparse.Namespace) -> int:
    """Do one action."""
    try:
        return _ACTIONS[args.action](args)
    except TestbedError as error:
        raise UsageError(str(error)) from error


def _up(args: argparse.Namespace) -> int:
    if state.load(args.name) is not None:
        raise TestbedError(f"testbed {args.name} is up already: use `kvcast testbed down`, or another --name")
    testbed, supervisor = client.start(spec_of(args), detached=not args.foreground)
    ticks = state.start_ticks(supervisor.pid)
    if ticks is None:
        raise TestbedError("the testbed ended right after its start")
    state.save(state.Background(args.name, supervisor.pid, ticks, testbed.pid, str(testbed.directory)))
    _show(args.name, testbed)
    if testbed.spec().target.is_p4switch and testbed.spec().wiring is Wiring.NAMESPACES:
        print(f"its switch and hosts by Mininet alone: {by_mininet(testbed.spec())}")
    testbed.close()
    if not args.foreground:
        supervisor.returncode = 0  # It stays: Popen must not warn that no call waits for it.
        return 0
    print("Interrupt (^C) to end it.", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.terminate())
    try:
        return supervisor.wait()
    except KeyboardInterrupt:
        supervisor.terminate()
        return supervisor.wait(STOP_GRACE_S + 7)
    finally:
        state.forget(args.name)


def spec_of(args: argparse.Namespace) -> TestbedSpec:
    """The testbed that the options of `up` describe. Raises TestbedError."""
    if args.sockets_on and not args.roce:
        raise TestbedError("--sockets-on goes with --roce: without it all hosts use sockets")
    racks = args.racks > 1
    return TestbedSpec(
        target=Target.BRIDGE if racks else Target(args.target),
        racks=args.racks,
        core_bit_s=args.core if racks else None,
        bridge=Bridge.DROPS if racks else Bridge.FLOODS,
        controller_settings={"fabric": {"fanout": "relay"}} if racks else {},
        wiring=Wiring.GUESTS if args.roce else Wiring.NAMESPACES,
        hosts=args.nodes or (RACK_HOSTS if racks else ROCE_HOSTS if args.roce else HOSTS),
        rate_bit_s=args.rate,
        slow_bit_s=dict(args.slow),
        segment_bytes=ROCE_SEGMENT_BYTES if args.roce else Target(args.target).segment_bytes,
        slots=SCALES[Target(args.target)].slots,
        pool_bytes=args.pool or (ROCE_POOL_BYTES if args.roce else POOL_BYTES),
        socket_hosts=tuple(args.sockets_on),
    )


def by_mininet(spec: TestbedSpec) -> str:
    """The command line of Mininet that builds as many hosts around the same program."""
    from bmv2_testbed.switches import program_defines, program_of  # brings the compiler, which no other action needs

    nodes = importlib.util.find_spec("p4switch.mininet_nodes")
    assert nodes is not None
    assert nodes.origin is not None
    defines = " ".join(f"-D{name}={value}" for name, value in program_defines(spec).items())
    switch = f"p4switch,program={program_of(spec.target)},options={defines}"
    words = ["mn", "--custom", nodes.origin, "--topo", f"star,{spec.hosts}", "--switch", switch]
    return shlex.join([*words, "--controller", "none"])


def _down(args: argparse.Namespace) -> int:
    found = state.load(args.name)
    if found is None:
        print(f"testbed {args.name} is not up")
        return 0
    testbed = Testbed(found.pid, found.directory)
    testbed.stop()
    client.wait_gone(found.supervisor_pid, STOP_GRACE_S)
    state.forget(args.name)
    print(f"testbed {args.name} is down")
    return 0


def _status(args: argparse.Namespace) -> int:
    if state.load(args.name) is None:
        others = ", ".join(state.names())
        print(f"testbed {args.name} is not up" + (f"; up: {others}" if others else ""))
        return 1
    _show(args.name, _open(args.name))
    return 0


def _show(name: str, testbed: Testbed) -> None:
    status = testbed.status()
    spec = testbed.spec()
    console = Terminal()
    processes = Table(title=f"testbed {name}: {spec.target}, {spec.hosts} hosts, {spec.wiring}")
    for heading in ("process", "state", "CPU s"):
        processes.add_column(heading, justify="right" if heading == "CPU s" else "left")
    cpu = testbed.cpu_s()
    for process, ended in sorted(status["processes"].items()):
        processes.add_row(process, "runs" if ended is None else f"ended with {ended}", f"{cpu.get(process, 0.0):.2f}")
    console.print(processes)
    links = Table(title="data links, from the hosts' side")
    for heading in ("host", "address", "sent", "received"):
        links.add_column(heading, justify="left" if heading in ("host", "address") else "right")
    counters = testbed.counters()
    for host in range(spec.hosts):
        value = counters[host_name(host)]
        links.add_row(host_name(host), data_ip(host), format_bytes(value.tx_bytes), format_bytes(value.rx_bytes))
    for rack in map(rack_name, range(spec.racks if spec.racks > 1 else 0)):
        links.add_row(rack, "-", format_bytes(counters[rack].tx_bytes), format_bytes(counters[rack].rx_bytes))
    console.print(links)
    console.print(f"files of the run: {testbed.directory}")


def _execute(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise TestbedError("name a command: kvcast testbed exec h1 -- ip addr")
    testbed = _open(args.name)
    process = f"exec-{id(args):x}"
    testbed.run(process, args.host, words)
    try:
        while (outcome := testbed.wait(process, 3600)) is None:
            pass
    except KeyboardInterrupt:
        testbed.kill(process)
        raise
    testbed.forget(process)
    sys.stdout.write(outcome.stdout)
    sys.stderr.write(outcome.stderr)
    return outcome.status if outcome.status >= 0 else 128 - outcome.status


def _fault(args: argparse.Namespace) -> int:
    faults = Faults(args.loss, args.duplicate, args.reorder, args.corrupt, args.delay_ms)
    _open(args.name).set_faults(faults, args.port)
    return 0


def _kill(args: argparse.Namespace) -> int:
    _open(args.name).kill(args.process)
    return 0


def _restart(args: argparse.Namespace) -> int:
    testbed = _open(args.name)
    testbed.restart(args.process)
    testbed.await_ready(args.process)
    return 0


def _reboot(args: argparse.Namespace) -> int:
    testbed = _open(args.name)
    host = next((host for host in range(testbed.spec().hosts) if host_name(host) == args.host), None)
    if host is None:
        raise TestbedError(f"no host {args.host}")
    testbed.reboot(host)
    testbed.await_ready(f"agent{host}")
    return 0


def _log(args: argparse.Namespace) -> int:
    print(_open(args.name).log(args.process))
    return 0


def _link(args: argparse.Namespace) -> int:
    _open(args.name).set_link(args.host, args.way == "up")
    return 0


def _open(name: str) -> Testbed:
    found = state.load(name)
    if found is None:
        raise TestbedError(f"testbed {name} is not up: kvcast testbed up")
    return Testbed(found.pid, found.directory)


def _slow(text: str) -> tuple[int, int]:
    host, found, rate_text = text.partition("=")
    if not found or not host.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST=RATE, as in 3=50mbit")
    return int(host), rate(rate_text)


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "exec": _execute,
    "fault": _fault,
    "kill": _kill,
    "restart": _restart,
    "reboot": _reboot,
    "log": _log,
    "link": _link,
}
