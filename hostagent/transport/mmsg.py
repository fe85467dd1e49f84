"""recvmmsg and sendmmsg: many datagrams per system call, with numpy arrays as the kernel's structures.

One call costs one entry into the kernel and no Python object per datagram; both calls leave the GIL alone while they
are in the kernel. Layouts are those of 64-bit Linux (x86-64, aarch64).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

_MMSGHDR = np.dtype(
    {
        "names": ["name", "namelen", "iov", "iovlen", "control", "controllen", "flags", "len"],
        "formats": ["<u8", "<u4", "<u8", "<u8", "<u8", "<u8", "<i4", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)
_SOCKADDR_BYTES = 16
_CONTROL_BYTES = 64
_CMSG_HEADER_BYTES = 16
_CMSG_STEP_BYTES = 24
"""Header and up to 8 bytes of content: what IP_TOS and SO_RXQ_OVFL take each."""
SO_RXQ_OVFL = 40
SO_NO_CHECK = 11
IP_MTU_DISCOVER = 10
IP_PMTUDISC_DO = 2
SO_RCVBUFFORCE = 33
SO_SNDBUFFORCE = 32

_libc = ctypes.CDLL(None, use_errno=True)
_libc.recvmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
_libc.recvmmsg.restype = ctypes.c_int
_libc.sendmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]
_libc.sendmmsg.restype = ctypes.c_int

if sys.byteorder != "little" or struct.calcsize("P") != 8:  # pragma: no cover - says so instead of misreading memory
    raise ImportError("hostagent.transport.mmsg knows the structures of 64-bit little-endian Linux only")


class DatagramReceiver:
    """Takes datagrams from a non-blocking UDP socket, up to `batch_count` at once, into its own rows.

    After `receive()` returned n, the first n entries of `rows`, `lengths`, `source_ips`, `source_ports`, `tos` describe
    the datagrams taken; they are overwritten by the next call. The first `prefix_bytes` bytes of each
    datagram go to `prefixes` instead, so that the rest is aligned and contiguous in `rows`.
    """

    def __init__(self, sock: socket.socket, batch_count: int, row_bytes: int, prefix_bytes: int = 0) -> None:
        self._fd = sock.fileno()
        self.batch_count = batch_count
        self.rows: U8 = np.zeros((batch_count, row_bytes), np.uint8)
        self._names: U8 = np.zeros((batch_count, _SOCKADDR_BYTES), np.uint8)
        self._control: U8 = np.zeros((batch_count, _CONTROL_BYTES), np.uint8)
        self.prefixes: U8 = np.zeros((batch_count, prefix_bytes), np.uint8)
        self._iov: U64 = np.zeros((batch_count, 2, 2), np.uint64)
        self._headers = np.zeros(batch_count, _MMSGHDR)
        self._iov[:, 0, 0] = _addresses(self.prefixes)
        self._iov[:, 0, 1] = prefix_bytes
        self._iov[:, 1, 0] = _addresses(self.rows)
        self._iov[:, 1, 1] = row_bytes
        self._headers["name"] = _addresses(self._names)
        self._headers["iov"] = _addresses(self._iov)
        self._headers["iovlen"] = 2
        self._headers["control"] = _addresses(self._control)
        self._headers_address = self._headers.ctypes.data
        self._tos: U8 = np.zeros(batch_count, np.uint8)
        self.overflow_count = 0
        """Datagrams that the kernel dropped at this socket because its buffer was full (needs SO_RXQ_OVFL)."""

    def receive(self) -> int:
        """How many datagrams were taken; 0 when there is none. Raises OSError on anything else."""
        self._headers["namelen"] = _SOCKADDR_BYTES
        self._headers["controllen"] = _CONTROL_BYTES
        taken: int = _libc.recvmmsg(self._fd, self._headers_address, self.batch_count, socket.MSG_DONTWAIT, None)
        if taken >= 0:
            return taken
        code = ctypes.get_errno()
        # ICMP errors of earlier sends (ECONNREFUSED and the like) are no business of the receive path.
        if code in (errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH):
            return 0
        raise OSError(code, os.strerror(code))

    def lengths(self, count: int) -> U32:
        """Bytes of each datagram, shape (count,); longer ones than a row are cut to 0 and so refused by any codec."""
        lengths: U32 = self._headers["len"][:count].copy()
        lengths[(self._headers["flags"][:count] & socket.MSG_TRUNC) != 0] = 0
        return lengths

    def source_ips(self, count: int) -> U32:
        """IPv4 source addresses as host-order numbers, shape (count,)."""
        return self._names[:count, 4:8].view(">u4")[:, 0].astype(np.uint32)

    def source_ports(self, count: int) -> U16:
        """UDP source ports, shape (count,)."""
        return self._names[:count, 2:4].view(">u2")[:, 0].astype(np.uint16)

    def tos(self, count: int) -> U8:
        """Type-of-service bytes, shape (count,), 0 where the kernel gave none (needs IP_RECVTOS)."""
        found = self._tos[:count]
        found[:] = 0
        used = self._headers["controllen"][:count]
        for start in range(0, _CONTROL_BYTES - _CMSG_STEP_BYTES + 1, _CMSG_STEP_BYTES):
            present = used > start + _CMSG_HEADER_BYTES
            if not present.any():
                break
            kind = self._control[:count, start + 8 : start + 16].view("<i4")
            content = self._control[:count, start + _CMSG_HEADER_BYTES : start + _CMSG_STEP_BYTES]
            is_tos = present & (kind[:, 0] == socket.IPPROTO_IP) & (kind[:, 1] == socket.IP_TOS)
            found[is_tos] = content[is_tos, 0]
            is_overflow = present & (kind[:, 0] == socket.SOL_SOCKET) & (kind[:, 1] == SO_RXQ_OVFL)
            if is_overflow.any():
                self.overflow_count = int(content[is_overflow, :4].copy().view("<u4").max())
        return found


class DatagramSender:
    """Hands datagrams made of `parts_count` pieces of memory each to a non-blocking UDP socket, many at once."""

    def __init__(self, sock: socket.socket, batch_count: int, parts_count: int) -> None:
        self._fd = sock.fileno()
        self.batch_count = batch_count
        self._iov: U64 = np.zeros((batch_count, parts_count, 2), np.uint64)
        self._headers = np.zeros(batch_count, _MMSGHDR)
        self._headers["iov"] = _addresses(self._iov)
        self._headers["iovlen"] = parts_count
        self._headers_address = self._headers.ctypes.data
        self._names: U8 = np.zeros(_SOCKADDR_BYTES, np.uint8)
        self._headers["name"] = self._names.ctypes.data
        self._headers["namelen"] = _SOCKADDR_BYTES

    def send(self, part_addresses: U64, part_bytes: U64, destination: tuple[str, int]) -> int:
        """Send datagrams. `part_addresses`: (count, parts_count), count <= batch_count; `part_bytes`: same or one row.

        The memory must stay as it is until the call returns. Returns how many the socket took; fewer than asked
        means that it is full (wait until it is writable). Raises OSError for errors that are not about being full.
        """
        count = len(part_addresses)
        if count == 0:
            return 0
        self._iov[:count, :, 0] = part_addresses
        self._iov[:count, :, 1] = part_bytes
        packed = (
            struct.pack("=H", socket.AF_INET) + struct.pack("!H", destination[1]) + socket.inet_aton(destination[0])
        )
        self._names[: len(packed)] = np.frombuffer(packed, np.uint8)
        self._headers["name"] = self._names.ctypes.data
        self._headers["namelen"] = _SOCKADDR_BYTES
        sent: int = _libc.sendmmsg(self._fd, self._headers_address, count, socket.MSG_DONTWAIT)
        if sent >= 0:
            return sent
        code = ctypes.get_errno()
        if code in (errno.EAGAIN, errno.EINTR, errno.ENOBUFS):
            return 0
        raise OSError(code, os.strerror(code))


def _addresses(rows: npt.NDArray[np.generic]) -> U64:
    """The address of each row of a C-contiguous array."""
    start, step = rows.ctypes.data, rows.strides[0]
    return (start + step * np.arange(len(rows), dtype=np.uint64)).astype(np.uint64)


def ask_buffer(sock: socket.socket, *, receive_bytes: int = 0, send_bytes: int = 0) -> None:
    """Ask for socket buffers, beyond net.core.*mem_max where we may (CAP_NET_ADMIN)."""
    for asked, force, plain in (
        (receive_bytes, SO_RCVBUFFORCE, socket.SO_RCVBUF),
        (send_bytes, SO_SNDBUFFORCE, socket.SO_SNDBUF),
    ):
        if not asked:
            continue
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, asked)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, plain, asked)


def granted_receive_bytes(sock: socket.socket) -> int:
    """What the kernel really granted, as payload: it reports twice that, for its own bookkeeping."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def granted_send_bytes(sock: socket.socket) -> int:
    """The same for sending."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
