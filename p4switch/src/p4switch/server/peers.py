"""Who may speak to P4Runtime without a certificate: processes of this machine that run as the switch's user or root.

A UNIX socket's file decides that by itself. For TCP the kernel's table of sockets says whose the other end is; a peer
that is not in it is on another machine.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import urllib.parse
from collections.abc import Iterable
from pathlib import Path

import grpc

from p4switch.server.status import denied

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ESTABLISHED = "01"
_ROOT = 0


def check_local_user(context: grpc.ServicerContext, port: int) -> None:
    """Raise StatusError unless the other end of a connection to our `port` is this user's or root's."""
    peer = urllib.parse.unquote(context.peer())
    if peer.startswith("unix:"):
        return
    owner = socket_owner((line for table in _TABLES for line in _lines(table)), peer.partition(":")[2], port)
    if owner not in (os.geteuid(), _ROOT):
        whose = "another machine's" if owner is None else f"user {owner}'s"
        raise denied(
            f"{peer} is {whose}: without certificates (--tls-cert, --tls-key, --tls-ca) only the switch's own user on"
            " its machine may speak to it, unless it runs with --insecure"
        )


def socket_owner(table: Iterable[str], address: str, port: int) -> int | None:
    """The user whose socket at `address` (HOST:PORT, [HOST]:PORT) is connected to our `port`; None: not of this
    machine. `table`: lines as in /proc/net/tcp. Sockets that are closing have no owner there, and do not count."""
    host, _, own_port = address.rpartition(":")
    wanted = ipaddress.ip_address(host.strip("[]"))
    for line in table:
        words = line.split()
        if len(words) < 8 or words[3] != _ESTABLISHED:
            continue
        local, remote = words[1].partition(":"), words[2].partition(":")
        if int(local[2], 16) == int(own_port) and int(remote[2], 16) == port and _address(local[0]) == wanted:
            return int(words[7])
    return None


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Of 32-bit words in this machine's byte order, as the kernel prints them."""
    raw = bytes.fromhex(digits)
    words = (raw[at : at + 4] for at in range(0, len(raw), 4))
    found = ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    return getattr(found, "ipv4_mapped", None) or found


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text().splitlines()[1:]
    except FileNotFoundError:  # a kernel without IPv6
        return []
