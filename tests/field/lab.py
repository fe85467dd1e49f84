"""Machines of a newcomer, made of namespaces: a switch, hosts, a management network with a default route.

Each machine has its own network, processes, host name, /run and /tmp; all see the same file system, and each has a
folder of its own as home. Cables are veth pairs without offloads, as a switch with raw sockets sees real ones. A
machine and everything that runs on it end with the test's process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

BOOT = (
    'hostname "$0" && mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /tmp'
    " && ip link set lo up && echo up && exec sleep infinity"
)
NEW_MACHINE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork")
WAIT_S = 90.0


class Failed(AssertionError):
    """A command did not do what it should; the message has all that it said."""


@dataclass(slots=True)
class Daemon:
    """A command that goes on."""

    machine: str
    command: str
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """Everything so far, both outputs together."""
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> None:
        """Return when it has said so. Raises Failed when it ends before, or after a long time."""
        wait_until(lambda: self._heard(pattern), f"{self.command!r} on {self.machine} to say {pattern!r}", self.said)

    def _heard(self, pattern: str) -> bool:
        heard = re.search(pattern, self.said()) is not None
        if not heard and self.process.poll() is not None:
            raise Failed(f"{self.command!r} on {self.machine} ended:\n{self.said()}")
        return heard

    def freeze(self) -> None:
        """It does nothing any more, as on a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on. So does nsenter, which stops with its child."""
        self._signal(signal.SIGCONT)
        os.killpg(self.process.pid, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """To the program alone: nsenter and the shell wait for its end, and pass its status on."""
        for pid in _last_children(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """At once, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        self._signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


@dataclass(slots=True)
class Machine:
    """One machine."""

    name: str
    home: Path
    process: subprocess.Popen[bytes]
    pid: int
    environment: dict[str, str]
    daemons: list[Daemon] = field(default_factory=list)

    def popen(self, command: str, **streams: object) -> subprocess.Popen[bytes]:
        """Start a shell command line here, in its own process group."""
        enter = ["nsenter", "-t", str(self.pid), "--net", "--mount", "--uts", "--ipc", "--pid", f"--wd={self.home}"]
        # It ends with its machine. A signal at a parent's death would come when the thread that starts it ends.
        argv = [*enter, "bash", "-euo", "pipefail", "-c", command]
        return subprocess.Popen(argv, env=self.environment, start_new_session=True, **streams)  # type: ignore[call-overload,no-any-return]

    def run(self, command: str, timeout_s: float = WAIT_S) -> tuple[int, str]:
        """Exit status, and what it said on both outputs."""
        process = self.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            raise Failed(f"{command!r} on {self.name} takes too long:\n{said.decode(errors='replace')}") from None
        return process.returncode, said.decode(errors="replace")

    def say(self, command: str, timeout_s: float = WAIT_S) -> str:
        """What a command says that must succeed."""
        status, said = self.run(command, timeout_s)
        if status != 0:
            raise Failed(f"{command!r} on {self.name} ends with {status}:\n{said}")
        return said

    def start(self, command: str, ready: str) -> Daemon:
        """A command that goes on; returns when it has said `ready`, a regular expression."""
        log = self.home / f"daemon-{len(self.daemons)}.log"
        with log.open("wb") as out:
            process = self.popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        daemon = Daemon(self.name, command, process, log)
        self.daemons.append(daemon)
        daemon.wait_for(ready)
        return daemon

    def running(self, word: str) -> Daemon:
        """The last started daemon whose command has this word."""
        found = [one for one in self.daemons if word in one.command and one.process.poll() is None]
        if not found:
            raise Failed(f"nothing with {word!r} runs on {self.name}")
        return found[-1]


class Lab:
    """All machines: `switch` in the middle, `hosts` around it."""

    def __init__(self, folder: Path, path: str, environment: Mapping[str, str]) -> None:
        """`path`: PATH on all machines; `environment`: variables besides those of a login."""
        self._folder = folder
        self._environment = {"PATH": path, "LANG": "C.UTF-8", "COLUMNS": "80", **environment}
        self.machines: dict[str, Machine] = {}

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def boot(self, name: str) -> Machine:
        """A machine without any network."""
        home = self._folder / name
        home.mkdir(parents=True)
        options = ["--kill-child", "--mount-proc", "--propagation", "private"]
        process = subprocess.Popen([*NEW_MACHINE, *options, "sh", "-c", BOOT, name], stdout=subprocess.PIPE)
        assert process.stdout is not None
        if process.stdout.readline() != b"up\n":
            raise Failed(f"machine {name} does not come up")
        (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        environment = {"XDG_CACHE_HOME": str(self._folder / "cache"), **self._environment, "HOME": str(home)}
        self.machines[name] = Machine(name, home, process, int(pid), environment)
        return self.machines[name]

    def cable(self, one: str, interface: str, other: str, other_interface: str) -> None:
        """Connect two machines; both ends are down."""
        names = (self[one].pid, interface, self[other].pid, other_interface)
        argv = "ip link add {1} netns {0} type veth peer name {3} netns {2}".format(*names).split()
        subprocess.run(argv, check=True, capture_output=True)
        for name, end in ((one, interface), (other, other_interface)):
            self[name].say(f"ethtool -K {end} tso off gso off gro off tx off >/dev/null")

    def close(self) -> None:
        """End all machines and what runs on them."""
        for machine in self.machines.values():
            machine.process.kill()
        for machine in self.machines.values():
            machine.process.communicate()
            for daemon in machine.daemons:
                daemon.kill()

    def logs(self) -> str:
        """What all daemons said, for a failure's report."""
        daemons = [daemon for machine in self.machines.values() for daemon in machine.daemons]
        return "\n".join(f"--- {one.machine}: {one.command}\n{one.said()[-4000:]}" for one in daemons)


@dataclass(frozen=True, slots=True)
class Plan:
    """Addresses of a lab: /24 for management with a gateway, a data network, as the pages have them."""

    management: str = "10.0.0"
    data: str = "10.20.0"
    data_bits: int = 16
    hosts: int = 3

    def data_address(self, number: int) -> str:
        """Of host n`number`."""
        return f"{self.data}.{number}"


@contextlib.contextmanager
def lab_of(folder: Path, path: str, environment: Mapping[str, str], plan: Plan | None = None) -> Iterator[Lab]:
    """`sw` with eth1, eth2, ... to hosts n1, n2, ...; all on a management network behind gateway `gw`.

    As machines come from their makers: management works, with a default route; the data interfaces are down, with an
    MTU of 1500 and without addresses.
    """
    plan = plan or Plan()
    lab = Lab(folder, path, environment)
    try:
        gateway = lab.boot("gw")
        gateway.say("ip link add lan type bridge && ip link set lan up")
        gateway.say(f"ip addr add {plan.management}.254/24 dev lan")
        for number in range(plan.hosts + 1):
            name, address = ("sw", 1) if number == 0 else (f"n{number}", 10 + number)
            machine = lab.boot(name)
            lab.cable(name, "eth0", "gw", f"to-{name}")
            gateway.say(f"ip link set to-{name} master lan up")
            machine.say(f"ip addr add {plan.management}.{address}/24 dev eth0 && ip link set eth0 up")
            machine.say(f"ip route add default via {plan.management}.254")
        for number in range(1, plan.hosts + 1):
            lab.cable(f"n{number}", "eth1", "sw", f"eth{number}")
        yield lab
    except BaseException as error:
        error.add_note(lab.logs())
        raise
    finally:
        lab.close()


def _last_children(pid: int) -> list[int]:
    """Of a process: its children's children's ..., those that have none."""
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return [last for child in children for last in (_last_children(child) or [child])]


def wait_until(holds: object, what: str, found: object = lambda: "") -> None:
    """Return when `holds()` is true. Raises Failed, with `found()`, after a long time."""
    if not callable(holds) or not callable(found):
        raise TypeError("conditions are called")
    until_s = time.monotonic() + WAIT_S
    tick = threading.Event()
    while not holds():
        if time.monotonic() > until_s:
            raise Failed(f"waited {WAIT_S:.0f} s for {what}:\n{found()}")
        tick.wait(0.05)
