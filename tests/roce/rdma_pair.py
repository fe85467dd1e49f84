"""What tests inside a guest share: two nodes, what their NICs have, the cable between them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from hostagent.transport.read_protocol import QueuePairEnd
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.connections import PoolAccess
from hostagent.transport.verbs.device import RdmaPort, VerbsError
from hostagent.transport.verbs.queues import CompletionQueue, Completions, QueuePair
from kvchunk.ids import ChunkKey
from kvproto.ids import format_address
from kvproto.wire.data import Fabric
from tests.contracts.transport import harness

KEY = ChunkKey(bytes(range(16)))
SEGMENT = 1024
DEADLINE_S = 120.0
ADDRESSES: tuple[str, ...] = harness.RDMA_ADDRESSES
ROCE_PORT = 4791


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def play(scenario: Callable[..., Awaitable[None]], fabric: Fabric | None = None, **options: Any) -> None:
    async def main() -> None:
        network = await harness.verbs_network(fabric or Fabric(segment_bytes=SEGMENT), **options)
        try:
            await scenario(*network.nodes)
        finally:
            await network.close()

    asyncio.run(main())


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@dataclasses.dataclass(frozen=True)
class MadePair:
    """A queue pair that a transport has."""

    pair: QueuePair
    address: str
    """Of the node whose it is."""
    kind: int
    completions: CompletionQueue
    """Where its sends are reported."""
    receives: bool
    """Whether it is for receiving casts."""


class Nics:
    """What the nodes' transports have of their NICs, so that a test can break it from below."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive: list[MadePair] = []
        self.accesses: list[PoolAccess] = []
        """Of the peers that connected, in that order."""
        self.broken: CompletionQueue | None = None
        """It reports nothing any more."""
        makes, destroy = QueuePair.__init__, QueuePair.destroy
        connect, poll = PoolAccess.connect, CompletionQueue.poll

        def made(pair: QueuePair, port: RdmaPort, kind: int, send: Any, receive: Any, domain: Any = None) -> None:
            makes(pair, port, kind, send, receive, domain)
            address = socket.inet_ntoa(port.facts.gid[-4:])
            self.alive.append(MadePair(pair, address, kind, send[0], kind == abi.QPT_UD and receive[1] > 1))

        def destroyed(pair: QueuePair) -> None:
            destroy(pair)
            self.alive = [one for one in self.alive if one.pair is not pair]

        def connected(access: PoolAccess, peer: QueuePairEnd) -> QueuePairEnd | None:
            self.accesses.append(access)
            return connect(access, peer)

        def polled(queue: CompletionQueue) -> Completions:
            if queue is self.broken:
                raise VerbsError("ibv_poll_cq failed: the completion queue is broken")
            return poll(queue)

        monkeypatch.setattr(QueuePair, "__init__", made)
        monkeypatch.setattr(QueuePair, "destroy", destroyed)
        monkeypatch.setattr(PoolAccess, "connect", connected)
        monkeypatch.setattr(CompletionQueue, "poll", polled)

    def of_reads(self) -> list[MadePair]:
        """Both ends of reads."""
        return [one for one in self.alive if one.kind == abi.QPT_RC]

    def of_casts(self, node: harness.Node | None = None, *, receives: bool | None = None) -> list[MadePair]:
        """Those of a node, those that receive or those that send; all, when neither is named."""
        return [
            one
            for one in self.alive
            if one.kind == abi.QPT_UD
            and (node is None or one.address == format_address(node.facts.address))
            and (receives is None or one.receives == receives)
        ]


@contextlib.contextmanager
def wire(interface: str) -> Iterator[socket.socket]:
    """What passes a network card, as it is."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as sock:
        sock.bind((interface, 0))
        sock.setblocking(False)
        yield sock


def udp_header(source: int, destination: int, source_port: int, port: int, payload_bytes: int) -> bytes:
    """IPv4 and UDP headers as kvcast's datagrams have them: identification 0, DF, UDP checksum 0. 28 bytes."""
    ipv4, udp = struct.Struct("!BBHHHBBHII"), struct.Struct("!HHHH")
    udp_bytes = udp.size + payload_bytes
    fields = (0x45, 0, ipv4.size + udp_bytes, 0, 0x4000, 64, 17)
    total = sum(struct.unpack("!10H", ipv4.pack(*fields, 0, source, destination)))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return ipv4.pack(*fields, ~total & 0xFFFF, source, destination) + udp.pack(source_port, port, udp_bytes, 0)


def frame_of(datagram: bytes, source: int, port: int, fabric: Fabric) -> bytes:
    """The Ethernet frame in which a sockets agent's datagram travels."""
    group_mac = b"\x01\x00\x5e" + (fabric.group & 0x7F_FFFF).to_bytes(3, "big")
    header = udp_header(source, fabric.group, port, ROCE_PORT, len(datagram))
    return group_mac + bytes((2, 0, 0, 0, 0, 9)) + b"\x08\x00" + header + datagram
