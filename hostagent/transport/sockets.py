"""The default transport: UDP casts and control, TCP reliable reads. No privileges, any Linux.

Casts are sent from (address, 4791) and received on (group, 4791). They leave as the wire format wants them without raw
sockets: an unconnected socket with DF set has IP identification 0, SO_NO_CHECK leaves the UDP checksum 0, and one bound
socket keeps the source port, which the ICRC covers, the same.
"""

from __future__ import annotations

import socket

import numpy as np

from hostagent import limits
from hostagent.transport import mmsg
from hostagent.transport.base import ChunkPlace, ReadHandle, ReadRequest
from hostagent.transport.casts import CastIntake, CastSender, FramingCache
from hostagent.transport.host import Host, HostTransport, Parts, bound_udp, group_socket
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_server import ReadServer
from kvproto.ids import Address, ChunkKey, format_address
from kvproto.wire.control import Control, Op
from kvproto.wire.data import Fabric

_TRUESIZE_FACTOR = 2
"""The kernel charges a socket for a datagram's buffers, not its bytes: up to twice as much for a segment of 4 KiB."""


class SocketsTransport(HostTransport):
    """See the module's docstring and the contract in `base`."""

    def _open_parts(self, host: Host) -> Parts:
        return Parts(SocketCasts(host), TcpReads(host))


class SegmentSocket:
    """Sends segments as whole datagrams, with headers and ICRCs of ours, to the group or into the switch's memory."""

    def __init__(self, host: Host, port: int) -> None:
        """`port`: what they come from; 0: any. Raises TransportError."""
        self._host = host
        self._socket = sock = bound_udp(host.address, port, "data.cast_port")
        sock.setsockopt(socket.IPPROTO_IP, mmsg.IP_MTU_DISCOVER, mmsg.IP_PMTUDISC_DO)
        sock.setsockopt(socket.SOL_SOCKET, mmsg.SO_NO_CHECK, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, limits.MULTICAST_TTL)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host.address))
        mmsg.ask_buffer(sock, send_bytes=limits.CAST_SEND_BUFFER_BYTES)
        self._framings = FramingCache(host.memory, host.own, sock.getsockname()[1])
        self._sender = CastSender(sock, host.loop)

    def use_fabric(self, fabric: Fabric) -> None:
        """What was prepared for another fabric is void."""
        self._framings.clear()
        self._fabric = fabric

    def cast(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """See `Transport.cast`."""
        prepared = self._framings.of(chunk, self._fabric)
        destination = (format_address(self._fabric.group), self._host.config.cast_port)
        self._host.counters.cast_packets_sent += count
        sink = self._host.sink
        self._sender.add(prepared, first, count, destination, _NO_PREFIX, sink.segments_sent, sink.segments_failed)

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address) -> None:
        """See `Transport.fill`. The switch keeps the port that they come from."""
        prepared = self._framings.of(chunk, self._fabric)
        destination = (format_address(pool), self._host.config.control_port)
        headers = fill_headers(chunk.key, prepared.framing.segments, first, count)
        self._host.counters.fill_packets_sent += count
        fill_sent = self._host.sink.fill_sent
        self._sender.add(prepared, first, count, destination, headers, fill_sent, fill_sent)

    def give_up(self) -> None:
        """See `CastSender.give_up`."""
        self._sender.give_up()

    def close(self) -> None:
        """Nothing more is sent nor reported, but for what was given up."""
        self._sender.close()
        self._socket.close()


class SocketCasts:
    """Casts through UDP sockets."""

    def __init__(self, host: Host) -> None:
        """Raises TransportError."""
        self._host = host
        self._outgoing = SegmentSocket(host, host.config.cast_port)
        self._group_socket: socket.socket | None = None

    def use_fabric(self, fabric: Fabric) -> int:
        """See `CastPart.use_fabric`."""
        host = self._host
        self._leave()
        self._outgoing.use_fabric(fabric)
        self._group_socket = casts = group_socket(host.address, format_address(fabric.group), host.config.cast_port)
        casts.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        casts.setsockopt(socket.SOL_SOCKET, mmsg.SO_RXQ_OVFL, 1)
        mmsg.ask_buffer(casts, receive_bytes=host.config.receive_buffer_bytes)
        self._intake = CastIntake(casts, host.loop, host.sink, host.counters, fabric, host.own)
        return 2 * mmsg.granted_receive_bytes(casts) // _TRUESIZE_FACTOR

    def look(self) -> None:
        """See `Transport.look`."""
        if self._group_socket is not None:
            self._intake.look()

    def cast(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """See `Transport.cast`."""
        self._outgoing.cast(chunk, first, count)

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address) -> None:
        """See `Transport.fill`."""
        self._outgoing.fill(chunk, first, count, pool)

    def give_up(self) -> None:
        """See `CastSender.give_up`."""
        self._outgoing.give_up()

    def close(self) -> None:
        """End both directions."""
        self._outgoing.close()
        self._leave()

    def _leave(self) -> None:
        if self._group_socket is not None:
            self._intake.close()
            self._group_socket.close()
            self._group_socket = None


class TcpReads:
    """Reliable reads over TCP."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._server = ReadServer(host.memory, host.sink, host.counters)
        self._client = ReadClient(host.memory, host.counters, stall_timeout_s=limits.READ_STALL_TIMEOUT_S)

    def listen(self) -> str:
        """See `ReadPart.listen`."""
        address, port = self._server.listen(self._host.address, self._host.config.read_port)
        return f"{address}:{port}"

    def read(self, request: ReadRequest) -> ReadHandle:
        """A range request."""
        return self._client.read(request)

    def close(self) -> None:
        """End all connections."""
        self._server.close()
        self._client.close()


_NO_PREFIX: mmsg.U8 = np.zeros((1, 0), np.uint8)


def fill_headers(key: ChunkKey, segments: int, first: int, count: int) -> mmsg.U8:
    """Control headers of FILL for segments [first, first + count), shape (count, 40)."""
    packed = b"".join(
        Control(Op.FILL, key, segments, segment=segment).encode() for segment in range(first, first + count)
    )
    return np.frombuffer(packed, np.uint8).reshape(count, -1)
