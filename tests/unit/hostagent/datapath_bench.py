"""The data path in C for a test: sockets of somebody else, an intake with its own and a pool, and who hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP

from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport import socket_options
from hostagent.transport.base import ChunkPlace, TransportCounters
from hostagent.transport.host import Host
from hostagent.transport.native_receiver import NativeIntake
from hostagent.transport.native_sender import NativeSender
from kvchunk.ids import ChunkKey
from kvproto.events import SegmentsReceived
from kvproto.ids import parse_address
from kvproto.wire.data import QPN_NUMBERED, ChunkFraming, Fabric

KEY = ChunkKey(b"k" * 16)
OTHER = ChunkKey(b"o" * 16)
SEGMENT = 256
DSCP = 0x15
FABRIC = Fabric(segment_bytes=SEGMENT, from_switch_dscp=DSCP)
NUMBERED = replace(FABRIC, source_qpn=QPN_NUMBERED)
"""As datagrams have it that left by one buffer."""
OWN, SOURCE, TARGET = "127.91.0.1", "127.91.0.2", "127.91.0.3"
POOL_BYTES = 1 << 20
SIZE = 20 * SEGMENT + 17
SEGMENTS = 21
DEADLINE_S = 20
FAST_BYTES_S = 10**9
SO_NO_CHECK = 11
UDP_SEGMENT = 103


def body(size_bytes: int = SIZE, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def udp_socket(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.bind((address, 0))
    return sock


class Sink:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.placed: list[SegmentsReceived] = []
        self.unexpected: list[SegmentsReceived] = []
        self.patience = (0.001, 16)

    def casts_placed(self, arrivals: Sequence[SegmentsReceived]) -> None:
        self.placed += arrivals

    def casts_unexpected(self, arrivals: Sequence[SegmentsReceived]) -> None:
        self.unexpected += arrivals

    def cast_patience_s(self) -> float:
        return self.patience[0]

    def cast_patience_segments(self) -> int:
        return self.patience[1]

    def segments(self, key: ChunkKey = KEY) -> list[int]:
        return [segment for one in self.placed if one.key == key for segment in one.segments.tolist()]


class WatchedLibrary:
    """The data path; shows the receiver that an intake makes with it, and the patience that it is told."""

    def __init__(self, real: ctypes.CDLL) -> None:
        self.receiver: int | None = None
        self.patience: tuple[int, int] | None = None
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def dp_receiver_new(self, config: object, queue: object) -> int | None:
        self.receiver = self._real.dp_receiver_new(config, queue)
        return self.receiver

    def dp_receiver_set_patience(self, receiver: int, patience_ns: int, segments: int) -> None:
        self.patience = patience_ns, segments
        self._real.dp_receiver_set_patience(receiver, patience_ns, segments)


def host_of(
    address: str,
    loop: asyncio.AbstractEventLoop,
    memory: PoolMemory,
    sink: Sink,
    counters: TransportCounters,
    native: Any,
) -> Host:
    return Host(
        config=DataConfig(address=address),
        memory=memory,
        loop=loop,
        sink=sink,  # type: ignore[arg-type]
        counters=counters,
        address=address,
        own=parse_address(address),
        read_address=address,
        native=native,
    )


def sender_of(
    sock: socket.socket, memory: PoolMemory, rate_bytes_s: int = FAST_BYTES_S, threads: int = 1
) -> NativeSender:
    host = host_of(SOURCE, asyncio.get_running_loop(), memory, Sink(), TransportCounters(), datapath())
    return NativeSender(host, sock, rate_bytes_s, threads)


class Bench:
    """A socket of somebody else, and an intake with its socket and pool."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threaded: bool = False, fabric: Fabric = FABRIC) -> None:
        self.loop, self.fabric = loop, fabric
        self.sink, self.counters = Sink(), TransportCounters()
        self.memory = PoolMemory(POOL_BYTES, prefault=False)
        self.peer, self.own_peer, self.receiver = udp_socket(SOURCE), udp_socket(OWN), udp_socket(TARGET)
        socket_options.ask_buffer(self.receiver, receive_bytes=4 << 20)
        self.receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self.receiver.setsockopt(socket.SOL_SOCKET, socket_options.SO_RXQ_OVFL, 1)
        socket_options.take_buffers(self.receiver)
        self.library = WatchedLibrary(datapath())
        host = host_of(OWN, loop, self.memory, self.sink, self.counters, self.library)
        self.intake = NativeIntake(host, self.receiver, fabric, threaded=threaded)
        self.framing = self.framing_of(KEY, body())

    def framing_of(
        self, key: ChunkKey, content: bytes, peer: socket.socket | None = None, fabric: Fabric | None = None
    ) -> ChunkFraming:
        address, port = (peer or self.peer).getsockname()
        return ChunkFraming(key, memoryview(content), fabric or self.fabric, parse_address(address), port)

    def send(self, datagram: bytes, peer: socket.socket | None = None, dscp: int = 0) -> None:
        sock = peer or self.peer
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        sock.sendto(datagram, self.receiver.getsockname())

    def send_joined(self, datagrams: Sequence[bytes], peer: socket.socket | None = None, dscp: int = 0) -> None:
        """By one buffer. All but the last have one length, and the last has no more."""
        sock = peer or self.peer
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        size = (socket.IPPROTO_UDP, UDP_SEGMENT, len(datagrams[0]).to_bytes(2, "little"))
        sock.sendmsg(datagrams, [size], 0, self.receiver.getsockname())

    def expect(
        self, key: ChunkKey = KEY, size_bytes: int = SIZE, offset: int = 4096, here: Sequence[int] = ()
    ) -> npt.NDArray[np.bool_]:
        missing = np.ones(-(-size_bytes // SEGMENT), np.bool_)
        missing[list(here)] = False
        self.intake.expect(ChunkPlace(key, offset, size_bytes), missing)
        return missing

    def at(self, offset: int = 4096, size_bytes: int = SIZE) -> bytes:
        return bytes(self.memory.view(offset, size_bytes))

    def close(self) -> None:
        self.intake.close()
        self.memory.close()
        for sock in (self.peer, self.own_peer, self.receiver):
            sock.close()


@contextlib.contextmanager
def bench(**options: Any) -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    made = Bench(loop, **options)
    try:
        yield made
    finally:
        made.close()
        loop.close()


def icrc_of_scapy(datagram: bytes, port: int, identification: int) -> bytes:
    group = ".".join(map(str, FABRIC.group.to_bytes(4, "big")))
    packet = IP(src=SOURCE, dst=group, flags="DF", id=identification) / UDP(sport=port, dport=4791, chksum=0)
    packet = IP(bytes(packet / BTH(datagram)))
    icrc: bytes = packet[BTH].compute_icrc(bytes(packet[UDP])[8:-4])
    return icrc
