"""Runs inside a guest (see test_transport.py): the RDMA transport against packets, programs and failures of others."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bmv2_testbed.spec import data_mac
from hostagent import limits
from hostagent.config import DataConfig
from hostagent.pool.memory import HUGE_PAGE_BYTES, HugePages, PoolMemory
from hostagent.transport import make_transport
from hostagent.transport.base import Extent, ReadOutcome, ReadRequest, TransportError
from hostagent.transport.frames import udp_header
from hostagent.transport.read_protocol import QueuePairEnd, RemoteExtent
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.connections import PoolAccess
from hostagent.transport.verbs.device import RdmaPort, VerbsError
from hostagent.transport.verbs.queues import CompletionQueue, Completions, QueuePair
from hostagent.transport.verbs.transport import VerbsTransport
from kvproto.ids import ChunkKey, format_address, parse_address
from kvproto.session.read_window import ReadWindow
from kvproto.wire.data import ChunkFraming, Fabric, decode_batch
from kvproto.wire.rdma import rdma_segment_bytes_max
from tests.contracts.transport import harness

KEY = ChunkKey(bytes(range(16)))
SEGMENT = 1024
DEADLINE_S = 120.0

ROCE_PORT = 4791


ADDRESSES: tuple[str, ...] = harness.RDMA_ADDRESSES


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


@pytest.fixture
def nics(monkeypatch: pytest.MonkeyPatch) -> Nics:
    return Nics(monkeypatch)


@contextlib.contextmanager
def wire(interface: str) -> Iterator[socket.socket]:
    """What passes a network card, as it is."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as sock:
        sock.bind((interface, 0))
        sock.setblocking(False)
        yield sock


def frame_of(datagram: bytes, source: int, port: int, fabric: Fabric) -> bytes:
    """The Ethernet frame in which a sockets agent's datagram travels."""
    group_mac = b"\x01\x00\x5e" + (fabric.group & 0x7F_FFFF).to_bytes(3, "big")
    header = udp_header(source, fabric.group, port, ROCE_PORT, len(datagram))
    return group_mac + bytes((2, 0, 0, 0, 0, 9)) + b"\x08\x00" + header + datagram


# ---------------------------------------------------------------------- bytes of others


def test_packets_of_a_sockets_holder_arrive_and_bad_ones_do_not() -> None:
    fabric = Fabric(segment_bytes=SEGMENT)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(5 * SEGMENT)
        framing = ChunkFraming(KEY, memoryview(chunk), fabric, one.facts.address, 40_000)
        foreign = Fabric(segment_bytes=SEGMENT, qkey=0x2222)
        other_key = ChunkFraming(KEY, memoryview(chunk), foreign, one.facts.address, 40_000)
        own = ChunkFraming(KEY, memoryview(chunk), fabric, two.facts.address, 40_000)
        corrupt = bytearray(framing.datagram(1))
        corrupt[-1] ^= 0x40
        damaged = bytearray(framing.datagram(2))
        damaged[100] ^= 1
        with wire("eth0") as cable:
            cable.send(frame_of(bytes(own.datagram(3)), two.facts.address, 40_000, fabric))
            for datagram in (framing.datagram(0), corrupt, damaged, other_key.datagram(3), framing.datagram(4)):
                cable.send(frame_of(bytes(datagram), one.facts.address, 40_000, fabric))
        await two.sink.until(lambda: 4 in two.sink.casts.get(KEY, {}))
        assert sorted(two.sink.casts[KEY]) == [0, 4]
        assert two.sink.casts[KEY][4] == chunk[4 * SEGMENT :]
        two.read_counters()
        assert two.transport.counters.dropped == {"cast_qkey": 1, "own_cast": 1}

    play(scenario)


def test_what_a_nic_sends_a_sockets_reader_decodes() -> None:
    fabric = Fabric(segment_bytes=SEGMENT)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(7 * SEGMENT - 9)
        place = one.hold(KEY, chunk)
        frames: list[bytes] = []
        with wire("eth1") as cable:
            one.transport.cast(place, 0, 7)
            await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 7)
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, address = cable.recvfrom(65536)
                    if frame[36:38] == ROCE_PORT.to_bytes(2, "big") and address[2] != socket.PACKET_OUTGOING:
                        frames.append(frame)
        assert len(frames) == 7
        rows = np.frombuffer(b"".join(frame[42:] for frame in frames), np.uint8).reshape(7, -1).copy()
        lengths = np.full(7, rows.shape[1])
        sources = np.full(7, one.facts.address, np.uint32)
        ports = np.array([int.from_bytes(frame[34:36], "big") for frame in frames])
        batch = decode_batch(rows.copy(), lengths, sources, ports, fabric)
        assert not batch.dropped
        (group,) = batch.groups
        assert sorted(group.segments.tolist()) == list(range(7))
        rows[3, 200] ^= 1
        assert sum(decode_batch(rows, lengths, sources, ports, fabric).dropped.values()) == 1

    play(scenario)


def test_a_message_of_somebody_elses_program() -> None:
    """pyverbs stands for any other user of verbs: its UD send to the group is a segment like ours."""
    pytest.importorskip("numpy")
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        if importlib.util.find_spec("pyverbs") is None:
            pytest.skip("needs Debian's python3-pyverbs")
        from pyverbs import enums as e
        from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
        from pyverbs.wr import SGE, SendWR
    except ImportError as error:
        pytest.skip(f"pyverbs does not load in this interpreter: {error}")
    finally:
        sys.path.remove("/usr/lib/python3/dist-packages")
    fabric = Fabric(segment_bytes=SEGMENT)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(SEGMENT)
        message = ChunkFraming(KEY, memoryview(chunk), fabric, one.facts.address, 1).datagram(0)[20:-4]
        context = Context(name="rxe0")
        domain = PD(context)
        queue = CQ(context, 4)
        attributes = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attributes.qkey = fabric.qkey
        init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=queue, rcq=queue, cap=QPCap(max_send_wr=4, max_recv_wr=1))
        pair = QP(domain, init, attributes)
        region = MR(domain, len(message), e.IBV_ACCESS_LOCAL_WRITE)
        region.write(message, len(message))
        octets = socket.inet_aton(format_address(fabric.group))
        gid = GID(f"0000:0000:0000:0000:0000:ffff:{octets[:2].hex()}:{octets[2:].hex()}")
        index = next(i for i in range(8) if "ffff" in str(context.query_gid(1, i)))
        route = GlobalRoute(dgid=gid, sgid_index=index, hop_limit=1)
        handle = AH(domain, attr=AHAttr(port_num=1, is_global=1, gr=route))
        request = SendWR(num_sge=1, sg=[SGE(region.buf, len(message), region.lkey)])
        request.set_wr_ud(handle, 0xFFFFFF, fabric.qkey)
        pair.post_send(request)
        await two.sink.until(lambda: 0 in two.sink.casts.get(KEY, {}))
        assert two.sink.casts[KEY][0] == chunk
        for thing in (handle, pair, queue, region, domain, context):
            thing.close()

    play(scenario)


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(("link", "rdma", "segment"), [(1500, 1024, 768), (2200, 2048, 1792), (9000, 4096, 3840)])
def test_every_mtu(link: int, rdma: int, segment: int) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        assert one.facts.rdma_mtu_bytes == rdma
        assert rdma_segment_bytes_max(rdma) == segment
        chunk = content(20 * segment + 1)
        place = one.hold(KEY, chunk)
        one.transport.cast(place, 0, 21)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 21)
        assert b"".join(two.sink.casts[KEY][index] for index in range(21))[: len(chunk)] == chunk
        assert await two.read(one, KEY, 3, len(chunk) - 3, 1 << 20) is ReadOutcome.DONE
        assert bytes(two.memory.view(1 << 20, len(chunk) - 3)) == chunk[3:]

    set_mtu(link)
    try:
        play(scenario, Fabric(segment_bytes=segment))
    finally:
        set_mtu(9000)


def set_mtu(size_bytes: int) -> None:
    for card in ("eth0", "eth1"):
        subprocess.run(["ip", "link", "set", card, "mtu", str(size_bytes)], check=True)


def refuse_multicast(monkeypatch: pytest.MonkeyPatch) -> None:
    opens = RdmaPort.open

    def without(address: str, device: str = "") -> RdmaPort:
        port = opens(address, device)
        port.facts = dataclasses.replace(port.facts, multicast=False)
        return port

    monkeypatch.setattr(RdmaPort, "open", without)


def refuse_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    makes = QueuePair.__init__

    def without(self: QueuePair, port: RdmaPort, kind: int, *rest: Any) -> None:
        if kind == abi.QPT_UD:
            raise VerbsError("ibv_create_qp failed: Operation not supported")
        makes(self, port, kind, *rest)

    monkeypatch.setattr(QueuePair, "__init__", without)


@pytest.mark.parametrize(
    ("cannot", "segment", "reason"),
    [
        (lambda _: None, 4096, "do not fit the RDMA MTU of rxe0, 4096: raise the interface's MTU"),
        (refuse_multicast, SEGMENT, "rxe0 has no multicast for UD queue pairs"),
        (refuse_datagrams, SEGMENT, "ibv_create_qp failed: Operation not supported"),
    ],
    ids=["segments too large", "no multicast", "no UD"],
)
def test_casts_that_cannot_be_fall_back_to_sockets_and_reads_stay(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cannot: Any, segment: int, reason: str
) -> None:
    """Soft-RoCE keeps UDP 4791 for itself, so the sockets use another port here."""
    cannot(monkeypatch)

    async def scenario() -> None:
        fabric = Fabric(segment_bytes=segment)
        nodes = []
        for address in ADDRESSES:
            config = DataConfig(transport="verbs", address=address, cast_port=4794, read_port=0, segment_bytes=segment)
            memory, sink = PoolMemory(1 << 20, prefault=False), harness.RecordingSink()
            transport = VerbsTransport(config, memory)
            nodes.append(harness.Node(transport, memory, sink, await transport.start(sink, fabric)))
        one, two = nodes
        assert two.facts.rdma_mtu_bytes == 4096
        place = one.hold(KEY, content(3 * segment - 5))
        one.transport.use_fabric(Fabric(segment_bytes=segment, qkey=5))
        assert await two.read(one, KEY, 0, 3000, 0) is ReadOutcome.DONE
        assert two.transport.counters.read_bytes_rdma == 3000
        one.transport.cast(place, 0, 3)
        await one.sink.until(lambda: one.sink.sent.get(KEY) == 3)
        for node in nodes:
            await node.transport.close()
            node.memory.close()

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    said = [record.message for record in caplog.records if "casts over sockets" in record.message]
    assert len(said) == 2, "once a node, although the fabric changed"
    assert all(message.startswith("casts over sockets, reads over RDMA: ") for message in said)
    assert reason in said[0]


# ---------------------------------------------------------------------- failures


def test_a_full_receive_queue_is_counted_and_repaired_by_reads() -> None:
    fabric = Fabric(segment_bytes=SEGMENT)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        segments = 4096 + 700  # more than the ring of 4 MiB has rows
        chunk = content(segments * SEGMENT)
        place = one.hold(KEY, chunk)
        framing = ChunkFraming(KEY, memoryview(chunk), fabric, one.facts.address, 40_000)
        # Until the NIC has had more packets than there is room for, nothing here waits, so the receiver gets no turn.
        before = received_packets("rxe1")
        with wire("eth0") as cable:
            cable.setblocking(True)
            for segment in range(segments):
                cable.send(frame_of(bytes(framing.datagram(segment)), one.facts.address, 40_000, fabric))
                if segment % 64 == 63 or segment == segments - 1:
                    at_once(lambda sent=segment + 1: received_packets("rxe1") - before >= sent)
        await eventually(lambda: len(two.sink.casts.get(KEY, {})) >= 4096)
        assert two.transport.counters.cast_receive_overflows >= 1
        missing = sorted(set(range(segments)) - set(two.sink.casts[KEY]))
        assert missing
        start, end = missing[0] * SEGMENT, (missing[-1] + 1) * SEGMENT
        assert await two.read(one, KEY, start, end - start, start) is ReadOutcome.DONE
        assert bytes(two.memory.view(start, end - start)) == chunk[start:end]
        # The ring goes on where it was.
        one.transport.cast(place, 0, 100)
        two.sink.casts.clear()
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 100)

    play(scenario, fabric)


def at_once(condition: Callable[[], bool]) -> None:
    """Wait without giving anything else in this process a turn."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def received_packets(device: str) -> int:
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts").read_text())


def test_a_broken_queue_pair_fails_its_reads_and_the_next_read_gets_a_fresh_one(nics: Nics) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.DONE
        (access,) = nics.accesses
        access.close()  # as when the peer's NIC was reset: nobody answers
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.FAILED
        assert two.transport.counters.dropped == {"read_retry_exceeded": 1}
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.DONE
        await eventually(lambda: one.sink.open_extents == 0)

    play(scenario)


def test_reads_go_over_tcp_once_nobody_tells_what_completes(nics: Nics) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.DONE
        counters = two.transport.counters
        own = format_address(two.facts.address)
        (nics.broken,) = (pair.completions for pair in nics.of_reads() if pair.address == own)
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.FAILED
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.DONE
        assert counters.read_bytes_rdma == 1000
        assert bytes(two.memory.view(0, 100_000)) == content(100_000)

    play(scenario)


def test_reads_end_though_no_event_tells_of_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompletionQueue, "arm", lambda _queue: None)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(1 << 20))
        assert await two.read(one, KEY, 0, 1 << 20, 0) is ReadOutcome.DONE
        assert two.transport.counters.read_bytes_rdma == 1 << 20
        assert two.transport.counters.dropped == {}

    play(scenario)


def wrong_key(access: PoolAccess, number: int, extent: Extent, where: Any = PoolAccess.where) -> RemoteExtent:
    right = where(access, number, extent)
    return dataclasses.replace(right, rkey=right.rkey ^ 0xFF00)


def test_a_peer_whose_connections_break_is_read_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        with monkeypatch.context() as holder:
            holder.setattr(PoolAccess, "where", wrong_key)
            for _ in range(limits.VERBS_READ_FAILURES_MAX):
                assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.FAILED
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.DONE
        assert two.transport.counters.read_bytes_rdma == 0
        assert bytes(two.memory.view(0, 100_000)) == content(100_000)

    play(scenario)


def test_a_wrong_key_is_an_access_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        with monkeypatch.context() as holder:
            holder.setattr(PoolAccess, "where", wrong_key)
            assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.FAILED
        assert list(two.transport.counters.dropped) == ["read_remote_access_error"]
        assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.DONE

    play(scenario)


@pytest.mark.parametrize("beside", [-(1 << 20), 1 << 20], ids=["before", "behind"])
def test_a_key_reaches_no_other_chunk(monkeypatch: pytest.MonkeyPatch, beside: int) -> None:
    """A peer has a chunk open and reads with its key what lies beside it in the pool."""
    where = PoolAccess.where

    def moved(access: PoolAccess, number: int, extent: Extent) -> RemoteExtent:
        right = where(access, number, extent)
        return dataclasses.replace(right, address=right.address + beside)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        with monkeypatch.context() as holder:
            holder.setattr(PoolAccess, "where", moved)
            assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.FAILED
        assert list(two.transport.counters.dropped) == ["read_remote_access_error"]
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.DONE
        assert bytes(two.memory.view(0, 100_000)) == content(100_000)

    play(scenario)


def test_idle_connections_are_taken_down_on_both_sides(nics: Nics) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(5000))
        assert await two.read(one, KEY, 0, 5000, 0) is ReadOutcome.DONE
        assert {pair.address for pair in nics.of_reads()} == set(ADDRESSES)
        await eventually(lambda: not nics.of_reads())
        assert await two.read(one, KEY, 0, 5000, 0) is ReadOutcome.DONE
        assert len(nics.accesses) == 2

    play(scenario, read_idle_s=1.0)


def test_memory_that_may_not_be_locked_is_a_clear_error() -> None:
    code = """
import asyncio, sys
from hostagent.config import DataConfig
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import TransportError
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import RdmaPort, VerbsError
from hostagent.transport.verbs.connections import PoolAccess
from hostagent.transport.verbs.queues import CompletionQueue, Completions, QueuePair
from hostagent.transport.verbs.transport import VerbsTransport
from kvproto.wire.data import Fabric
memory = PoolMemory(8 << 20, prefault=False)
transport = VerbsTransport(DataConfig(transport="verbs", address=sys.argv[1], read_port=0), memory)
try:
    asyncio.run(transport.start(None, Fabric(segment_bytes=1024)))
except TransportError as error:
    print(error)
"""
    argv = [
        "setpriv",
        "--bounding-set",
        "-ipc_lock",
        "--inh-caps",
        "-ipc_lock",
        sys.executable,
        "-c",
        code,
        ADDRESSES[0],
    ]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20)),
    )
    assert "the pool (pool.size)" in done.stdout, done.stderr
    assert "raise the limit of locked memory" in done.stdout


def test_verbs_where_there_is_no_such_device_says_so() -> None:
    async def main() -> None:
        transport = VerbsTransport(
            DataConfig(transport="verbs", address=ADDRESSES[0], rdma_device="mlx5_9", read_port=0),
            PoolMemory(1 << 20, prefault=False),
        )
        with pytest.raises(TransportError, match="no RDMA device mlx5_9"):
            await transport.start(harness.RecordingSink(), Fabric(segment_bytes=SEGMENT))

    asyncio.run(main())


def test_auto_takes_the_rdma_that_is_there() -> None:
    async def main() -> None:
        config = DataConfig(transport="auto", address=ADDRESSES[0], read_port=0)
        transport = make_transport(config, PoolMemory(1 << 20, prefault=False))
        facts = await transport.start(harness.RecordingSink(), Fabric(segment_bytes=SEGMENT))
        assert facts.rdma_mtu_bytes == 4096
        await transport.close()

    asyncio.run(main())


def test_a_pool_of_huge_pages_is_read_by_everybody() -> None:
    Path("/proc/sys/vm/nr_hugepages").write_text("8")
    memory = PoolMemory(2 * HUGE_PAGE_BYTES, prefault=True, huge_pages=HugePages.IF_FREE)
    if not memory.huge_pages:
        pytest.skip("this kernel has no huge page to spare")

    async def main() -> None:
        sinks = [harness.RecordingSink(), harness.RecordingSink()]
        memories = [memory, PoolMemory(2 << 20, prefault=False)]
        nodes = []
        for address, each, sink in zip(ADDRESSES, memories, sinks, strict=True):
            transport = VerbsTransport(DataConfig(transport="verbs", address=address, read_port=0), each)
            facts = await transport.start(sink, Fabric(segment_bytes=SEGMENT))
            nodes.append(harness.Node(transport, each, sink, facts))
        chunk = content(50_000)
        place = nodes[0].hold(KEY, chunk)
        assert await nodes[1].read(nodes[0], KEY, 0, 50_000, 0) is ReadOutcome.DONE
        assert bytes(memories[1].view(0, 50_000)) == chunk
        nodes[0].transport.cast(place, 0, 4)
        await sinks[1].until(lambda: len(sinks[1].casts.get(KEY, {})) == 4)
        for node in nodes:
            await node.transport.close()

    try:
        asyncio.run(main())
    finally:
        memory.close()
        Path("/proc/sys/vm/nr_hugepages").write_text("0")


# ---------------------------------------------------------------------- casts that break


def test_broken_queue_pairs_of_casts_are_replaced(nics: Nics) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        place = one.hold(KEY, content(6 * SEGMENT))
        (receiver,) = nics.of_casts(two, receives=True)
        receiver.pair.modify(abi.QPS_ERR)
        await eventually(lambda: two.transport.counters.dropped == {"cast_receive_queue_pair": 1})
        (sender,) = nics.of_casts(one, receives=False)
        sender.pair.modify(abi.QPS_ERR)
        one.transport.cast(place, 0, 3)
        await one.sink.until(lambda: one.sink.failed == {KEY: 3})
        one.transport.cast(place, 0, 6)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 6)
        await one.sink.until(lambda: one.sink.sent == {KEY: 6})

    play(scenario)


def test_casts_start_over_when_broken_queue_pairs_cannot_be_replaced(
    monkeypatch: pytest.MonkeyPatch, nics: Nics
) -> None:
    """Nor go over sockets meanwhile: soft-RoCE keeps UDP 4791 for itself."""
    monkeypatch.setattr(limits, "VERBS_AGAIN_S", 0.05)
    modify, refusing = QueuePair.modify, False

    def perhaps(pair: QueuePair, state: int, mask: int = 0, **attributes: Any) -> None:
        if refusing:
            raise VerbsError("the NIC is busy with something else")
        modify(pair, state, mask, **attributes)

    monkeypatch.setattr(QueuePair, "modify", perhaps)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        nonlocal refusing
        place = one.hold(KEY, content(6 * SEGMENT))
        before = len(nics.of_casts())
        (sender,), (receiver,) = nics.of_casts(one, receives=False), nics.of_casts(two, receives=True)
        sender.pair.modify(abi.QPS_ERR)
        receiver.pair.modify(abi.QPS_ERR)
        refusing = True
        one.transport.cast(place, 0, 3)
        await one.sink.until(lambda: one.sink.failed == {KEY: 3})
        await eventually(lambda: not nics.of_casts())
        one.transport.cast(place, 3, 3)
        await one.sink.until(lambda: one.sink.failed == {KEY: 6})
        refusing = False
        await eventually(lambda: len(nics.of_casts()) == before)
        one.transport.cast(place, 0, 6)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 6)

    play(scenario)


def test_what_is_queued_when_casts_change_their_carrier_is_reported() -> None:
    async def main() -> None:
        small, large = Fabric(segment_bytes=SEGMENT), Fabric(segment_bytes=4096)
        config = DataConfig(transport="verbs", address=ADDRESSES[0], cast_port=4794, read_port=0)
        memory, sink = PoolMemory(1 << 20, prefault=False), harness.RecordingSink()
        transport = VerbsTransport(config, memory)
        node = harness.Node(transport, memory, sink, await transport.start(sink, small))
        place = node.hold(KEY, content(200 * 1024))
        pool = parse_address(ADDRESSES[1])
        for number, (fabric, segments) in enumerate(((large, 200), (small, 50)), 1):
            transport.cast(place, 0, segments)
            transport.fill(place, 0, segments, pool)
            transport.use_fabric(fabric)
            assert (sink.sent, sink.failed, sink.filled) == ({}, {}, {}) or number > 1, "not inside the call"
            wanted = 200 if number == 1 else 250
            await sink.until(lambda wanted=wanted: sink.sent.get(KEY, 0) + sink.failed.get(KEY, 0) == wanted)
            await sink.until(lambda wanted=wanted: sink.filled.get(KEY, 0) == wanted)
        await transport.close()
        memory.close()

    asyncio.run(main())


# ---------------------------------------------------------------------- losses


async def set_neighbour(words: str) -> None:
    process = await asyncio.create_subprocess_exec("ip", "neigh", "replace", *words.split())
    assert await process.wait() == 0


def test_a_read_that_lost_packets_ends_and_its_window_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's packets go to a card that does not exist, until the reader's NIC has asked again."""
    monkeypatch.setattr(limits, "VERBS_READ_TIMEOUT_EXPONENT", 14)
    monkeypatch.setattr(limits, "VERBS_READ_RETRIES", 7)  # which soft-RoCE takes for ever
    windows_told: list[tuple[int, int]] = []
    lost_of = ReadWindow.lost

    def told(window: ReadWindow, since_ns: int, now_ns: int) -> None:
        windows_told.append((since_ns, now_ns))
        lost_of(window, since_ns, now_ns)

    monkeypatch.setattr(ReadWindow, "lost", told)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(4 << 20)
        one.hold(KEY, chunk)
        progressed: list[int] = []
        counters, lost = two.transport.counters, asyncio.Event()
        last: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()

        def read(_before: ReadOutcome = ReadOutcome.DONE) -> None:
            # One after the other until packets are lost, so that there always is a READ to lose packets of.
            done = last.set_result if lost.is_set() else read
            two.transport.read(ReadRequest(one.facts.read_endpoint, KEY, 0, len(chunk), 0, done, progressed.append))

        read()
        await eventually(lambda: bool(progressed))
        before = counters.read_retransmissions
        neighbour = f"{ADDRESSES[1]} dev eth0"
        await set_neighbour(f"{neighbour} lladdr 02:00:00:00:00:99 nud permanent")
        await eventually(lambda: counters.read_retransmissions > before)
        assert windows_told
        lost.set()
        await set_neighbour(f"{neighbour} lladdr {data_mac(1)} nud reachable")
        assert await last is ReadOutcome.DONE
        assert bytes(two.memory.view(0, len(chunk))) == chunk

    play(scenario)
