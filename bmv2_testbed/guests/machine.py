"""One guest: its QEMU process, and processes inside it that look like processes here."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.guests.image import QEMU, GuestImage
from bmv2_testbed.limits import LOG_TAIL_BYTES
from kvdaemon.notify import NOTIFY_VARIABLE

MANAGEMENT_HOST: Final = "10.0.2.2"
"""This machine's loopback, as seen from a guest (QEMU's user network)."""
MANAGEMENT_GUEST: Final = "10.0.2.15"
_INSIDE: Final = Path(__file__).with_name("inside.py")
_LINK_MTU_BYTES: Final = 9000
_KERNEL_WORDS: Final = (
    "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr clocksource=hpet tsc=unstable lpj=10000000"
    " random.trust_cpu=on rcupdate.rcu_expedited=1 no_timer_check"
)
"""No TSC: an emulated one is this machine's, whose frequency a guest has to find out at boot; on a loaded machine it
has been wrong by a factor of three, and all timeouts with it. The HPET says its frequency."""


@dataclass(frozen=True, slots=True)
class GuestPort:
    """A network card: whole Ethernet frames, one per datagram, between two loopback ports, or two sockets in the file
    system. Sockets in the file system lose nothing: a sender waits while one is full."""

    mac: str
    local: str
    """host:port, or the path of a socket, that QEMU sends from."""
    remote: str

    def cable(self) -> str:
        """QEMU's back end for it."""
        return ",".join(("dgram", *_end("local", self.local), *_end("remote", self.remote)))


def _end(name: str, address: str) -> tuple[str, ...]:
    if address.startswith("/"):
        return f"{name}.type=unix", f"{name}.path={address}"
    host, _, port = address.rpartition(":")
    return f"{name}.type=inet", f"{name}.host={host}", f"{name}.port={port}"


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """What a guest is made of."""

    name: str
    image: GuestImage
    directory: Path
    """Of the run: seen by the guest under the same path, writable."""
    ports: tuple[GuestPort, ...]
    """eth0 and on."""
    forwards: Mapping[str, int]
    """Listening host:port here -> port in the guest."""
    memory_mib: int = 640

    def command(self) -> list[str]:
        """QEMU's command line."""
        argv = [QEMU, "-machine", "q35", "-accel", "tcg,thread=single,tb-size=128", "-cpu", "max"]
        argv += ["-m", f"{self.memory_mib}M", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        argv += ["-kernel", str(self.image.kernel), "-initrd", str(self.image.initramfs)]
        words = f"{_KERNEL_WORDS} kvcast.python={sys.executable} kvcast.inside={_INSIDE} kvcast.run={self.directory}"
        argv += ["-append", words, "-serial", f"file:{self.console}"]
        argv += [
            "-device",
            "virtio-serial-pci",
            "-chardev",
            f"socket,id=control,path={self.control},server=on,wait=off",
        ]
        argv += ["-device", "virtserialport,chardev=control,name=control", "-device", "virtio-rng-pci"]
        argv += ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]
        argv += ["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
        argv += ["-fsdev", f"local,id=run,path={self.directory},security_model=none,multidevs=remap"]
        argv += ["-device", "virtio-9p-pci,fsdev=run,mount_tag=run"]
        for index, port in enumerate(self.ports):
            card = f"virtio-net-pci,netdev=n{index},mac={port.mac},romfile=,host_mtu={_LINK_MTU_BYTES}"
            argv += ["-netdev", f"{port.cable()},id=n{index}", "-device", card]
        forwards = "".join(f",hostfwd=tcp:{here}-:{there}" for here, there in self.forwards.items())
        argv += ["-netdev", f"user,id=management{forwards}", "-device", "virtio-net-pci,netdev=management,romfile="]
        return argv

    @property
    def control(self) -> Path:
        return self.directory / f"{self.name}.control"

    @property
    def console(self) -> Path:
        return self.directory / f"{self.name}.console"


class GuestProcess:
    """A process in a guest, with the part of Popen's interface that a supervisor uses."""

    def __init__(
        self, guest: Guest, number: int, argv: Sequence[str], notify: str | None, out: IO[bytes], err: IO[bytes]
    ) -> None:
        """`notify`: address that its sd_notify(3) datagrams go to here, and an empty one when it has ended."""
        self._guest = guest
        self._notify = notify
        self._number = number
        self._argv = argv
        self._streams = {1: os.fdopen(os.dup(out.fileno()), "wb", 0), 2: os.fdopen(os.dup(err.fileno()), "wb", 0)}
        self._ended = threading.Event()
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """The process id of the guest that it runs in: its CPU time is charged to that process here."""
        return self._guest.pid

    def poll(self) -> int | None:
        """Exit status, as Popen's; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(list(self._argv), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send the signal to the process and to those that it started."""
        if self.returncode is None:
            self._guest.send(signal=self._number, which=int(sig))

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wrote(self, stream: int, piece: bytes) -> None:
        """From the guest."""
        self._streams[stream].write(piece)

    def ended(self, status: int) -> None:
        """From the guest, or when it has ended."""
        for stream in self._streams.values():
            stream.close()
        self.returncode = status
        self._ended.set()
        self.notified("")

    def notified(self, text: str) -> None:
        """From the guest."""
        if self._notify is not None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
                # The listener may have closed the socket.
                sender.sendto(text.encode(), self._notify)


class Guest:
    """A guest that runs."""

    def __init__(self, spec: GuestSpec) -> None:
        """Start it. It dies with the thread that makes it. Raises TestbedError."""
        self.spec = spec
        self._numbers = itertools.count(1)
        self._processes: dict[int, GuestProcess] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        log = spec.directory / f"{spec.name}.qemu"
        with log.open("wb") as said:
            try:
                self._qemu = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", *spec.command()],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise TestbedError(f"cannot start {QEMU}: {error.strerror}") from error
        self._log = log
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int:
        return self._qemu.pid

    def await_boot(self, deadline_s: float) -> None:
        """Wait until it takes commands. Raises TestbedError with its last words."""
        while self._control is None:
            control = socket.socket(socket.AF_UNIX)
            try:
                control.connect(str(self.spec.control))
                self._control = control
            except OSError:
                control.close()
                self._still_there(deadline_s)
                time.sleep(0.02)
        threading.Thread(target=self._listen, args=(self._control,), daemon=True).start()
        while not self._ready.wait(0.1):
            self._still_there(deadline_s)

    def _still_there(self, deadline_s: float) -> None:
        if self._qemu.poll() is not None:
            raise TestbedError(f"guest {self.spec.name} ended at boot: {_last_line(self._log, self.spec.console)}")
        if time.monotonic() > deadline_s:
            raise TestbedError(f"guest {self.spec.name} does not boot: {_last_line(self.spec.console, self._log)}")

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> GuestProcess:
        """Start a process; its output goes to these files."""
        with self._lock:
            number = next(self._numbers)
            notify = environment.get(NOTIFY_VARIABLE)
            process = self._processes[number] = GuestProcess(self, number, argv, notify, out, err)
        self.send(start=number, argv=list(argv), environment=dict(environment))
        return process

    def run(self, argv: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> tuple[int, str, str]:
        """Run a process to its end: status, stdout, stderr. Raises TestbedError when it takes longer."""
        with open(os.memfd_create("out"), "w+b", 0) as out, open(os.memfd_create("err"), "w+b", 0) as err:
            process = self.start(argv, environment, out, err)
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
                raise TestbedError(
                    f"in guest {self.spec.name}: {' '.join(argv[:3])} was not done after {timeout_s:.0f} s:"
                    f" {_contents(out)[-1000:]} {_contents(err)[-1000:]}"
                ) from None
            return status, _contents(out), _contents(err)

    def shell(self, script: str, timeout_s: float = 300.0) -> str:
        """Run a shell script; returns what it wrote. Raises TestbedError when it fails."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        status, out, err = self.run(["sh", "-ec", script], environment, timeout_s)
        if status != 0:
            raise TestbedError(f"in guest {self.spec.name}: status {status}: {(err or out).strip()[-1000:]}")
        return out

    def send(self, **message: Any) -> None:
        """Send one line to the guest. Raises TestbedError when it has ended."""
        if self._control is None:
            raise TestbedError(f"guest {self.spec.name} has not booted")
        try:
            with self._lock:
                self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise TestbedError(f"guest {self.spec.name} has ended: {error.strerror}") from error

    def stop(self) -> None:
        """End it at once. Idempotent."""
        self._qemu.kill()
        self._qemu.wait()
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
            self._control.close()

    def _listen(self, control: socket.socket) -> None:
        with contextlib.suppress(OSError), control.makefile("rb") as lines:
            for line in lines:
                self._take(json.loads(line))
        for process in list(self._processes.values()):
            process.ended(-signal.SIGKILL)

    def _take(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready.set()
        elif "output" in message:
            self._processes[message["output"]].wrote(message["stream"], base64.b64decode(message["base64"]))
        elif "notified" in message:
            process = self._processes.get(message["notified"])
            if process is not None:
                process.notified(message["text"])
        elif "ended" in message:
            self._processes.pop(message["ended"]).ended(message["status"])
        else:
            failed = self._processes.pop(message["failed"])
            failed.wrote(2, message["why"].encode() + b"\n")
            failed.ended(127)


def _contents(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_line(*logs: Path) -> str:
    for log in logs:
        lines = log.read_text(errors="replace")[-LOG_TAIL_BYTES:].strip().splitlines() if log.exists() else []
        if lines:
            return lines[-1]
    return "it said nothing"
