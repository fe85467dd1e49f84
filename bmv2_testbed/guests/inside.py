"""The first program of a guest: runs commands that the host sends over a virtio serial port. Standard library only.

Lines of JSON each way. From the host: {"start": number, "argv": [..], "environment": {..}} and {"signal": number,
"which": 15}. To the host: {"ready": seconds since boot}, {"output": number, "stream": 1 | 2, "base64": ".."},
{"ended": number, "status": s} (negative: a signal), {"failed": number, "why": ".."} and {"notified": number,
"text": ".."}: what a process said with sd_notify(3), whose socket has to be of this kernel.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import socket
import subprocess
import threading
from io import FileIO
from pathlib import Path
from typing import IO, Any

_PORTS = Path("/sys/class/virtio-ports")
_NOTIFY_VARIABLE = "NOTIFY_SOCKET"
_PIECE_BYTES = 32 * 1024


def control_port() -> str:
    """The device of the serial port called `control`."""
    for port in _PORTS.iterdir():
        if (port / "name").read_text().strip() == "control":
            return f"/dev/{port.name}"
    raise SystemExit("guest: no control port")


class Inside:
    """The guest's end of the control port."""

    def __init__(self, port: FileIO) -> None:
        self._port = port
        self._sending = threading.Lock()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def send(self, **message: Any) -> None:
        """One line to the host."""
        line = memoryview(json.dumps(message).encode() + b"\n")
        with self._sending:
            while line:
                line = line[self._port.write(line) :]

    def serve(self) -> None:
        """Do what the host says until it hangs up."""
        self.send(ready=float(Path("/proc/uptime").read_text().split()[0]))
        received = b""
        while True:
            piece = self._port.read(65536)
            if not piece:
                return
            *lines, received = (received + piece).split(b"\n")
            for line in lines:
                self._obey(json.loads(line))

    def _obey(self, message: dict[str, Any]) -> None:
        if "signal" in message:
            process = self._processes.get(message["signal"])
            if process is not None and process.poll() is None:
                os.killpg(process.pid, message["which"])
            return
        number, environment = message["start"], message["environment"]
        if _NOTIFY_VARIABLE in environment:
            environment[_NOTIFY_VARIABLE] = self._relay_notifications(number)
        try:
            process = subprocess.Popen(
                message["argv"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self.send(failed=number, why=str(error))
            return
        self._processes[number] = process
        threading.Thread(target=self._follow, args=(number, process), daemon=True).start()

    def _relay_notifications(self, number: int) -> str:
        address = f"/run/notify-{number}"
        notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notifications.bind(address)

        def relay() -> None:
            while True:
                self.send(notified=number, text=notifications.recv(4096).decode())

        threading.Thread(target=relay, daemon=True).start()
        return address

    def _follow(self, number: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = threading.Thread(target=self._pass_on, args=(number, 2, process.stderr), daemon=True)
        errors.start()
        self._pass_on(number, 1, process.stdout)
        errors.join()
        self.send(ended=number, status=process.wait())
        del self._processes[number]

    def _pass_on(self, number: int, stream: int, pipe: IO[bytes]) -> None:
        while piece := os.read(pipe.fileno(), _PIECE_BYTES):
            self.send(output=number, stream=stream, base64=base64.b64encode(piece).decode())


def main() -> None:
    """Entry point, as process 1."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    # RDMA locks the memory that it registers, and a guest shares its memory with no other user.
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with FileIO(control_port(), "r+") as port:
        Inside(port).serve()


if __name__ == "__main__":
    main()
