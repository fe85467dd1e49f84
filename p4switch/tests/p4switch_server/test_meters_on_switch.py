"""Meters of a running program, configured and read over P4Runtime. Rates are zero: only bursts count, not time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.testing import TestSwitch, memory_switch

PROGRAM = Path(__file__).with_name("meters.p4")
GREEN, YELLOW, RED = range(3)
FRAME_BYTES = 60
MODIFY, INSERT = p4r.Update.MODIFY, p4r.Update.INSERT


class Client:
    """A primary client that speaks protobuf."""

    def __init__(self, switch: TestSwitch, channel: grpc.Channel) -> None:
        self.info = switch.switch.p4info
        call = channel.unary_unary
        self._write: Callable[[p4r.WriteRequest], p4r.WriteResponse] = call(
            "/p4.v1.P4Runtime/Write", p4r.WriteRequest.SerializeToString, p4r.WriteResponse.FromString
        )
        self._read: Callable[[p4r.ReadRequest], Iterator[p4r.ReadResponse]] = channel.unary_stream(
            "/p4.v1.P4Runtime/Read", p4r.ReadRequest.SerializeToString, p4r.ReadResponse.FromString
        )
        stream = channel.stream_stream(
            "/p4.v1.P4Runtime/StreamChannel",
            p4r.StreamMessageRequest.SerializeToString,
            p4r.StreamMessageResponse.FromString,
        )
        self._requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        arbitration = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1))
        self._requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
        self._answers = stream(iter(self._requests.get, None))
        assert next(self._answers).arbitration.status.code == 0

    def close(self) -> None:
        self._requests.put(None)

    def id_of(self, kind: str, name: str) -> int:
        objects: list[p4i.Meter] = getattr(self.info, kind)
        return next(o.preamble.id for o in objects if o.preamble.alias == name)

    def write(self, kind: p4r.Update.Type.ValueType, **entity: object) -> None:
        update = p4r.Update(type=kind, entity=p4r.Entity(**entity))  # type: ignore[arg-type]
        self._write(p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1), updates=[update]))

    def read(self, **entity: object) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(**entity)])  # type: ignore[arg-type]
        return [found for response in self._read(request) for found in response.entities]


@pytest.fixture
def switch() -> Iterator[TestSwitch]:
    with memory_switch(PROGRAM, ports=2) as one:
        yield one


@pytest.fixture
def client(switch: TestSwitch) -> Iterator[Client]:
    with grpc.insecure_channel(switch.address) as channel:
        one = Client(switch, channel)
        yield one
        one.close()


def colors(switch: TestSwitch, count: int, *, index: int = 0, source: int = 1) -> list[tuple[int, int, int]]:
    """By bytes, by packets, direct; of `count` frames."""
    head = bytes(6) + source.to_bytes(6, "big") + b"\x88\xb5" + bytes([index])
    found = []
    for _ in range(count):
        switch.send(1, head.ljust(FRAME_BYTES, b"\0"))
        found.append(tuple(switch.expect(2)[15:18]))
    return found  # type: ignore[return-value]


def bursts(committed: int, peak: int) -> p4r.MeterConfig:
    return p4r.MeterConfig(cburst=committed, pburst=peak)


def counted(data: p4r.MeterCounterData) -> list[tuple[int, int]]:
    return [(c.packet_count, c.byte_count) for c in (data.green, data.yellow, data.red)]


def test_a_meter_without_a_configuration_is_green_and_counts(switch: TestSwitch, client: Client) -> None:
    assert colors(switch, 2, index=3) == [(GREEN, GREEN, GREEN)] * 2
    meter = client.id_of("meters", "bytes_meter")
    (entity,) = client.read(
        meter_entry=p4r.MeterEntry(meter_id=meter, index=p4r.Index(index=3), counter_data=p4r.MeterCounterData())
    )
    assert not entity.meter_entry.HasField("config")
    assert counted(entity.meter_entry.counter_data) == [(2, 2 * FRAME_BYTES), (0, 0), (0, 0)]


def test_indexed_meters_by_bytes_and_by_packets(switch: TestSwitch, client: Client) -> None:
    by_bytes, by_packets = client.id_of("meters", "bytes_meter"), client.id_of("meters", "packets_meter")
    one = p4r.Index(index=1)
    client.write(
        MODIFY, meter_entry=p4r.MeterEntry(meter_id=by_bytes, index=one, config=bursts(FRAME_BYTES, 3 * FRAME_BYTES))
    )
    client.write(MODIFY, meter_entry=p4r.MeterEntry(meter_id=by_packets, index=one, config=bursts(2, 3)))
    got = colors(switch, 4, index=1)
    assert [c[0] for c in got] == [GREEN, YELLOW, YELLOW, RED]
    assert [c[1] for c in got] == [GREEN, GREEN, YELLOW, RED]
    assert [c[0] for c in colors(switch, 3, index=2)] == [GREEN] * 3, "another cell"
    wildcard = client.read(meter_entry=p4r.MeterEntry(meter_id=by_bytes, counter_data=p4r.MeterCounterData()))
    assert [e.meter_entry.index.index for e in wildcard] == list(range(8))
    assert wildcard[1].meter_entry.config == bursts(FRAME_BYTES, 3 * FRAME_BYTES)
    assert [n for n, _ in counted(wildcard[1].meter_entry.counter_data)] == [1, 2, 1]
    assert all(not e.meter_entry.HasField("counter_data") for e in client.read(meter_entry=p4r.MeterEntry()))
    reset = p4r.MeterEntry(meter_id=by_bytes, counter_data=p4r.MeterCounterData())
    client.write(MODIFY, meter_entry=reset)  # without index and configuration: all cells are green again
    cells = client.read(meter_entry=reset)
    assert all(not e.meter_entry.HasField("config") for e in cells)
    assert all(counted(e.meter_entry.counter_data) == [(0, 0)] * 3 for e in cells)
    assert [c[0] for c in colors(switch, 4, index=1)] == [GREEN] * 4


def test_direct_meters_belong_to_their_entries(switch: TestSwitch, client: Client) -> None:
    table, action = client.id_of("tables", "source"), client.id_of("actions", "mark")

    def entry(source: int, **more: object) -> p4r.TableEntry:
        exact = p4r.FieldMatch.Exact(value=bytes([source]))
        return p4r.TableEntry(table_id=table, match=[p4r.FieldMatch(field_id=1, exact=exact)], **more)  # type: ignore[arg-type]

    act = p4r.TableAction(action=p4r.Action(action_id=action))
    client.write(INSERT, table_entry=entry(5, action=act, meter_config=bursts(1, 2)))
    client.write(INSERT, table_entry=entry(6, action=act))
    assert [c[2] for c in colors(switch, 4, source=5)] == [GREEN, YELLOW, RED, RED]
    assert [c[2] for c in colors(switch, 3, source=6)] == [GREEN] * 3
    query = p4r.TableEntry(table_id=table, meter_config=p4r.MeterConfig(), meter_counter_data=p4r.MeterCounterData())
    found = {e.table_entry.match[0].exact.value[-1]: e.table_entry for e in client.read(table_entry=query)}
    assert found[5].meter_config == bursts(1, 2)
    assert not found[6].HasField("meter_config")
    assert [n for n, _ in counted(found[5].meter_counter_data)] == [1, 1, 2]
    direct = p4r.DirectMeterEntry(table_entry=entry(5), config=bursts(2, 2), counter_data=p4r.MeterCounterData())
    client.write(MODIFY, direct_meter_entry=direct)
    assert [c[2] for c in colors(switch, 3, source=5)] == [GREEN, GREEN, RED]
    (read,) = client.read(direct_meter_entry=direct)
    assert [n for n, _ in counted(read.direct_meter_entry.counter_data)] == [2, 0, 1]
    client.write(MODIFY, table_entry=entry(5, action=act))
    assert [c[2] for c in colors(switch, 3, source=5)] == [GREEN] * 3, "an entry without configuration is green again"


@pytest.mark.parametrize("color", ["green", "yellow", "red"])
def test_the_counters_can_only_be_set_to_zero(client: Client, color: str) -> None:
    data = p4r.MeterCounterData(**{color: p4r.CounterData(packet_count=1)})  # type: ignore[arg-type]
    meter = client.id_of("meters", "bytes_meter")
    with pytest.raises(grpc.RpcError, match="can only be set to zero"):
        client.write(MODIFY, meter_entry=p4r.MeterEntry(meter_id=meter, counter_data=data))
