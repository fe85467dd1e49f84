"""Options of sockets that Python does not name, and buffers as large as this process may have."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

IP_PKTINFO: Final = 8
IP_MTU_DISCOVER: Final = 10
IP_PMTUDISC_DO: Final = 2
SO_RXQ_OVFL: Final = 40
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
"""Linux, include/uapi/linux/in.h, udp.h and asm-generic/socket.h."""


def ask_buffer(sock: socket.socket, *, receive_bytes: int = 0, send_bytes: int = 0) -> None:
    """Ask for socket buffers, beyond net.core.*mem_max where we may (CAP_NET_ADMIN)."""
    for asked, force, plain in (
        (receive_bytes, _SO_RCVBUFFORCE, socket.SO_RCVBUF),
        (send_bytes, _SO_SNDBUFFORCE, socket.SO_SNDBUF),
    ):
        if not asked:
            continue
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, asked)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, plain, asked)


def take_buffers(sock: socket.socket) -> None:
    """Let a UDP socket receive a sender's datagrams joined, by one buffer. A kernel before 5.0 brings each alone."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)


def granted_receive_bytes(sock: socket.socket) -> int:
    """What the kernel really granted, as payload: it reports twice that, for its own bookkeeping."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def granted_send_bytes(sock: socket.socket) -> int:
    """The same for sending."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
