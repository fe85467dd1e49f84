"""Runs inside a guest (see test_transport.py): RDMA casts of every size, where they cannot be, and when they break."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostagent import limits
from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import ReadOutcome
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import RdmaPort, VerbsError
from hostagent.transport.verbs.queues import QueuePair
from hostagent.transport.verbs.transport import VerbsTransport
from kvproto.ids import parse_address
from kvproto.wire.data import Fabric
from kvproto.wire.rdma import rdma_segment_bytes_max
from tests.contracts.transport import harness
from tests.roce.rdma_pair import (
    ADDRESSES,
    DEADLINE_S,
    KEY,
    SEGMENT,
    Nics,
    content,
    eventually,
    play,
)


def set_mtu(size_bytes: int) -> None:
    for card in ("eth0", "eth1"):
        subprocess.run(["ip", "link", "set", card, "mtu", str(size_bytes)], check=True)


@pytest.mark.parametrize(("link", "rdma", "segment"), [(1500, 1024, 768), (2200, 2048, 1792), (9000, 4096, 3840)])
def test_every_mtu(link: int, rdma: int, segment: int) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        assert one.facts.rdma_mtu_bytes == rdma
        assert rdma_segment_bytes_max(rdma) == segment
        chunk = content(20 * segment + 1)
        place = one.hold(KEY, chunk)
        two.expect(KEY, len(chunk), segment)
        one.transport.casts.cast(place, 0, 21)
        await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 21)
        assert b"".join(two.sink.casts[KEY][index] for index in range(21))[: len(chunk)] == chunk
        assert await two.read(one, KEY, 3, len(chunk) - 3, 1 << 20) is ReadOutcome.DONE
        assert bytes(two.memory.view(1 << 20, len(chunk) - 3)) == chunk[3:]

    set_mtu(link)
    try:
        play(scenario, Fabric(segment_bytes=segment))
    finally:
        set_mtu(9000)


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
        one.transport.casts.cast(place, 0, 3)
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


def at_once(condition: Callable[[], bool]) -> None:
    """Wait without giving anything else in this process a turn."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def received_packets(device: str) -> int:
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts").read_text())


def test_broken_queue_pairs_of_casts_are_replaced(nics: Nics) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        place = one.hold(KEY, content(6 * SEGMENT))
        two.expect(KEY, 6 * SEGMENT, SEGMENT)
        (receiver,) = nics.of_casts(two, receives=True)
        receiver.pair.modify(abi.QPS_ERR)
        await eventually(lambda: two.transport.counters.dropped == {"cast_receive_queue_pair": 1})
        (sender,) = nics.of_casts(one, receives=False)
        sender.pair.modify(abi.QPS_ERR)
        one.transport.casts.cast(place, 0, 3)
        await one.sink.until(lambda: one.sink.failed == {KEY: 3})
        one.transport.casts.cast(place, 0, 6)
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
        two.expect(KEY, 6 * SEGMENT, SEGMENT)
        before = len(nics.of_casts())
        (sender,), (receiver,) = nics.of_casts(one, receives=False), nics.of_casts(two, receives=True)
        sender.pair.modify(abi.QPS_ERR)
        receiver.pair.modify(abi.QPS_ERR)
        refusing = True
        one.transport.casts.cast(place, 0, 3)
        await one.sink.until(lambda: one.sink.failed == {KEY: 3})
        await eventually(lambda: not nics.of_casts())
        one.transport.casts.cast(place, 3, 3)
        await one.sink.until(lambda: one.sink.failed == {KEY: 6})
        refusing = False
        await eventually(lambda: len(nics.of_casts()) == before)
        one.transport.casts.cast(place, 0, 6)
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
            transport.casts.cast(place, 0, segments)
            transport.casts.fill(place, 0, segments, pool)
            transport.use_fabric(fabric)
            assert (sink.sent, sink.failed, sink.filled) == ({}, {}, {}) or number > 1, "not inside the call"
            wanted = 200 if number == 1 else 250
            await sink.until(lambda wanted=wanted: sink.sent.get(KEY, 0) + sink.failed.get(KEY, 0) == wanted)
            await sink.until(lambda wanted=wanted: sink.filled.get(KEY, 0) == wanted)
        await transport.close()
        memory.close()

    asyncio.run(main())
