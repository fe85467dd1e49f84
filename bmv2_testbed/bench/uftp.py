"""Multicast by UFTP: what a person would set up to reach many with what distributions ship.

Each reader runs Debian's `uftpd` all the time. At the holder a server listens for readers that want the prefix and runs
`uftp` for all of them together: who has asked until nobody did for COLLECT_S, or while the last session ran. UFTP has
no way into a session that has begun, so whoever comes later waits for its end. It sends at the links' rate, because it
has no other word for "as fast as the link" than a number (RFC 4654's control, its alternative, is far slower on links
like these).
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bmv2_testbed.content import Prefix, add_prefix_arguments, prefix_of
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import FETCH_DEADLINE_S, LINK_MTU_BYTES
from kvdaemon.readiness import notify_ready

UFTP_PORT: Final = 5504
COLLECT_S: Final = 0.02
"""A session begins when nobody has asked for so long: all that start at once are in it."""
_BLOCK_BYTES: Final = LINK_MTU_BYTES - 200
"""As its manual page advises: room for all headers."""
_RATE_SHARE: Final = 0.97
"""Of the link: headers of Ethernet, and what clients answer, must find room beside the data."""
_FILE: Final = "prefix"
_ROUND_TRIP_S: Final = "0.01:0.01:0.1"
"""First, least and greatest guess of the group's round trip; the default of 0.5 s is for the Internet."""


class UftpSource:
    """A reader's `uftpd`, and the line by which it asks for a session."""

    def __init__(self, host: str) -> None:
        """`host`: the holder's address."""
        self._fetched = 0
        self._connection = socket.create_connection((host, UFTP_PORT))
        address = self._connection.getsockname()[0]
        self._directory = tempfile.TemporaryDirectory(prefix="uftp")
        here = Path(self._directory.name)
        os.mkfifo(here / "status")
        self._status = os.open(here / "status", os.O_RDWR)
        self._log = (here / "log").open("wb")
        words = ["-d", "-q", "-x", "1", "-I", address, "-D", str(here / "got")]
        (here / "got").mkdir()
        self._daemon = subprocess.Popen(["uftpd", *words, "-F", str(here / "status")], stderr=self._log)

    def fetch(self, prefix: Prefix) -> Iterator[tuple[int, memoryview]]:
        """As `Source.fetch`; everything gets whole at once, with UFTP's last message."""
        self._connection.sendall(b"\n")
        self._await_file()
        content = memoryview((Path(self._directory.name) / "got" / _FILE).read_bytes())
        for index in range(prefix.chunks):
            start = index * prefix.chunk_bytes
            self._fetched += 1
            yield index, content[start : start + prefix.chunk_size_bytes(index)]

    def _await_file(self) -> None:
        """Return when `uftpd` says that the file is here."""
        deadline_s = time.monotonic() + FETCH_DEADLINE_S
        said = b""
        while b"RESULT;" not in said:
            ready, _, _ = select.select([self._status], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise TestbedError(f"uftpd received nothing within {FETCH_DEADLINE_S:.0f} s")
            said += os.read(self._status, 4096)

    def origins(self) -> dict[str, int]:
        return {"uftp": self._fetched}

    def close(self) -> None:
        self._daemon.kill()
        self._daemon.wait()
        os.close(self._status)
        self._log.close()
        self._connection.close()
        self._directory.cleanup()


def serve(path: Path, address: str, rate_bit_s: int) -> None:
    """Send the file to all who ask, a session for each group of them, for ever."""
    listener = socket.create_server((address, UFTP_PORT), backlog=128)
    notify_ready()
    idle: set[socket.socket] = {listener}
    asking: list[str] = []
    while True:
        ready, _, _ = select.select(idle, [], [], COLLECT_S if asking else None)
        if not ready and asking:
            _send(path, address, rate_bit_s, asking)
            asking = []
        for one in ready:
            if one is listener:
                idle.add(listener.accept()[0])
                continue
            if not one.recv(1):
                idle.discard(one)
                one.close()
                continue
            asking.append(one.getpeername()[0])


def _send(path: Path, address: str, rate_bit_s: int, clients: list[str]) -> None:
    """One session. A client's identity is its address, as `uftpd` chooses it."""
    identities = ",".join(f"0x{int(ipaddress.IPv4Address(client)):08X}" for client in clients)
    rate_kbit_s = int(rate_bit_s * _RATE_SHARE / 1000)
    words = ["-I", address, "-R", str(rate_kbit_s), "-b", str(_BLOCK_BYTES), "-r", _ROUND_TRIP_S, "-H", identities]
    subprocess.run(["uftp", "-x", "1", *words, "-D", _FILE, str(path)], check=True, timeout=FETCH_DEADLINE_S)


def main() -> int:
    """Entry point: the server at the holder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--rate", type=int, required=True, help="of the links, in bit/s")
    parser.add_argument("--file", type=Path, required=True, help="where it keeps the prefix")
    add_prefix_arguments(parser)
    args = parser.parse_args()
    args.file.write_bytes(b"".join(prefix_of(args).contents()))
    serve(args.file, args.address, args.rate)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
