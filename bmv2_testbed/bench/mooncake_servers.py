"""A whole Mooncake Store on this machine: mooncake_master and one process that lends memory, on loopback.

For `kvcast bench cold` and for tests. The wheel has both programs:
mooncake-transfer-engine-non-cuda.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import await_listening

ADDRESS: Final = "127.0.0.1"
LENT_BYTES_MIN: Final = 64 << 20
"""A client lends no less."""
START_S: Final = 30.0


def mooncake_installed() -> bool:
    """Whether the wheel is in this environment."""
    return importlib.util.find_spec("mooncake") is not None


def start_master(address: str, port: int, metrics_port: int | None = None) -> subprocess.Popen[bytes]:
    """mooncake_master, once it listens. Raises TestbedError."""
    found = importlib.util.find_spec("mooncake")
    if found is None or found.origin is None:
        raise TestbedError("no mooncake in this environment: pip install mooncake-transfer-engine-non-cuda")
    program = Path(found.origin).parent / "mooncake_master"
    words = [str(program), "--rpc_address", address, "--rpc_port", str(port), "--metrics_host", address]
    if metrics_port is not None:
        words += ["--metrics_port", str(metrics_port)]
    master = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    await_listening(master, "mooncake_master", address, port, START_S)
    return master


class MooncakeServers:
    """Both processes; once killed they may be started again at the same port."""

    def __init__(self, port: int, metrics_port: int, lent_bytes: int) -> None:
        """Starts both. Raises TestbedError."""
        self.port = port
        self._metrics_port = metrics_port
        self._lent_bytes = lent_bytes
        self.start()

    def start(self) -> None:
        """Both, once the memory is lent."""
        self.master = start_master(ADDRESS, self.port, self._metrics_port)
        words = [sys.executable, "-m", __name__, str(self.port), str(self._lent_bytes)]
        self.lender = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.lender.stdout is not None
        if not self.lender.stdout.readline():
            self.kill()
            raise TestbedError("no process lends memory to Mooncake: its client does not start")

    def kill(self) -> None:
        """Both."""
        _end(self.lender)
        _end(self.master)


@contextlib.contextmanager
def mooncake_servers(port: int, metrics_port: int, lent_bytes: int) -> Iterator[MooncakeServers]:
    """Both, for the time of a block. Raises TestbedError."""
    servers = MooncakeServers(port, metrics_port, lent_bytes)
    try:
        yield servers
    finally:
        servers.kill()


def mooncake_client(port: int, *, lent_bytes: int = 0, buffer_bytes: int = 0) -> Any:
    """Mooncake's own client in this process, started. Raises TestbedError."""
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # By default it prints each step.
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    status = store.setup(ADDRESS, "P2PHANDSHAKE", lent_bytes, buffer_bytes, "tcp", "", f"{ADDRESS}:{port}")
    if status != 0:
        raise TestbedError(f"mooncake's client does not start: status {status}")
    return store


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def main() -> None:
    """Lend memory until the process is ended: PORT BYTES."""
    port, lent_bytes = map(int, sys.argv[1:])
    kept = mooncake_client(port, lent_bytes=lent_bytes)
    print("lent", flush=True)
    signal.pause()
    kept.close()


if __name__ == "__main__":
    main()
