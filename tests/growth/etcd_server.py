"""A real etcd for a test: one server on loopback, with ports and a folder of its own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvdaemon.tls_settings import TlsSettings
from tests.ports import free_port

START_S = 60.0


class EtcdServer:
    """Debian's etcd. What it stores outlives `kill`."""

    def __init__(self, folder: Path, tls: TlsSettings | None = None, options: Sequence[str] = ()) -> None:
        """`tls`: its own certificate, and who signs those of its users; None: everybody may do everything. `options`:
        further ones of its command line."""
        if shutil.which("etcd") is None:
            pytest.skip("no etcd on PATH: tools/setup_system.sh etcd-server installs Debian's")
        self._folder = folder
        self._tls = tls
        self._options = options
        self._client_port, self._peer_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._client_port}"

    def start(self) -> None:
        scheme = "http" if self._tls is None else "https"
        client, peer = f"{scheme}://{self.address}", f"http://127.0.0.1:{self._peer_port}"
        command = ["etcd", "--name", "one", "--data-dir", str(self._folder / "etcd"), "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"one={peer}", *self._options]
        if self._tls is not None:
            command += ["--cert-file", str(self._tls.cert), "--key-file", str(self._tls.key)]
            command += ["--trusted-ca-file", str(self._tls.ca), "--client-cert-auth"]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._client_port), 1.0).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "etcd.log").read_text()
                assert time.monotonic() < deadline_s, "etcd does not listen"

    def stand_still(self) -> None:
        self._running.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wipe(self) -> None:
        """Start anew with nothing."""
        self.kill()
        shutil.rmtree(self._folder / "etcd")
        self.start()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process
