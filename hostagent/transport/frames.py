"""The transport without privileges: whole Ethernet frames over a UDP port of an embedded switch, one per datagram.

For testbeds that are not allowed to make network namespaces. Casts and control go through the switch, in the same bytes
as on a real network: this module adds only what a kernel does there (ARP, IPv4 and UDP headers, address resolution).
Reliable reads bypass the switch, over plain TCP on `read_address`, usually loopback.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections import deque

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.config import DataConfig, FramesConfig
from hostagent.pool.memory import PoolMemory
from hostagent.transport import mmsg
from hostagent.transport.base import (
    ChunkPlace,
    ControlArrival,
    ReadHandle,
    ReadRequest,
    TransportCounters,
    TransportError,
    TransportFacts,
    TransportSink,
)
from hostagent.transport.casts import BatchPoller, CastSender, FramingCache, control_poll_s_max, pass_on, row_bytes
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_server import ReadServer
from hostagent.transport.read_tokens import TokenBook
from hostagent.transport.sockets import fill_headers
from kvchunk.ids import ChunkKey
from kvproto.errors import WireError
from kvproto.ids import Address, parse_address
from kvproto.wire import layouts
from kvproto.wire.control import Control, Flag, decode_control
from kvproto.wire.data import Fabric

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBHII")
_UDP = struct.Struct("!HHHH")
_ARP = struct.Struct("!HHBBH6sI6sI")
_BROADCAST = b"\xff" * 6
_HEADERS_BYTES = _ETHERNET.size + _IPV4.size + _UDP.size
_DONT_FRAGMENT = 0x4000
_TTL = 64
_ARP_PENDING_MAX = 64
"""Control datagrams that may wait for an address to be resolved, per address; older ones are dropped first."""
_ARP_AGAIN_S = 0.2


class FramesTransport:
    """See the module's docstring and the contract in `base`."""

    def __init__(
        self, config: DataConfig, frames: FramesConfig, memory: PoolMemory, tokens: TokenBook | None = None
    ) -> None:
        self._tokens = tokens
        self._config = config
        self._frames = frames
        self._memory = memory
        self._own = parse_address(config.address)
        self.counters = TransportCounters()
        self._open = False
        self._sock: socket.socket | None = None

    async def start(self, sink: TransportSink, fabric: Fabric) -> TransportFacts:
        """Bind and listen. Raises TransportError."""
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._neighbours: dict[Address, bytes] = {}
        self._pending: dict[Address, deque[bytes]] = {}
        self._waiting_fills: dict[Address, list[tuple[ChunkPlace, int, int, bool]]] = {}
        self._resolving: dict[Address, asyncio.TimerHandle] = {}
        self._sock = sock = self._make_socket()
        try:
            self._framings = FramingCache(self._memory, self._own, self._config.cast_port)
            self._sender = CastSender(sock, self._loop)
            self._reads = ReadServer(self._memory, sink, self.counters, tokens=self._tokens)
            host, port = self._reads.listen(self._frames.read_address, self._config.read_port)
        except BaseException:
            sock.close()
            raise
        self._client = ReadClient(
            self._memory,
            self.counters,
            stall_timeout_s=limits.READ_STALL_TIMEOUT_S,
            tokens=self._tokens,
            own_address=self._frames.read_address,
        )
        self._use(fabric)
        self._open = True
        granted = mmsg.granted_receive_bytes(sock)
        return TransportFacts(self._own, self._frames.mac, f"{host}:{port}", granted)

    async def close(self) -> None:
        """End everything."""
        if not self._open or self._sock is None:
            return
        self._open = False
        self._poller.close()
        self._sender.close()
        self._reads.close()
        self._client.close()
        for timer in self._resolving.values():
            timer.cancel()
        self._sock.close()

    def use_fabric(self, fabric: Fabric) -> None:
        """See `Transport.use_fabric`."""
        if fabric != self._fabric:
            self._poller.close()
            self._framings.clear()
            self._use(fabric)

    # ------------------------------------------------------------------ sending

    def send_control(self, message: Control, destination: Address) -> None:
        """One control datagram, once its addressee's MAC is known."""
        port = self._config.control_port
        packet = udp_packet(self._own, destination, port, port, message.encode())
        self.counters.control_sent += 1
        mac = self._neighbours.get(destination)
        if mac is not None:
            self._send_frame(mac, layouts.ETHERTYPE_IPV4, packet)
            return
        waiting = self._pending.setdefault(destination, deque(maxlen=_ARP_PENDING_MAX))
        waiting.append(packet)
        self._resolve(destination)

    def cast(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """Send segments to the group."""
        prepared = self._framings.of(chunk, self._fabric)
        self.counters.cast_packets_sent += count
        sink, switch = self._sink, self._frames.switch
        self._sender.add(prepared, first, count, switch, self._cast_prefix, sink.segments_sent, sink.segments_failed)

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """All casts are handed to the sink."""

    def forget(self, key: ChunkKey) -> None:
        """As `expect`."""

    def settle(self) -> None:
        """Only the sink writes cast segments."""

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address, *, cast_too: bool = False) -> None:
        """Send segments to the switch's memory, once its MAC is known."""
        mac = self._neighbours.get(pool)
        if mac is None:
            self._waiting_fills.setdefault(pool, []).append((chunk, first, count, cast_too))
            self._resolve(pool)
            return
        sent, failed, flags = self._fill_sent, self._fill_failed, Flag.NONE
        if cast_too:
            sent, failed, flags = self._fill_cast, self._sink.segments_failed, Flag.CAST_TOO
        prepared = self._framings.of(chunk, self._fabric)
        controls = fill_headers(chunk.key, prepared.framing.segments, first, count, flags)
        size = controls.shape[1] + self._fabric.datagram_bytes
        ports = (self._config.cast_port, self._config.control_port)
        head = _ETHERNET.pack(mac, self._frames.mac, layouts.ETHERTYPE_IPV4) + udp_header(self._own, pool, *ports, size)
        prefixes = np.empty((count, len(head) + controls.shape[1]), np.uint8)
        prefixes[:, : len(head)] = np.frombuffer(head, np.uint8)
        prefixes[:, len(head) :] = controls
        self._sender.add(prepared, first, count, self._frames.switch, prefixes, sent, failed)

    def _fill_sent(self, key: ChunkKey, count: int) -> None:
        self.counters.fill_packets_sent += count
        self._sink.fill_sent(key, count)

    def _fill_cast(self, key: ChunkKey, count: int) -> None:
        self.counters.fill_packets_cast += count
        self._sink.segments_sent(key, count)

    def _fill_failed(self, key: ChunkKey, count: int) -> None:
        self.counters.fill_packets_failed += count
        self._sink.fill_sent(key, count)

    def drain_receive(self) -> None:
        """See `Transport.drain_receive`."""
        self._poller.drain_receive()

    def data_socket(self) -> None:
        """Its socket carries frames."""

    # ------------------------------------------------------------------ reading

    def read(self, request: ReadRequest) -> ReadHandle:
        """A range request over TCP."""
        return self._client.read(request)

    # ------------------------------------------------------------------ receiving

    def _use(self, fabric: Fabric) -> None:
        assert self._sock is not None
        self._fabric = fabric
        port = self._config.cast_port
        group_mac = b"\x01\x00\x5e" + (fabric.group & 0x7F_FFFF).to_bytes(3, "big")
        head = _ETHERNET.pack(group_mac, self._frames.mac, layouts.ETHERTYPE_IPV4)
        head += udp_header(self._own, fabric.group, port, port, fabric.datagram_bytes)
        self._cast_prefix = np.frombuffer(head, np.uint8).reshape(1, -1)
        rows = row_bytes(max(fabric.datagram_bytes, 2048))
        self._receiver = mmsg.DatagramReceiver(self._sock, limits.CAST_BATCH_PACKETS, rows, _HEADERS_BYTES)
        self._poller = BatchPoller(self._receiver, self._sock.fileno(), self._loop, self._take, control_poll_s_max)

    def _take(self, count: int) -> None:
        """Frames by what they are: casts all at once, the rest one by one."""
        heads, lengths = self._receiver.prefixes[:count], self._receiver.lengths(count).astype(np.int64)
        is_udp = self._is_udp(heads, lengths)
        to_group = heads[:, 30:34].view(">u4")[:, 0] == self._fabric.group
        is_cast = is_udp & to_group & (heads[:, 36:38].view(">u2")[:, 0] == self._config.cast_port)
        if is_cast.any():
            self._take_casts(np.flatnonzero(is_cast), heads, count)
        arrivals: list[ControlArrival] = []
        for index in np.flatnonzero(~is_cast).tolist():
            head, length = heads[index].tobytes(), int(lengths[index])
            rest = self._receiver.rows[index, : max(0, length - _HEADERS_BYTES)].tobytes()
            if is_udp[index]:
                self._take_udp(head, rest, arrivals)
            elif length >= _ETHERNET.size + _ARP.size and head[12:14] == b"\x08\x06":
                self._take_arp((head + rest)[_ETHERNET.size :])
            else:
                self.counters.drop("frame_other")
        self.counters.control_received += len(arrivals)
        if arrivals and self._open:
            self._sink.controls_received(arrivals)

    def _is_udp(self, heads: mmsg.U8, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which frames are whole, unfragmented UDP over IPv4 with a right header checksum."""
        words = heads[:, 14:34].view(">u2").astype(np.uint32)
        total = words.sum(axis=1)
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        ip_bytes = words[:, 1].astype(np.int64)
        udp_bytes = heads[:, 38:40].view(">u2")[:, 0].astype(np.int64)
        good: npt.NDArray[np.bool_] = (
            (lengths >= _HEADERS_BYTES)
            & (heads[:, 12:14].view(">u2")[:, 0] == layouts.ETHERTYPE_IPV4)
            & (heads[:, 14] == 0x45)
            & (heads[:, 23] == layouts.IP_PROTOCOL_UDP)
            & ((words[:, 3] & 0x3FFF) == 0)
            & (total == 0xFFFF)
            & (ip_bytes + _ETHERNET.size <= lengths)
            & (udp_bytes + _IPV4.size == ip_bytes)
        )
        return good

    def _take_casts(self, chosen: npt.NDArray[np.intp], heads: mmsg.U8, count: int) -> None:
        sources = heads[chosen, 26:30].copy().view(">u4")[:, 0].astype(np.uint32)
        from_switch = (heads[chosen, 15] >> 2) == self._fabric.from_switch_dscp
        # What this node filled into the switch comes back with its own address; its own casts do not.
        foreign = (sources != self._own) | from_switch
        self.counters.drop("own_cast", int((~foreign).sum()))
        chosen, sources, from_switch = chosen[foreign], sources[foreign], from_switch[foreign]
        if not len(chosen):
            return
        heads = heads[chosen]
        rows = self._receiver.rows[:count] if len(chosen) == count else self._receiver.rows[chosen]
        lengths = heads[:, 38:40].copy().view(">u2")[:, 0].astype(np.int64) - _UDP.size
        ports = heads[:, 34:36].copy().view(">u2")[:, 0].astype(np.int64)
        self.counters.cast_batches_received += 1
        pass_on(rows, lengths, sources, ports, from_switch, self._fabric, self._sink, self.counters)

    def _take_udp(self, head: bytes, rest: bytes, arrivals: list[ControlArrival]) -> None:
        _, _, _, _, _, _, _, _, source, destination = _IPV4.unpack_from(head, _ETHERNET.size)
        _, port, size, _ = _UDP.unpack_from(head, _ETHERNET.size + _IPV4.size)
        if destination not in (self._own, self._fabric.group) or port != self._config.control_port:
            self.counters.drop("frame_not_for_us")
            return
        if source == self._own:
            self.counters.drop("own_control")
            return
        try:
            message = decode_control(rest[: size - _UDP.size])
        except WireError as error:
            self.counters.drop(f"control_{error.reason.name.lower()}")
            return
        arrivals.append(ControlArrival(message, Address(source)))

    # ------------------------------------------------------------------ address resolution

    def _take_arp(self, packet: bytes) -> None:
        hardware, protocol, hardware_size, protocol_size, operation, mac, sender, _, target = _ARP.unpack_from(packet)
        if (hardware, protocol, hardware_size, protocol_size) != (1, layouts.ETHERTYPE_IPV4, 6, 4):
            self.counters.drop("arp_malformed")
            return
        if (
            sender
            and mac[0] & 1 == 0
            and (sender in self._resolving or sender in self._neighbours or target == self._own)
        ):
            self._learn(Address(sender), mac)
        if operation == 1 and target == self._own:
            answer = _ARP.pack(1, layouts.ETHERTYPE_IPV4, 6, 4, 2, self._frames.mac, self._own, mac, sender)
            self._send_frame(mac, layouts.ETHERTYPE_ARP, answer)

    def _learn(self, address: Address, mac: bytes) -> None:
        self._neighbours[address] = mac
        timer = self._resolving.pop(address, None)
        if timer is not None:
            timer.cancel()
        for packet in self._pending.pop(address, ()):
            self._send_frame(mac, layouts.ETHERTYPE_IPV4, packet)
        for chunk, first, count, cast_too in self._waiting_fills.pop(address, ()):
            self.fill(chunk, first, count, address, cast_too=cast_too)

    def _resolve(self, address: Address) -> None:
        if address not in self._resolving:
            self._ask_for(address)

    def _ask_for(self, address: Address) -> None:
        if address not in self._pending and address not in self._waiting_fills:
            self._resolving.pop(address, None)
            return
        request = _ARP.pack(1, layouts.ETHERTYPE_IPV4, 6, 4, 1, self._frames.mac, self._own, bytes(6), address)
        self._send_frame(_BROADCAST, layouts.ETHERTYPE_ARP, request)
        self._resolving[address] = self._loop.call_later(_ARP_AGAIN_S, self._not_resolved, address)

    def _not_resolved(self, address: Address) -> None:
        """Nobody answered: waiting datagrams are lost, as on any network; segments of fills are reported as done."""
        self._resolving.pop(address, None)
        self.counters.drop("arp_unanswered", len(self._pending.pop(address, ())))
        for chunk, _, count, cast_too in self._waiting_fills.pop(address, ()):
            lost = self._sink.segments_failed if cast_too else self._sink.fill_sent
            lost(chunk.key, count)

    def _send_frame(self, mac: bytes, ether_type: int, packet: bytes) -> None:
        assert self._sock is not None
        try:
            self._sock.sendto(_ETHERNET.pack(mac, self._frames.mac, ether_type) + packet, self._frames.switch)
        except OSError as error:
            self.counters.drop(f"control_send_{errno.errorcode.get(error.errno or 0, 'error').lower()}")

    def _make_socket(self) -> socket.socket:
        host, port = self._frames.local
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.bind((host, port))
            # We listen only to the switch.
            sock.connect(self._frames.switch)
        except OSError as error:
            sock.close()
            raise TransportError(
                f"cannot use UDP {host}:{port} (data.frames.local): {error.strerror}; set it to a free port"
            ) from error
        mmsg.ask_buffer(sock, receive_bytes=self._config.receive_buffer_bytes, send_bytes=limits.CAST_SEND_BUFFER_BYTES)
        return sock


def udp_header(source: Address, destination: Address, source_port: int, port: int, payload_bytes: int) -> bytes:
    """IPv4 and UDP headers as kvcast's datagrams have them: identification 0, DF, UDP checksum 0. 28 bytes."""
    udp_bytes = _UDP.size + payload_bytes
    fields = (0x45, 0, _IPV4.size + udp_bytes, 0, _DONT_FRAGMENT, _TTL, layouts.IP_PROTOCOL_UDP)
    total = sum(struct.unpack("!10H", _IPV4.pack(*fields, 0, source, destination)))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return _IPV4.pack(*fields, ~total & 0xFFFF, source, destination) + _UDP.pack(source_port, port, udp_bytes, 0)


def udp_packet(source: Address, destination: Address, source_port: int, port: int, payload: bytes) -> bytes:
    """A whole IPv4 packet."""
    return udp_header(source, destination, source_port, port, len(payload)) + payload
