"""Switches on which the data-plane suite runs: each starts the real thing and talks P4Runtime to it.

A `Target` owns one running switch with the data plane loaded, one frame port per switch port, and a
P4Runtime session. It knows nothing of kvcast's protocol.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import finsy as fy

from p4switch.bmv2.names import tool_of_bmv2
from p4switch_server.control_session import ControlSession

REPOSITORY = Path(__file__).resolve().parents[2]
P4 = REPOSITORY / "p4"
PROGRAM = P4 / "v1model" / "kvcast.p4"
START_LIMIT_S = 30.0
SEND_LIMIT_S = 5
# Sizes of the program under test: small, so that all registers can be read and compared.
SLOTS = 256
INTEREST = 4096
INTEREST_OF_PORT = 24
HEAT_CELLS = 1024
SIZES = (
    f"-DSLOTS={SLOTS}",
    f"-DINTEREST={INTEREST}",
    f"-DINTEREST_OF_PORT={INTEREST_OF_PORT}",
    f"-DHEAT_CELLS={HEAT_CELLS}",
)

# A segment is not lost before the tests are over, however slow this machine is.
TNA_SIZES = (*SIZES, "-DORBIT_LOST_TICKS=0x40000000")

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_AUXDATA = 8
PACKET_IGNORE_OUTGOING = 23
TP_STATUS_VLAN_VALID = 1 << 4
AUXDATA = struct.Struct("=IIIHHHH")  # tpacket_auxdata: status, len, snaplen, mac, net, vlan_tci, vlan_tpid


@dataclass(frozen=True, slots=True)
class Profile:
    """What a control plane says differently, by the program that a switch runs (docs/explanation/tofino.md)."""

    program: Path
    sizes: Sequence[str]
    flood_group: int
    session: fy.P4CloneSessionEntry
    digests: Sequence[str]
    circulates: bool
    """Cached segments circulate: they are served when they come by, in any order."""


V1MODEL = Profile(
    PROGRAM, SIZES, 1, fy.P4CloneSessionEntry(500, replicas=((1, 1),)), ("heat_report_t", "sighting_t"), False
)
TNA = Profile(
    P4 / "tna" / "kvcast.p4",
    TNA_SIZES,
    0x8000,
    fy.P4CloneSessionEntry(500, class_of_service=1, packet_length_bytes=86, replicas=((68, 1),)),
    ("heat_report_t", "lost_report_t", "sighting_t"),
    True,
)


class Target(Protocol):
    """A running switch with the data plane loaded."""

    name: str
    profile: Profile
    segment_bytes: int
    ports: Sequence[int]
    control: ControlSession
    can_read_registers: bool
    used_cells: set[tuple[str, int]]
    """Cells of hashed registers that tests have touched; tests share one switch and do not share cells."""

    def send(self, port: int, frame: bytes) -> None:
        """Puts one frame on the wire towards `port`."""

    def receive(self, timeout_s: float) -> list[tuple[int, bytes]]:
        """Frames that left the switch, as (port, frame); waits up to `timeout_s` for the first one."""

    def close(self) -> None:
        """Stops the switch and gives back everything it used."""


class Namespace:
    """A network namespace with a random name and one veth pair a port, all of it inside."""

    def __init__(self, ports: Sequence[int], mtu: int = 9000) -> None:
        self.name = f"kvdp-{secrets.token_hex(4)}"
        run("ip", "netns", "add", self.name)
        try:
            run("ip", "netns", "exec", self.name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
            run("ip", "netns", "exec", self.name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
            commands = ["link set lo up"]
            for port in ports:
                commands.append(f"link add s{port} mtu {mtu} type veth peer name h{port} mtu {mtu}")
                commands += [f"link set {end}{port} up" for end in "sh"]
            run("ip", "-n", self.name, "-batch", "-", stdin="\n".join(commands))
            with self.entered():
                self.sockets = {port: packet_socket(f"h{port}") for port in ports}
        except BaseException:
            run("ip", "netns", "del", self.name)
            raise

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Moves the calling thread into the namespace; sockets made there stay there."""
        libc = ctypes.CDLL(None, use_errno=True)

        def enter(descriptor: int) -> None:
            if libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        inside = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            enter(inside)
            try:
                yield
            finally:
                enter(home)
        finally:
            os.close(inside)
            os.close(home)

    def close(self) -> None:
        for port_socket in self.sockets.values():
            port_socket.close()
        run("ip", "netns", "del", self.name)


def packet_socket(interface: str) -> socket.socket:
    packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    packet.bind((interface, 0))
    packet.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    packet.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    packet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return packet


def run(*command: str, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def receive_frame(end: socket.socket) -> bytes:
    """One frame as it was on the wire: the kernel hands the VLAN tag over beside it."""
    frame, ancillary, _, _ = end.recvmsg(16384, socket.CMSG_SPACE(AUXDATA.size), socket.MSG_DONTWAIT)
    for level, kind, octets in ancillary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, *_, tag, protocol = AUXDATA.unpack(octets[: AUXDATA.size])
            if status & TP_STATUS_VLAN_VALID:
                return frame[:12] + struct.pack("!HH", protocol, tag) + frame[12:]
    return frame


def receive_from(sockets: dict[int, socket.socket], timeout_s: float) -> list[tuple[int, bytes]]:
    """Everything that waits at the sockets, after up to `timeout_s` for the first frame."""
    port_of = {port_socket.fileno(): port for port, port_socket in sockets.items()}
    poll = select.poll()
    for descriptor in port_of:
        poll.register(descriptor, select.POLLIN)
    frames = []
    for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000):
        port = port_of[descriptor]
        with contextlib.suppress(BlockingIOError):
            while True:
                frames.append((port, receive_frame(sockets[port])))
    return frames


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5.0)


def wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a switch that has just been started makes `path`; fails early when the process ends."""
    deadline = time.monotonic() + START_LIMIT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} does not start: {log.read_text()[-2000:]}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a target cannot run on this machine."""

    reason: str


class P4SwitchTarget:
    """The embedded switch as its own process, with a UNIX datagram socket a port: no privileges."""

    name = "p4switch"
    profile = V1MODEL
    segment_bytes = 4096
    can_read_registers = True

    @staticmethod
    def missing() -> Missing | None:
        return None

    def __init__(self, ports: Sequence[int], directory: Path) -> None:
        self.ports = ports
        self.used_cells: set[tuple[str, int]] = set()
        log, ready = directory / "p4switch.log", directory / "ready"
        with contextlib.ExitStack() as undo:
            self._sockets: dict[int, socket.socket] = {}
            self._switch_side = {port: str(directory / f"s{port}") for port in ports}
            arguments = [f"-DSEGMENT_BYTES={self.segment_bytes}", *self.profile.sizes, str(self.profile.program)]
            for port in ports:
                end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                undo.callback(end.close)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_LIMIT_S, 0))
                end.bind(str(directory / f"h{port}"))
                self._sockets[port] = end
                arguments += ["-i", f"{port}@unix:{self._switch_side[port]},{directory / f'h{port}'}"]
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-m", "p4switch", *arguments),
                        *("--grpc", f"unix:{directory / 'p4runtime.sock'}", "--ready-file", str(ready)),
                    ],
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            undo.callback(stop, self._process)
            wait_for(ready, self._process, log)
            address = f"unix:{directory / 'p4runtime.sock'}"
            self.control = ControlSession(address, fy.SwitchOptions(), self.profile.digests)
            undo.callback(self.control.close)
            self._undo = undo.pop_all()

    def send(self, port: int, frame: bytes) -> None:
        self._sockets[port].sendto(frame, self._switch_side[port])

    def receive(self, timeout_s: float) -> list[tuple[int, bytes]]:
        return receive_from(self._sockets, timeout_s)

    def close(self) -> None:
        self._undo.close()


class TnaTarget(P4SwitchTarget):
    """The embedded switch with the program for Tofino."""

    name = "tna"
    profile = TNA


class Bmv2Target:
    """`simple_switch_grpc` from PATH between veth pairs in a namespace, program built by `p4c-bm2-ss`."""

    name = "bmv2"
    profile = V1MODEL
    segment_bytes = 256  # bmv2 grows a packet by 512 bytes at most
    can_read_registers = False  # bmv2's P4Runtime server has no registers

    @staticmethod
    def missing() -> Missing | None:
        for tool in ("p4c-bm2-ss", "simple_switch_grpc"):
            if tool_of_bmv2(tool) is None:
                return Missing(f"{tool} is not on PATH")
        if shutil.which("ip") is None:
            return Missing("ip is not on PATH")
        if os.geteuid() != 0:
            return Missing("needs root for network namespaces")
        return None

    def __init__(self, ports: Sequence[int], directory: Path) -> None:
        self.ports = ports
        self.used_cells: set[tuple[str, int]] = set()
        p4info, blob = directory / "kvcast.p4info.txtpb", directory / "kvcast.json"
        defines = (f"-DSEGMENT_BYTES={self.segment_bytes}", *SIZES)
        run(
            "p4c-bm2-ss", "--arch", "v1model", *defines, "--p4runtime-files", str(p4info), "-o", str(blob), str(PROGRAM)
        )
        log = directory / "bmv2.log"
        listener = directory / "p4runtime.sock"
        with contextlib.ExitStack() as undo:
            self._namespace = Namespace(ports)
            undo.callback(self._namespace.close)
            interfaces = [argument for port in ports for argument in ("-i", f"{port}@s{port}")]
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    [
                        *("ip", "netns", "exec", self._namespace.name),
                        *("simple_switch_grpc", "--no-p4", "-L", "off", "--device-id", "1", *interfaces),
                        *("--", "--grpc-server-addr", f"unix:{listener}"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            undo.callback(stop, self._process)
            wait_for(listener, self._process, log)
            options = fy.SwitchOptions(p4info=p4info, p4blob=blob)
            self.control = ControlSession(f"unix:{listener}", options, self.profile.digests)
            undo.callback(self.control.close)
            self._undo = undo.pop_all()

    def send(self, port: int, frame: bytes) -> None:
        self._namespace.sockets[port].send(frame)

    def receive(self, timeout_s: float) -> list[tuple[int, bytes]]:
        return receive_from(self._namespace.sockets, timeout_s)

    def close(self) -> None:
        self._undo.close()
