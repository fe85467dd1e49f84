"""Switches that run P4 programs, for Mininet: node classes, a topology, and a controller of one's own.

    mn --custom FILE --topo star,3 --switch p4switch,program=l2.p4 --controller none --test pingall

FILE is what `p4switch mininet` prints: this file. In scripts: `Mininet(topo=..., switch=partial(P4SwitchNode,
program="l2.p4"))`. It imports Mininet and the standard library only, because Mininet runs in the system's Python; the
commands `p4switch` and `simple_switch_grpc` have to be in PATH (see `p4switch bin`) or named by `command`.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from mininet.log import error, info  # type: ignore[import-not-found]
from mininet.node import Controller, Switch  # type: ignore[import-not-found]
from mininet.topo import Topo  # type: ignore[import-not-found]

START_S = 60.0
"""How long a switch may take to compile its program and to serve P4Runtime."""
POLL_S = 0.05
END_S = 5.0


class P4SwitchNode(Switch):  # type: ignore[misc]
    """p4switch on the node's interfaces: `s1-eth1` is port 1. P4Runtime is at 127.0.0.1:`grpc_port`.

    `program`: P4 source; None: a controller brings it. `options`: more words of the command line. `log_file`: where its
    output goes, by default a file in the temporary folder that is named after the node.
    """

    next_grpc_port = 50051
    next_device_id = 1
    command = "p4switch"
    running: ClassVar[list[P4SwitchNode]] = []

    def __init__(
        self,
        name: str,
        program: str | None = None,
        grpc_port: int | None = None,
        device_id: int | None = None,
        cpu_port: int | None = None,
        options: str = "",
        command: str | None = None,
        log_file: str | None = None,
        **params: Any,
    ) -> None:
        super().__init__(name, **params)
        self.program, self.cpu_port, self.options = program, cpu_port, options
        self.command = command or self.command
        self.log_file = log_file or os.path.join(tempfile.gettempdir(), f"{name}.log")
        self.grpc_port = grpc_port or P4SwitchNode.next_grpc_port
        self.device_id_p4 = device_id or P4SwitchNode.next_device_id
        P4SwitchNode.next_grpc_port = max(P4SwitchNode.next_grpc_port, self.grpc_port) + 1
        P4SwitchNode.next_device_id = max(P4SwitchNode.next_device_id, self.device_id_p4) + 1
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def p4runtime(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.grpc_port}"

    def words(self) -> list[str]:
        """The command line."""
        words = [self.command, *([self.program] if self.program else ["--no-p4"])]
        for port, interface in self.intfs.items():
            if port > 0:  # 0 is the loopback interface
                words += ["-i", f"{port}@{interface.name}"]
        words += ["--device-id", str(self.device_id_p4), *shlex.split(self.options)]
        return words + self._control()

    def _control(self) -> list[str]:
        cpu = [] if self.cpu_port is None else ["--cpu-port", str(self.cpu_port)]
        return ["--grpc", self.p4runtime, *cpu]

    def start(self, controllers: list[Any]) -> None:
        """Run it, and wait until it serves P4Runtime."""
        for port, interface in self.intfs.items():
            if port > 0:
                # A switch's port is no party on the network: it answers nobody.
                self.cmd(f"ip link set dev {interface.name} arp off up")
                self.cmd(f"sysctl -qw net.ipv6.conf.{interface.name}.disable_ipv6=1")
        with open(self.log_file, "wb") as log:
            self.process = self.popen(self.words(), stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_S
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                error(f"*** {self.name} did not start; the end of {self.log_file}:\n{self._last_words()}\n")
                raise SystemExit(1)
            time.sleep(POLL_S)
        self.controllers = [c for c in controllers if isinstance(c, P4Controller)]
        P4SwitchNode.running.append(self)
        info(f"{self.name}: P4Runtime at {self.p4runtime}, device {self.device_id_p4}, log {self.log_file}\n")

    @classmethod
    def batchStartup(cls, switches: Sequence[P4SwitchNode]) -> list[P4SwitchNode]:  # noqa: N802 - Mininet's name
        """All switches run: now their controllers may."""
        for switch in switches:
            for controller in switch.controllers:
                controller.run(P4SwitchNode.running)
        return list(switches)

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.grpc_port), timeout=1):
                return True
        except OSError:
            return False

    def _last_words(self) -> str:
        with open(self.log_file, encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-10:]).strip()

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 - Mininet's name
        """End it."""
        if self.process is not None:
            P4SwitchNode.running.remove(self)
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        super().stop(deleteIntfs)


class Bmv2Node(P4SwitchNode):
    """bmv2's simple_switch_grpc in the same place; `program` is the JSON that p4c-bm2-ss wrote."""

    command = "simple_switch_grpc"

    def _control(self) -> list[str]:
        cpu = [] if self.cpu_port is None else ["--cpu-port", str(self.cpu_port)]
        return ["--", "--grpc-server-addr", self.p4runtime, *cpu]


class P4Controller(Controller):  # type: ignore[misc]
    """A command of one's own next to the switches: `--controller p4,command="python3 mine.py"`. It may ask P4Runtime of
    all that it finds in the variable P4RUNTIME: `s1=127.0.0.1:50051/1 s2=127.0.0.1:50052/2` (name, address, device)."""

    def __init__(self, name: str, command: str = "", **params: Any) -> None:
        super().__init__(name, command=command, **params)
        self.process: subprocess.Popen[bytes] | None = None

    def checkListening(self) -> None:  # noqa: N802 - Mininet's name
        """Nobody speaks OpenFlow here."""

    def start(self) -> None:
        """The switches start after it: `run` follows."""

    def run(self, switches: Sequence[P4SwitchNode]) -> None:
        """Start the command, once, when all switches serve."""
        if self.process is not None or not self.command:
            return
        found = " ".join(f"{s.name}={s.p4runtime}/{s.device_id_p4}" for s in switches)
        self.process = self.popen(shlex.split(self.command), env=dict(os.environ, P4RUNTIME=found))

    def stop(self, *_: Any, **__: Any) -> None:
        """End the command."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        super(Controller, self).stop(deleteIntfs=True)


class Star(Topo):  # type: ignore[misc]
    """One switch and `hosts` hosts: h1 on port 1 and on."""

    def build(self, hosts: int = 2) -> None:
        """Mininet calls it."""
        self.addSwitch("s1")
        for number in range(1, int(hosts) + 1):
            self.addLink(self.addHost(f"h{number}"), "s1", port2=number)


topos = {"star": Star}
switches = {"p4switch": P4SwitchNode, "bmv2": Bmv2Node}
controllers = {"p4": P4Controller}
