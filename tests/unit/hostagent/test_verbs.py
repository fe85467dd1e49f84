"""What of the RDMA transport needs no RDMA: layouts, the set-up protocol, choosing without a device."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hostagent import limits
from hostagent.config import DataConfig
from hostagent.memory.pool_memory import HUGE_PAGE_BYTES, HugePages, PoolMemory
from hostagent.transport import make_transport
from hostagent.transport.base import Extent, TransportCounters, TransportError
from hostagent.transport.read_protocol import (
    ANSWER,
    KIND_CLOSE,
    KIND_CONNECT,
    KIND_OPEN,
    KIND_READ,
    RANGE,
    STATUS_ABSENT,
    STATUS_NO_RDMA,
    STATUS_OK,
    QueuePairEnd,
    RemoteExtent,
    pack_request,
)
from hostagent.transport.read_server import ReadServer
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import RdmaPort, VerbsError, device_names, gid_of
from hostagent.transport.verbs.retransmissions import LossWatch, Retransmissions
from hostagent.transport.verbs.transport import VerbsCasts
from kvchunk.ids import ChunkKey
from kvproto.wire.data import Fabric
from tests.ports import free_port

KEY, OTHER = ChunkKey(b"k" * 16), ChunkKey(b"o" * 16)
PEER = QueuePairEnd(0x123456, 0xABCDEF, 4096, 16, gid_of("10.75.0.9"))

SIZES = {
    abi.DeviceAttr: 232,
    abi.PortAttr: 56,
    abi.GidEntry: 32,
    abi.MemoryRegionStruct: 48,
    abi.CompChannelStruct: 16,
    abi.QpCap: 20,
    abi.QpInitAttr: 64,
    abi.AhAttr: 32,
    abi.QpAttr: 144,
}
OFFSETS = {
    (abi.Context, "poll_cq"): 96,
    (abi.Context, "req_notify_cq"): 104,
    (abi.Context, "post_send"): 208,
    (abi.Context, "post_recv"): 216,
    (abi.QueuePairStruct, "qp_num"): 52,
    (abi.QpAttr, "ah_attr"): 56,
    (abi.QpAttr, "pkey_index"): 120,
    (abi.QpAttr, "port_num"): 129,
    (abi.MemoryRegionStruct, "lkey"): 36,
    (abi.AhAttr, "dlid"): 24,
    (abi.AhAttr, "port_num"): 30,
    (abi.DeviceAttr, "max_mcast_grp"): 188,
    (abi.PortAttr, "link_layer"): 46,
}


def test_layouts_are_those_of_the_library() -> None:
    """Figures from a C program that includes rdma-core's infiniband/verbs.h (x86-64)."""
    assert {kind: ctypes.sizeof(kind) for kind in SIZES} == SIZES
    assert {(kind, name): getattr(kind, name).offset for kind, name in OFFSETS} == OFFSETS
    assert (abi.SEND_WR.itemsize, abi.RECV_WR.itemsize, abi.SGE.itemsize, abi.WC.itemsize) == (128, 32, 16, 48)


def test_gids_of_addresses() -> None:
    assert gid_of("10.75.0.1") == bytes(10) + b"\xff\xff" + bytes((10, 75, 0, 1))


@pytest.mark.parametrize(
    "end",
    [
        QueuePairEnd(1 << 24, 0, 4096, 1, bytes(16)),
        QueuePairEnd(1, 1 << 24, 4096, 1, bytes(16)),
        QueuePairEnd(1, 1, 1500, 1, bytes(16)),
        QueuePairEnd(1, 1, 1024, 0, bytes(16)),
    ],
)
def test_ends_that_cannot_be_are_refused(end: QueuePairEnd) -> None:
    with pytest.raises(ValueError, match="not a"):
        QueuePairEnd.unpack(end.pack())
    assert QueuePairEnd.unpack(PEER.pack()) == PEER


class Sink:
    """A pool with one chunk."""

    def __init__(self) -> None:
        self.pins = 0

    def casts_queued_bytes(self) -> int:
        return 0

    def relays(self) -> None: ...

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        """Nobody learns from it here."""

    def open_extent(self, key: ChunkKey) -> Extent | None:
        if key != KEY:
            return None
        self.pins += 1
        return Extent(4096, 1000, None)

    def prepare(self, _key: ChunkKey, _then: object) -> bool:
        return False

    def close_extent(self, _extent: Extent) -> None:
        self.pins -= 1

    def cast_patience_s(self) -> float:
        return 0.0


class Access:
    """RDMA that only notes what it is asked."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.ends: list[QueuePairEnd] = []
        self.forgotten: list[int] = []
        self.pins_at_close: int | None = None

    def connect(self, peer: QueuePairEnd) -> QueuePairEnd | None:
        self.ends.append(peer)
        return PEER

    def where(self, _number: int, extent: Extent) -> RemoteExtent:
        return RemoteExtent(0xABC000 + extent.offset, extent.size_bytes, 77)

    def forget(self, number: int) -> None:
        self.forgotten.append(number)

    def close(self) -> None:
        self.pins_at_close = self._sink.pins


def ask(requests: bytes, answer_bytes: int, *, rdma: bool) -> tuple[bytes, Sink, Access, TransportCounters]:
    """Send requests to a server, take so many bytes of answers, hang up."""
    sink, counters = Sink(), TransportCounters()
    access = Access(sink)

    async def main() -> bytes:
        memory = PoolMemory(1 << 20, prefault=False)
        server = ReadServer(memory, sink, counters, (lambda: access) if rdma else (lambda: None))  # type: ignore[arg-type]
        host, port = server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(requests)
        async with asyncio.timeout(10):
            answers = b""
            # The server resets whom it does not understand.
            with contextlib.suppress(ConnectionResetError):
                answers = await (reader.readexactly(answer_bytes) if answer_bytes else reader.read())
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
        while rdma and access.pins_at_close is None:
            await asyncio.sleep(0)
        server.close()
        memory.close()
        return answers

    return asyncio.run(main()), sink, access, counters


def test_a_peer_connects_opens_and_closes() -> None:
    requests = pack_request(KIND_CONNECT, 1, PEER.pack())
    requests += pack_request(KIND_OPEN, 2, RANGE.pack(0, 0, KEY)) + pack_request(KIND_OPEN, 3, RANGE.pack(0, 0, OTHER))
    requests += pack_request(KIND_OPEN, 4, RANGE.pack(0, 0, KEY)) + pack_request(
        KIND_CLOSE, 2, RANGE.pack(600, 0, bytes(16))
    )
    size = ANSWER.size + 32 + ANSWER.size + 24 + ANSWER.size + ANSWER.size + 24
    answers, sink, access, counters = ask(requests, size, rdma=True)
    assert QueuePairEnd.unpack(answers[ANSWER.size : ANSWER.size + 32]) == PEER
    opened = answers[ANSWER.size + 32 :]
    assert ANSWER.unpack_from(opened)[3:] == (0, 2, 24)
    assert RemoteExtent.unpack(opened[ANSWER.size : ANSWER.size + 24]) == RemoteExtent(0xABD000, 1000, 77)
    assert ANSWER.unpack_from(opened[ANSWER.size + 24 :])[2:5] == (STATUS_ABSENT, 0, 3)
    assert counters.read_bytes_sent == 600
    assert access.pins_at_close == 1, "the queue pair goes before the pins that it needs"
    assert sink.pins == 0


def test_without_rdma_the_server_says_so_and_goes_on() -> None:
    requests = pack_request(KIND_CONNECT, 1, PEER.pack()) + pack_request(KIND_OPEN, 2, RANGE.pack(0, 0, KEY))
    requests += pack_request(KIND_READ, 3, RANGE.pack(0, 10, KEY))
    answers, sink, _, _ = ask(requests, 3 * ANSWER.size + 10, rdma=False)
    statuses = [ANSWER.unpack_from(answers, place * ANSWER.size)[2] for place in range(3)]
    assert statuses == [STATUS_NO_RDMA, STATUS_NO_RDMA, STATUS_OK]
    assert sink.pins == 0


@pytest.mark.parametrize(
    "request_",
    [
        pack_request(9, 1, bytes(32)),
        pack_request(KIND_CONNECT, 1, bytes(32)),
        pack_request(KIND_CLOSE, 1, bytes(32)),
        pack_request(KIND_OPEN, 1, RANGE.pack(0, 0, KEY)) * 2,
        pack_request(KIND_READ, 1, RANGE.pack(0, 0, KEY)),
    ],
    ids=["unknown", "no queue pair", "not open", "opened twice", "nothing"],
)
def test_nonsense_ends_the_connection_and_its_pins(request_: bytes) -> None:
    _, sink, _, counters = ask(request_, 0, rdma=True)
    assert counters.dropped == {"read_request_malformed": 1}
    assert sink.pins == 0


@pytest.mark.skipif(bool(device_names()), reason="this machine has RDMA")
@pytest.mark.parametrize("transport", ["auto", "verbs"])
def test_a_machine_without_rdma(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    config = DataConfig(
        transport=transport,
        address="127.77.1.1",
        cast_port=free_port(),
        control_port=free_port(),
        read_port=0,
    )
    memory = PoolMemory(1 << 20, prefault=False)
    made = make_transport(config, memory)

    async def main() -> None:
        facts = await made.start(Sink(), Fabric())  # type: ignore[arg-type]
        assert not facts.rdma_mtu_bytes
        await made.close()

    if transport == "verbs":
        with pytest.raises(TransportError, match=r"data\.transport is verbs, but .*RDMA device|libibverbs"):
            asyncio.run(main())
    else:
        with caplog.at_level(logging.DEBUG):
            asyncio.run(main())
        assert [one.message for one in caplog.records if "no RDMA here, casts and reads over sockets" in one.message]
    memory.close()


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:

    def missing() -> ctypes.CDLL:
        raise OSError("no such file")

    monkeypatch.setattr(abi, "load", missing)
    with pytest.raises(VerbsError, match="libibverbs1"):
        RdmaPort.open("10.0.0.1")
    assert device_names() == []


def test_a_device_that_cannot_be_asked_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    devices = (ctypes.c_void_p * 1)(5)

    def list_devices(count: Any) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int)).contents.value = 1
        return ctypes.addressof(devices)

    def list_gids(_context: int, table: Any, *_: object) -> int:
        table[0] = abi.GidEntry((ctypes.c_uint8 * 16)(*gid_of("10.0.0.1")), 3, 1, abi.GID_TYPE_ROCE_V2, 0)
        return 1

    def query_port(_context: int, _port: int, attr: Any) -> int:
        port = ctypes.cast(attr, ctypes.POINTER(abi.PortAttr)).contents
        port.state, port.link_layer = abi.PORT_ACTIVE, abi.LINK_LAYER_ETHERNET
        return 0

    functions = {
        "ibv_get_device_list": list_devices,
        "ibv_get_device_name": lambda _device: b"mlx5_0",
        "ibv_open_device": lambda _device: 77,
        "_ibv_query_gid_table": list_gids,
        "ibv_query_port": query_port,
        "ibv_query_device": lambda *_: errno.EIO,
        "ibv_close_device": closed.append,
        "ibv_free_device_list": lambda _devices: None,
    }
    monkeypatch.setattr(abi, "load", lambda: SimpleNamespace(**functions))
    with pytest.raises(VerbsError, match="ibv_query_device"):
        RdmaPort.open("10.0.0.1")
    assert closed == [77]


def test_a_port_that_does_not_tell_its_counters_counts_nothing() -> None:
    told = iter([5, 7, None, 3, 4])
    port = SimpleNamespace(qkey_violations=lambda: next(told), hardware_counter=lambda _name: None)
    host = SimpleNamespace(counters=TransportCounters(), loop=SteppedLoop())
    casts = VerbsCasts(host, port, None)  # type: ignore[arg-type]
    assert host.counters.dropped == {"cast_qkey": 2}
    for _ in range(2):
        casts.read_counters()
    assert host.counters.dropped == {"cast_qkey": 2}
    casts.read_counters()
    assert host.counters.dropped == {"cast_qkey": 3}
    casts.close()
    assert host.loop.timer is None


def test_a_pool_whose_size_huge_pages_do_not_fit_has_small_ones() -> None:
    memory = PoolMemory(HUGE_PAGE_BYTES + 4096, prefault=True, huge_pages=HugePages.IF_FREE)
    assert not memory.huge_pages
    memory.view(0, 5)[:] = b"hello"
    assert bytes(memory.view(0, 5)) == b"hello"
    memory.close()


def test_a_drivers_counters_tell_of_retransmissions(tmp_path: Path) -> None:
    port, device = tmp_path / "port", tmp_path / "device"
    port.mkdir()
    device.mkdir()
    (port / "implied_nak_seq_err").write_text("4294967290\n")
    (device / "implied_nak_seq_err").write_text("0\n")
    (device / "local_ack_timeout_err").write_text("7\n")
    (device / "rx_read_requests").write_text("9\n")
    counters = Retransmissions(port, device)
    assert counters.names == ("implied_nak_seq_err", "local_ack_timeout_err")
    assert counters.since_last() == 0
    (port / "implied_nak_seq_err").write_text("4\n")
    (device / "implied_nak_seq_err").write_text("100\n")
    (device / "local_ack_timeout_err").write_text("8\n")
    (device / "rx_read_requests").write_text("10\n")
    assert counters.since_last() == 10 + 1, "32 bits that wrap, and the timeout"
    assert counters.since_last() == 0
    (device / "local_ack_timeout_err").write_text("Invalid argument\n")
    assert counters.since_last() == 0
    counters.close()
    counters.close()
    assert counters.names == ()


def test_a_driver_without_counters_tells_of_none(tmp_path: Path) -> None:
    counters = Retransmissions(tmp_path, tmp_path / "nowhere")
    assert (counters.names, counters.since_last()) == ((), 0)


class SteppedLoop:
    """A loop whose time goes on when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timer: tuple[float, Callable[..., None], tuple[object, ...]] | None = None

    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, what: Callable[..., None], *words: object) -> SteppedLoop:
        assert self.timer is None
        self.timer = self.now_s + after_s, what, words
        return self

    def cancel(self) -> None:
        self.timer = None

    def step(self) -> None:
        assert self.timer is not None
        (self.now_s, what, words), self.timer = self.timer, None
        what(*words)


def test_counters_are_looked_at_while_reads_are_in_flight(tmp_path: Path) -> None:
    counter = tmp_path / "completer_retry_err"
    counter.write_text("5\n")
    loop, in_flight, told, looks = SteppedLoop(), [True], [], []
    watch = LossWatch(
        Retransmissions(tmp_path),
        loop,  # type: ignore[arg-type]
        lambda: in_flight[0],
        lambda *what: told.append(what),
        lambda: looks.append(loop.now_s),
    )
    assert loop.timer is None
    counter.write_text("6\n")
    watch.begin()
    watch.begin()
    loop.step()
    assert told == [], "before the first read it was nothing to us"
    counter.write_text("9\n")
    loop.step()
    period_ns = int(limits.VERBS_READ_LOSSES_S * 1e9)
    ((count, since_ns, now_ns),) = told
    assert (count, round((now_ns - since_ns) / period_ns), round(now_ns / 1e9 - loop.now_s)) == (3, 1, 0)
    in_flight[0] = False
    loop.step()
    assert loop.timer is None, "nothing is in flight: the NIC is left alone"
    assert len(looks) == 3, "completions are looked for as often"
    watch.begin()
    watch.close()
    assert loop.timer is None
