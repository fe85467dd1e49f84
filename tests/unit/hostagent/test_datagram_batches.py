"""recvmmsg and sendmmsg against the kernel: what is taken, from whom, how long, with which marks, and what is lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from hostagent.transport.casts import BatchPoller
from hostagent.transport.mmsg import SO_RXQ_OVFL, DatagramReceiver, DatagramSender

SOURCE = int.from_bytes(socket.inet_aton("127.0.0.5"), "big")


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        sender.bind(("127.0.0.5", 0))
        receiver.bind(("127.0.0.6", 0))
        receiver.setblocking(False)
        sender.setblocking(False)
        yield sender, receiver


def test_datagrams_of_several_parts_arrive_whole(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = sockets
    batch = DatagramSender(sender, 8, 3)
    heads = np.arange(8 * 5, dtype=np.uint8).reshape(8, 5)
    body = np.arange(100, 116, dtype=np.uint8)
    addresses = np.zeros((8, 3), np.uint64)
    addresses[:, 0] = heads.ctypes.data + 5 * np.arange(8)
    addresses[:, 1] = body.ctypes.data + np.arange(8)
    sizes = np.array([5, 3, 0], np.uint64)
    assert batch.send(addresses, sizes, receiver.getsockname()) == 8
    assert batch.send(addresses[:0], sizes, receiver.getsockname()) == 0
    intake = DatagramReceiver(receiver, 5, 32)
    assert intake.receive() == 5
    assert intake.receive() == 3
    assert intake.lengths(3).tolist() == [8, 8, 8]
    assert intake.rows[2, :8].tolist() == [*heads[7].tolist(), *body[7:10].tolist()]
    assert intake.source_ips(3).tolist() == [SOURCE] * 3
    assert intake.source_ports(3).tolist() == [sender.getsockname()[1]] * 3
    assert intake.receive() == 0


def test_prefix_goes_apart_and_longer_datagrams_count_as_empty(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = sockets
    for size in (3, 10, 26, 27):
        sender.sendto(bytes(range(size)), receiver.getsockname())
    intake = DatagramReceiver(receiver, 8, 16, prefix_bytes=10)
    assert intake.receive() == 4
    assert intake.lengths(4).tolist() == [3, 10, 26, 0]
    assert intake.prefixes[2].tolist() == list(range(10))
    assert intake.rows[2].tolist() == list(range(10, 26))


def test_type_of_service_is_told_per_datagram(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = sockets
    receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    for tos in (0, 0x2A << 2, 4):
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        sender.sendto(b"x", receiver.getsockname())
    intake = DatagramReceiver(receiver, 8, 16)
    assert intake.receive() == 3
    assert intake.tos(3).tolist() == [0, 0x2A << 2, 4]


def test_overflow_of_the_receive_buffer_is_counted(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = sockets
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    receiver.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
    receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    for _ in range(100):
        sender.sendto(bytes(1000), receiver.getsockname())
    intake = DatagramReceiver(receiver, 64, 1024)
    taken = intake.receive()
    assert 0 < taken < 100
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8)
    sender.sendto(bytes(1000), receiver.getsockname())
    assert intake.receive() == 1
    assert intake.tos(1).tolist() == [8]
    assert intake.overflow_count == 100 - taken


def test_errors_that_are_not_about_being_full_are_raised(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = sockets
    batch = DatagramSender(sender, 4, 1)
    body = np.zeros(70_000, np.uint8)
    addresses = np.full((1, 1), body.ctypes.data, np.uint64)
    with pytest.raises(OSError, match="too long"):
        batch.send(addresses, np.array([70_000], np.uint64), receiver.getsockname())


async def _until(taken: list[int], count: int) -> None:
    async with asyncio.timeout(10):
        while sum(taken) < count:
            await asyncio.sleep(0)


def test_what_came_together_and_alone_needs_no_clock(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = sockets
    taken: list[int] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        poller = BatchPoller(DatagramReceiver(receiver, 8, 16), receiver.fileno(), loop, taken.append, lambda: 3600.0)
        poller.POLL_S_MIN = 0.0  # However soon the next ones come, the ones before are long ago.
        for burst in (1, 2, 3):
            for _ in range(BatchPoller.BUSY_PACKETS):
                sender.sendto(b"x", receiver.getsockname())
            await _until(taken, burst * BatchPoller.BUSY_PACKETS)
        poller.close()

    asyncio.run(scenario())


def test_a_busy_socket_is_looked_at_by_the_clock_and_when_asked(sockets: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = sockets
    taken: list[int] = []

    def send(count: int) -> None:
        for _ in range(count):
            sender.sendto(b"x", receiver.getsockname())

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        intake = DatagramReceiver(receiver, 8, 16)
        poller = BatchPoller(intake, receiver.fileno(), loop, taken.append, lambda: 3600.0)
        poller.POLL_S_MIN = 3600.0  # By the clock nothing more happens in this test.
        send(1)
        await _until(taken, 1)
        send(BatchPoller.BUSY_PACKETS)
        await _until(taken, 1 + BatchPoller.BUSY_PACKETS)
        taken.clear()
        send(2)
        for _ in range(3):
            await asyncio.sleep(0)
        assert taken == []
        poller.drain_receive()
        assert taken == [2]
        poller.drain_receive()
        assert taken == [2]
        poller.close()
        send(1)
        poller.drain_receive()
        assert taken == [2], "nothing after close"

    asyncio.run(scenario())
