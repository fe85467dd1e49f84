"""The default transport: UDP casts and control, TCP reliable reads. No privileges, any Linux.

Casts are sent from (address, 4791) and received on (group, 4791). They leave as the wire format wants them without raw
sockets: from an unconnected socket with DF set the datagrams of one buffer have the IP identifications 0, 1, 2 and so
on, and one bound socket keeps the source port, which the ICRC covers, the same. The kernel fills UDP checksums in, or
the NIC does: without them it would take datagrams one by one only, which costs five times as much.

Casts where the data network has no IPv4: there are none, and all is read reliably.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.transport import socket_options
from hostagent.transport.base import ChunkPlace
from hostagent.transport.endpoints import endpoint_of
from hostagent.transport.expected_casts import ExpectedCasts
from hostagent.transport.host import Host, HostTransport, Parts, bound_udp, group_socket, leave_by
from hostagent.transport.link_rate import link_rate_bit_s
from hostagent.transport.native_pulls import NativePulls
from hostagent.transport.native_reads import NativeReads
from hostagent.transport.native_receiver import NativeIntake
from hostagent.transport.native_sender import Group, NativeSender, SegmentRun
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_server import ReadServer
from kvchunk.ids import ChunkKey
from kvproto.fanout import Fanout
from kvproto.ids import Address, format_address
from kvproto.wire.control import Flag
from kvproto.wire.data import QPN_NUMBERED, Fabric
from kvproto.wire.icrc import destination_difference
from kvproto.wire.layouts import UDP_PORT_ROCE

_TRUESIZE_FACTOR = 2
"""The kernel charges a socket for a datagram's buffers, not its bytes: up to twice as much for a 4 KiB segment."""


class SocketsTransport(HostTransport):
    """See the module's docstring and the contract in `base`."""

    def _open_parts(self, host: Host) -> Parts:
        return socket_parts(host)

    def _open_rail(self, host: Host) -> Parts:
        return rail_parts(host)


def casting_threads(link_rate_bytes_s: int, cores: int) -> int:
    """As many as the link wants; engines and reads need the other cores."""
    wanted = -(-link_rate_bytes_s // limits.CAST_THREAD_BYTES_S)
    return max(1, min(wanted, cores // limits.CAST_THREAD_CORES, limits.CAST_THREADS_MAX))


def buffers_refused(address: str, fabric: Fabric) -> OSError | None:
    """Why the kernel would not cut buffers of casts from this address; None: it does. Tried, with two datagrams that it
    drops because their TTL is 0. Raises TransportError where nothing can be sent from that address."""
    size = fabric.datagram_bytes.to_bytes(2, sys.byteorder)
    with bound_udp(address, 0, "data.address") as probe:
        _set_multicast(probe, ttl=0)
        probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        try:
            probe.sendmsg(
                [bytes(2 * fabric.datagram_bytes)],
                [(socket.IPPROTO_UDP, socket_options.UDP_SEGMENT, size)],
                0,
                (format_address(fabric.group), UDP_PORT_ROCE),
            )
        except OSError as error:
            return error
    return None


def _set_multicast(sock: socket.socket, ttl: int) -> None:
    sock.setsockopt(socket.IPPROTO_IP, socket_options.IP_MTU_DISCOVER, socket_options.IP_PMTUDISC_DO)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)


class SegmentSocket:
    """Sends segments as whole datagrams, with our own headers and ICRCs, to the group or into the switch's memory."""

    def __init__(self, host: Host, port: int) -> None:
        """`port`: their source port; 0: any. Raises TransportError."""
        self._host = host
        self.socket = sock = bound_udp(host.address, port, "data.cast_port", host.config.interface)
        # Beside it, one may take what comes to several groups at this port. Not before: that it is free has to show.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_multicast(sock, limits.MULTICAST_TTL)
        self.leave_by_interface(host)
        socket_options.ask_buffer(sock, send_bytes=limits.CAST_SEND_BUFFER_BYTES)
        self._rate_bytes_s = rate = link_rate_bit_s(host.config) // 8
        self._sender = NativeSender(host, sock, rate, casting_threads(rate, len(os.sched_getaffinity(0))))

    def leave_by_interface(self, host: Host) -> None:
        """Send by the data interface, as it is now. Raises TransportError, OSError."""
        leave_by(self.socket, host.address, host.config.interface)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host.address))

    def use_fabric(self, fabric: Fabric) -> None:
        """Forget everything prepared for another fabric."""
        assert fabric.source_qpn != QPN_NUMBERED, "readers know by it which IP identification is 0"
        self._sender.fabric_changed()
        self._fabric = fabric
        if fabric.fanout.keeps:
            # NOTICEs leave by the same interface, and wait behind what is in this buffer.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.keeper_buffer_bytes(self._rate_bytes_s))

    def cast(self, chunk: ChunkPlace, first: int, count: int, blocks: Sequence[int] = ()) -> None:
        """See `CastPart.cast`."""
        fabric, sink = self._fabric, self._host.sink
        run = SegmentRun(chunk, fabric, first, count)
        to = [self._group(block) for block in blocks] if blocks else [(fabric.group, 0)]
        self._sender.send(run, to, self._host.config.cast_port, sink.segments_sent, sink.segments_failed)
        self._host.counters.cast_packets_sent += count * len(to)

    def _group(self, block: int) -> Group:
        fabric = self._fabric
        address = fabric.group_of(block)
        return address, destination_difference(address ^ fabric.group, fabric.datagram_bytes)

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address, *, cast_too: bool = False) -> None:
        """See `CastPart.fill`. The switch keeps the port that they come from."""
        sent, failed, flags = self._fill_sent, self._fill_failed, Flag.NONE
        if cast_too:
            sent, failed, flags = self._fill_cast, self._host.sink.segments_failed, Flag.CAST_TOO
        run = SegmentRun(chunk, self._fabric, first, count, fill=flags)
        self._sender.send(run, [(pool, 0)], self._host.config.control_port, sent, failed)

    def _fill_sent(self, key: ChunkKey, count: int) -> None:
        self._host.counters.fill_packets_sent += count
        self._host.sink.fill_sent(key, count)

    def _fill_cast(self, key: ChunkKey, count: int) -> None:
        self._host.counters.fill_packets_cast += count
        self._host.sink.segments_sent(key, count)

    def _fill_failed(self, key: ChunkKey, count: int) -> None:
        self._host.counters.fill_packets_failed += count
        self._host.sink.fill_sent(key, count)

    def give_up(self) -> None:
        """See `NativeSender.give_up`."""
        self._sender.give_up()

    def close(self) -> None:
        """Send and report nothing more, except segments that were given up."""
        self._sender.close()
        self.socket.close()


class SocketCasts(ExpectedCasts):
    """Casts through UDP sockets."""

    def __init__(self, host: Host) -> None:
        """Raises TransportError."""
        super().__init__()
        self._send_by(host, SegmentSocket(host, host.config.cast_port))
        self._group_socket: socket.socket | None = None
        self._intake: NativeIntake | None = None
        self._segment_bytes = 0

    def bind_anew(self, host: Host) -> None:
        """The data interface or its address is another one; `use_fabric` comes next. Raises TransportError, OSError."""
        if host.address == self._host.address:
            self._outgoing.leave_by_interface(host)
            return
        self._leave()  # with several groups it has the port at every address
        fresh = SegmentSocket(host, host.config.cast_port)
        self._outgoing.give_up()
        self._outgoing.close()
        self._send_by(host, fresh)

    def _send_by(self, host: Host, out: SegmentSocket) -> None:
        self._host, self._outgoing = host, out
        self.cast, self.fill, self.give_up = out.cast, out.fill, out.give_up

    def use_fabric(self, fabric: Fabric) -> int:
        """See `CastPart.use_fabric`."""
        host = self._host
        self._leave()
        self._outgoing.use_fabric(fabric)
        if fabric.segment_bytes != self._segment_bytes:
            self._expected.clear()
            self._segment_bytes = fabric.segment_bytes
        self._group_socket = casts = group_socket(
            host.address, tuple(map(format_address, fabric.groups)), host.config.cast_port
        )
        casts.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        if fabric.fanout is Fanout.MULTICAST:
            casts.setsockopt(socket.IPPROTO_IP, socket_options.IP_PKTINFO, 1)
        casts.setsockopt(socket.SOL_SOCKET, socket_options.SO_RXQ_OVFL, 1)
        socket_options.take_buffers(casts)
        socket_options.ask_buffer(casts, receive_bytes=host.config.receive_buffer_bytes)
        self._intake = NativeIntake(host, casts, fabric)
        for chunk, missing in self._expected.values():
            self._intake.expect(chunk, missing)
        return 2 * socket_options.granted_receive_bytes(casts) // _TRUESIZE_FACTOR

    def _taker(self) -> NativeIntake | None:
        return self._intake

    def data_socket(self) -> socket.socket | None:
        """See `CastPart.data_socket`."""
        return self._outgoing.socket

    def close(self) -> None:
        """End both directions."""
        self._outgoing.close()
        self._leave()

    def _leave(self) -> None:
        if self._intake is not None:
            self._intake.close()
            self._intake = None
        if self._group_socket is not None:
            self._group_socket.close()
            self._group_socket = None


def read_client(host: Host) -> ReadClient:
    """Reads over TCP, from this host's address on the data network."""
    return ReadClient(
        host.memory,
        host.counters,
        NativePulls(host.native, host.loop),
        stall_timeout_s=limits.READ_STALL_TIMEOUT_S,
        tokens=host.tokens,
        own_address=host.read_address,
    )


class TcpReads:
    """Reliable reads over TCP."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._native: NativeReads | None = None
        if host.leases is not None:
            self._native = NativeReads(host.native, host.memory, host.leases, host.loop, host.sink, host.counters)
        self._server = self._new_server(host)
        self._read_by(host)

    def show(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """See `ReadPart.show`."""
        if self._native is not None:
            self._native.show(chunk, first, count)

    def hide(self, key: ChunkKey) -> None:
        """See `ReadPart.hide`."""
        if self._native is not None:
            self._native.hide(key)
        self._server.hide(key)

    def listen(self) -> str:
        """See `ReadPart.listen`."""
        self._endpoint = endpoint_of(*self._server.listen(self._host.read_address, self._host.config.read_port))
        return self._endpoint

    def bind_anew(self, host: Host) -> str:
        """Listen at the host's address now; returns the endpoint. Reads under way fail. Raises TransportError."""
        if host.read_address != self._host.read_address:
            server = self._new_server(host)
            endpoint = endpoint_of(*server.listen(host.read_address, host.config.read_port))
            self._server.close()
            self._client.close()
            self._host, self._server, self._endpoint = host, server, endpoint
            self._read_by(host)
        return self._endpoint

    def _new_server(self, host: Host) -> ReadServer:
        return ReadServer(host.memory, host.sink, host.counters, tokens=host.tokens, native=self._native)

    def _read_by(self, host: Host) -> None:
        self._client = read_client(host)
        self.read = self._client.read

    def close(self) -> None:
        """End all connections."""
        self._server.close()
        if self._native is not None:
            self._native.close()
        self._client.close()


def socket_parts(host: Host) -> Parts:
    """Everything over sockets. Raises TransportError."""
    casts, reads = SocketCasts(host) if host.address else NoCasts(host), TcpReads(host)

    def bind_anew(now: Host) -> str:
        if isinstance(casts, SocketCasts):
            casts.bind_anew(now)
        return reads.bind_anew(now)

    return Parts(casts, reads, bind_anew=bind_anew)


def rail_parts(host: Host) -> Parts:
    """Reads over sockets alone. Raises TransportError."""
    reads = TcpReads(host)
    return Parts(NoCasts(host), reads, bind_anew=reads.bind_anew)


class NoCasts:
    """A `CastPart` that sends and receives nothing: the group, the switch's memory and their ICRC are of IPv4."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def use_fabric(self, _: Fabric) -> int:
        """See `CastPart.use_fabric`."""
        return 0

    def cast(self, chunk: ChunkPlace, _first: int, count: int, _blocks: Sequence[int] = ()) -> None:
        """Whoever asked for them reads instead."""
        self._host.loop.call_soon(self._host.sink.segments_failed, chunk.key, count)

    def fill(self, chunk: ChunkPlace, first: int, count: int, _: Address, *, cast_too: bool = False) -> None:
        """See `CastPart.fill`."""
        if cast_too:
            self.cast(chunk, first, count)
            return
        self._host.counters.fill_packets_failed += count
        self._host.loop.call_soon(self._host.sink.fill_sent, chunk.key, count)

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """Nothing comes."""

    def forget(self, key: ChunkKey) -> None:
        """Nothing is expected."""

    def settle(self) -> None:
        """Nothing is being written."""

    def drain_receive(self) -> None:
        """Nothing has come."""

    def data_socket(self) -> socket.socket | None:
        """See `CastPart.data_socket`."""
        return None

    def close(self) -> None:
        """Nothing is open."""
