"""The default transport: UDP casts and control, TCP reliable reads. No privileges, any Linux.

Sockets, all on the data interface: casts are sent from (address, 4791) and received on (group, 4791); control goes
through (address, 4793), notices come to (group, 4793); reads listen on (address, read port). Casts leave as the wire
format wants them without raw sockets: an unconnected socket with DF set has IP identification 0, SO_NO_CHECK leaves
the UDP checksum 0, and one bound socket keeps the source port, which the ICRC covers, the same.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import socket
import struct
from collections.abc import Callable

import numpy as np

from hostagent import limits
from hostagent.config import DataConfig
from hostagent.pool.memory import PoolMemory
from hostagent.transport import mmsg
from hostagent.transport.base import (
    ChunkPlace,
    ReadHandle,
    ReadOutcome,
    TransportCounters,
    TransportError,
    TransportFacts,
    TransportSink,
)
from hostagent.transport.casts import CastIntake, CastSender, ControlIntake, FramingCache
from hostagent.transport.reads import ReadClient, ReadServer
from kvproto.ids import Address, ChunkKey, format_address, parse_address
from kvproto.wire.control import Control, Op
from kvproto.wire.data import Fabric

_SIOCGIFADDR = 0x8915
_SIOCGIFHWADDR = 0x8927
_IP_MULTICAST_ALL = 49
_TRUESIZE_FACTOR = 2
"""The kernel charges a socket for a datagram's buffers, not its bytes: up to twice as much for a segment of 4 KiB."""


class SocketsTransport:
    """See the module's docstring and the contract in `base`."""

    def __init__(self, config: DataConfig, memory: PoolMemory) -> None:
        self._config = config
        self._memory = memory
        self.counters = TransportCounters()
        self._sockets: list[socket.socket] = []
        self._group_sockets: list[socket.socket] = []
        """What `_join` has opened; empty when this node could not join the group."""
        self._group_intakes: list[CastIntake | ControlIntake] = []
        self._open = False

    async def start(self, sink: TransportSink, fabric: Fabric) -> TransportFacts:
        """Bind and listen. Raises TransportError."""
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._fabric = fabric
        self._dscp = self._config.from_switch_dscp
        address = interface_address(self._config)
        self._address = address
        self._own = parse_address(address)
        try:
            self._cast_socket = self._keep(self._make_cast_socket(address))
            self._control_socket = self._keep(_bound_udp(address, self._config.control_port, "data.control_port"))
            self._framings = FramingCache(self._memory, self._own, self._cast_socket.getsockname()[1])
            self._sender = CastSender(self._cast_socket, self._loop)
            self._reads = ReadServer(self._memory, sink, self.counters)
            host, port = self._reads.listen(address, self._config.read_port)
            self._client = ReadClient(self._memory, self.counters, stall_timeout_s=limits.READ_STALL_TIMEOUT_S)
            self._open = True
            self._control_intake = self._take_control(self._control_socket)
            granted = self._join(fabric)
        except BaseException:
            await self.close()
            raise
        return TransportFacts(self._own, _mac(self._config), f"{host}:{port}", granted)

    async def close(self) -> None:
        """End everything."""
        if self._open:
            self._open = False
            self._sender.close()
            self._reads.close()
            self._client.close()
            self._leave()
            self._control_intake.close()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def use_fabric(self, fabric: Fabric, from_switch_dscp: int) -> None:
        """Other group, Q_Key or segment size: what was prepared is void, the group's sockets are made anew."""
        if fabric == self._fabric and from_switch_dscp == self._dscp and self._group_sockets:
            return
        self._fabric = fabric
        self._dscp = from_switch_dscp
        self._framings.clear()
        self._leave()
        self._join(fabric)

    # ------------------------------------------------------------------ sending

    def send_control(self, message: Control, destination: Address) -> None:
        """One control datagram. Best effort."""
        try:
            self._control_socket.sendto(message.encode(), (format_address(destination), self._config.control_port))
        except OSError as error:
            self.counters.drop(f"control_send_{errno.errorcode.get(error.errno or 0, 'error').lower()}")
        else:
            self.counters.control_sent += 1

    def cast(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """Send segments to the group."""
        prepared = self._framings.of(chunk, self._fabric)
        destination = (format_address(self._fabric.group), self._config.cast_port)
        self.counters.cast_packets_sent += count
        sink = self._sink
        self._sender.add(prepared, first, count, destination, _NO_PREFIX, sink.segments_sent, sink.segments_failed)

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address) -> None:
        """Send segments to the switch's memory: from the casting socket, because the switch keeps its port."""
        prepared = self._framings.of(chunk, self._fabric)
        destination = (format_address(pool), self._config.control_port)
        headers = fill_headers(chunk.key, prepared.framing.segments, first, count)
        self.counters.fill_packets_sent += count
        self._sender.add(prepared, first, count, destination, headers, self._sink.fill_sent, self._sink.fill_sent)

    # ------------------------------------------------------------------ reading

    def read(
        self,
        endpoint: str,
        key: ChunkKey,
        offset: int,
        size_bytes: int,
        pool_offset: int,
        done: Callable[[ReadOutcome], None],
        progressed: Callable[[int], None] | None = None,
    ) -> ReadHandle:
        """A range request over TCP."""
        return self._client.read(endpoint, key, offset, size_bytes, pool_offset, done, progressed)

    # ------------------------------------------------------------------ sockets

    def _take_control(self, sock: socket.socket) -> ControlIntake:
        return ControlIntake(sock, self._loop, self._sink, self.counters, self._own)

    def _keep(self, sock: socket.socket) -> socket.socket:
        self._sockets.append(sock)
        return sock

    def _make_cast_socket(self, address: str) -> socket.socket:
        sock = _bound_udp(address, self._config.cast_port, "data.cast_port")
        sock.setsockopt(socket.IPPROTO_IP, mmsg.IP_MTU_DISCOVER, mmsg.IP_PMTUDISC_DO)
        sock.setsockopt(socket.SOL_SOCKET, mmsg.SO_NO_CHECK, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, limits.MULTICAST_TTL)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        mmsg.ask_buffer(sock, send_bytes=limits.CAST_SEND_BUFFER_BYTES)
        return sock

    def _join(self, fabric: Fabric) -> int:
        """Receive what comes to the group; returns the bytes of segments that can wait."""
        group = format_address(fabric.group)
        notices = self._group_socket(group, self._config.control_port)
        try:
            casts = self._group_socket(group, self._config.cast_port)
        except TransportError:
            notices.close()
            raise
        self._group_sockets = [notices, casts]
        casts.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        casts.setsockopt(socket.SOL_SOCKET, mmsg.SO_RXQ_OVFL, 1)
        mmsg.ask_buffer(casts, receive_bytes=self._config.receive_buffer_bytes)
        intake = CastIntake(casts, self._loop, self._sink, self.counters, fabric, self._dscp, self._own)
        self._group_intakes = [intake, self._take_control(notices)]
        return 2 * mmsg.granted_receive_bytes(casts) // _TRUESIZE_FACTOR

    def _leave(self) -> None:
        for intake in self._group_intakes:
            intake.close()
        for sock in self._group_sockets:
            sock.close()
        self._group_intakes, self._group_sockets = [], []

    def _group_socket(self, group: str, port: int) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # Several programs may listen to one group; unicast ports are what tells two agents apart.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((group, port))
            membership = socket.inet_aton(group) + socket.inet_aton(self._address)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        except OSError as error:
            sock.close()
            raise TransportError(
                f"cannot join group {group} on {self._address} (UDP {port}): {error.strerror};"
                " does the data interface do multicast?"
            ) from error
        return sock


_NO_PREFIX: mmsg.U8 = np.zeros((1, 0), np.uint8)


def fill_headers(key: ChunkKey, segments: int, first: int, count: int) -> mmsg.U8:
    """Control headers of FILL for segments [first, first + count), shape (count, 40)."""
    packed = b"".join(
        Control(Op.FILL, key, segments, segment=segment).encode() for segment in range(first, first + count)
    )
    return np.frombuffer(packed, np.uint8).reshape(count, -1)


def _bound_udp(address: str, port: int, key: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise TransportError(
                f"UDP {address}:{port} ({key}) is in use: is another agent running on this node?"
            ) from error
        raise TransportError(f"cannot bind UDP {address}:{port} ({key}): {error.strerror}") from error
    return sock


def ask_interface(name: str, request: int) -> bytes:
    """Answer of one of the SIOCGIF... requests of netdevice(7): what follows the name, 24 bytes. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))[16:40]


def interface_address(config: DataConfig) -> str:
    """The address on the data network: the configured one, or the interface's first. Raises TransportError."""
    if not config.interface:
        return config.address
    try:
        found = socket.inet_ntoa(ask_interface(config.interface, _SIOCGIFADDR)[4:8])
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise TransportError(
                f"there is no interface {config.interface}; set data.interface to one of {_interfaces()}"
            ) from error
        if config.address:
            return config.address
        raise TransportError(
            f"interface {config.interface} has no IPv4 address: {error.strerror}; give it one"
        ) from error
    return config.address or found


def _interfaces() -> str:
    return ", ".join(name for _, name in socket.if_nameindex())


def _mac(config: DataConfig) -> bytes:
    """Hardware address of the data interface; zeros where there is none to speak of (loopback)."""
    if not config.interface:
        return bytes(6)
    return ask_interface(config.interface, _SIOCGIFHWADDR)[2:8]
