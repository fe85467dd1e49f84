# ruff: noqa: E501 - P4Info reads better on one line each
"""A pipeline in plain dictionaries behind the real server: what the server does, without compiler and native code."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf import text_format

from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.device import Device
from p4switch.server.forwarding import ForwardingState
from p4switch.server.schema import ProgramIndex, Schema
from p4switch.server.service import P4RuntimeServer
from p4switch.server.target import ConfigError, Event
from p4switch.server.target_pipeline import (
    CloneSession,
    EntryHandle,
    EntryState,
    InitialEntry,
    MatchKey,
    PipelineFullError,
)
from p4switch.testing import p4switch_factory  # noqa: F401 - a fixture
from p4switch.values import ActionCall, ColorCounts, CounterValue, EntryAction, MeterConfig, Replica, WeightedMember

P4INFO = """
pkg_info { arch: "v1model" }
tables {
  preamble { id: 0x02000001 name: "Ingress.ipv4" alias: "ipv4" }
  match_fields { id: 1 name: "dst" bitwidth: 32 match_type: LPM }
  action_refs { id: 0x01000001 } action_refs { id: 0x01000002 scope: DEFAULT_ONLY } action_refs { id: 0x01000003 scope: TABLE_ONLY }
  direct_resource_ids: 0x13000001 direct_resource_ids: 0x15000001 size: 8
}
tables {
  preamble { id: 0x02000002 name: "Ingress.acl" alias: "acl" }
  match_fields { id: 1 name: "proto" bitwidth: 8 match_type: EXACT }
  match_fields { id: 2 name: "src" bitwidth: 32 match_type: TERNARY }
  match_fields { id: 3 name: "port" bitwidth: 16 match_type: RANGE }
  match_fields { id: 4 name: "vlan" bitwidth: 12 match_type: OPTIONAL }
  action_refs { id: 0x01000001 } action_refs { id: 0x01000002 }
  size: 64 idle_timeout_behavior: NOTIFY_CONTROL
}
tables {
  preamble { id: 0x02000003 name: "Ingress.ecmp" alias: "ecmp" }
  match_fields { id: 1 name: "dst" bitwidth: 9 match_type: EXACT }
  action_refs { id: 0x01000001 } action_refs { id: 0x01000002 }
  implementation_id: 0x11000001 size: 64
}
tables {
  preamble { id: 0x02000004 name: "Ingress.fixed" alias: "fixed" }
  match_fields { id: 1 name: "proto" bitwidth: 8 match_type: EXACT }
  action_refs { id: 0x01000001 } action_refs { id: 0x01000002 }
  const_default_action_id: 0x01000002 is_const_table: true has_initial_entries: true size: 64
}
tables {
  preamble { id: 0x02000005 name: "Ingress.settings" alias: "settings" }
  action_refs { id: 0x01000001 } action_refs { id: 0x01000002 }
  size: 1
}
actions {
  preamble { id: 0x01000001 name: "Ingress.forward" alias: "forward" }
  params { id: 1 name: "port" bitwidth: 9 } params { id: 2 name: "mac" bitwidth: 48 }
}
actions { preamble { id: 0x01000002 name: "Ingress.drop" alias: "drop" } }
actions { preamble { id: 0x01000003 name: "NoAction" alias: "NoAction" } }
action_profiles {
  preamble { id: 0x11000001 name: "Ingress.paths" alias: "paths" }
  table_ids: 0x02000003 with_selector: true size: 16 max_group_size: 8
}
direct_counters { preamble { id: 0x13000001 name: "Ingress.hits" alias: "hits" } spec { unit: BOTH } direct_table_id: 0x02000001 }
direct_meters { preamble { id: 0x15000001 name: "Ingress.rate" alias: "rate" } spec { unit: BYTES } direct_table_id: 0x02000001 }
counters { preamble { id: 0x12000001 name: "Ingress.drops" alias: "drops" } spec { unit: PACKETS } size: 16 }
meters { preamble { id: 0x14000001 name: "Ingress.limit" alias: "limit" } spec { unit: PACKETS } size: 4 }
registers {
  preamble { id: 0x16000001 name: "Ingress.seen" alias: "seen" }
  type_spec { bitstring { bit { bitwidth: 48 } } } size: 32
}
digests {
  preamble { id: 0x17000001 name: "learn_t" alias: "learn_t" }
  type_spec { struct { name: "learn_t" } }
}
value_sets {
  preamble { id: 0x03000001 name: "Parser.types" alias: "types" }
  match { id: 1 bitwidth: 16 match_type: EXACT } size: 2
}
controller_packet_metadata {
  preamble { id: 0x04000001 name: "packet_in" alias: "packet_in" }
  metadata { id: 1 name: "port" bitwidth: 9 } metadata { id: 2 name: "_pad" bitwidth: 7 }
}
controller_packet_metadata {
  preamble { id: 0x04000002 name: "packet_out" alias: "packet_out" }
  metadata { id: 1 name: "port" bitwidth: 9 } metadata { id: 2 name: "_pad" bitwidth: 7 }
}
type_info {
  structs { key: "learn_t" value {
    members { name: "mac" type_spec { bitstring { bit { bitwidth: 48 } } } }
    members { name: "port" type_spec { bitstring { bit { bitwidth: 9 } } } } } }
}
"""

DROP = 1
"""Index of Ingress.drop in the program: the order of P4INFO."""


@dataclass(slots=True)
class ModelEntry:
    """An entry of the model."""

    key: MatchKey
    priority: int
    target: EntryAction
    counter: CounterValue
    meter: MeterConfig | None
    idle_timeout_ns: int
    colors: ColorCounts = field(default_factory=ColorCounts)


@dataclass
class ModelPipeline:
    """p4switch.server.target_pipeline.Pipeline in dictionaries. `room` bounds entries over all tables, to make it full."""

    program: p4i.P4Info
    room: int = 1 << 30
    tables: dict[int, dict[int, ModelEntry]] = field(default_factory=dict)
    defaults: dict[int, ModelEntry] = field(default_factory=dict)
    members: dict[tuple[int, int], ActionCall] = field(default_factory=dict)
    groups: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    multicast: dict[int, list[Replica]] = field(default_factory=dict)
    sessions: dict[int, CloneSession] = field(default_factory=dict)
    value_sets: dict[int, tuple[MatchKey, ...]] = field(default_factory=dict)
    flushes: int = 0
    next_handle: int = 1
    refused: int = 0

    def __post_init__(self) -> None:
        self.tables = {i: {} for i in range(len(self.program.tables))}
        for i in self.tables:
            self.defaults[i] = ModelEntry((), 0, self.initial_default(i), CounterValue(), None, 0)
        self.counter_cells = [[CounterValue()] * c.size for c in self.program.counters]
        self.meter_cells: list[list[MeterConfig | None]] = [[None] * m.size for m in self.program.meters]
        self.color_cells = [[ColorCounts()] * m.size for m in self.program.meters]
        self.register_cells = [[0] * r.size for r in self.program.registers]
        for i, table in enumerate(self.program.tables):
            if table.has_initial_entries:
                self.insert_entry(i, ((6, 0xFF),), 0, EntryState(ActionCall(DROP)))

    def initial_entries(self, table: int) -> Sequence[InitialEntry]:
        return [
            InitialEntry(EntryHandle(h), e.key, e.priority, e.target, True)
            for h, e in self.tables[table].items()
            if isinstance(e.target, ActionCall)
        ]

    def initial_default(self, table: int) -> ActionCall:
        return ActionCall(DROP)

    def insert_entry(self, table: int, key: MatchKey, priority: int, entry: EntryState) -> EntryHandle:
        handle = EntryHandle(self.next_handle)
        self.next_handle += 1
        if sum(map(len, self.tables.values())) >= self.room:
            self.refused += 1
            return handle
        assert all(e.key != key or e.priority != priority for e in self.tables[table].values()), "duplicate"
        self.tables[table][handle] = ModelEntry(
            key,
            priority,
            entry.target,
            entry.counter or CounterValue(),
            entry.meter,
            entry.idle_timeout_ns,
            entry.colors or ColorCounts(),
        )
        return handle

    def modify_entry(self, table: int, handle: EntryHandle, target: EntryAction, idle_timeout_ns: int) -> None:
        if handle in self.tables[table]:
            self.tables[table][handle].target = target
            self.tables[table][handle].idle_timeout_ns = idle_timeout_ns

    def delete_entry(self, table: int, handle: EntryHandle) -> None:
        self.tables[table].pop(handle, None)

    def set_default(self, table: int, call: ActionCall) -> None:
        self.defaults[table].target = call

    def _entry(self, table: int, handle: EntryHandle | None) -> ModelEntry:
        return self.defaults[table] if handle is None else self.tables[table][handle]

    def entry_counter(self, table: int, handle: EntryHandle | None) -> CounterValue:
        return self._entry(table, handle).counter

    def set_entry_counter(self, table: int, handle: EntryHandle | None, value: CounterValue) -> None:
        self._entry(table, handle).counter = value

    def set_entry_meter(self, table: int, handle: EntryHandle | None, rates: MeterConfig | None) -> None:
        self._entry(table, handle).meter = rates

    def entry_colors(self, table: int, handle: EntryHandle | None) -> ColorCounts:
        return self._entry(table, handle).colors

    def set_entry_colors(self, table: int, handle: EntryHandle | None, counts: ColorCounts) -> None:
        self._entry(table, handle).colors = counts

    def entry_idle_ns(self, table: int, handle: EntryHandle) -> int:
        return 1_000_000

    def set_member(self, profile: int, member: int, call: ActionCall) -> None:
        self.members[profile, member] = call

    def delete_member(self, profile: int, member: int) -> None:
        del self.members[profile, member]

    def set_group(self, profile: int, group: int, members: Sequence[WeightedMember]) -> None:
        assert all((profile, m.member) in self.members for m in members), "group of an unknown member"
        self.groups[profile, group] = list(members)

    def delete_group(self, profile: int, group: int) -> None:
        del self.groups[profile, group]

    def set_multicast_group(self, group: int, replicas: Sequence[Replica] | None) -> None:
        self.multicast.pop(group, None)
        if replicas is not None:
            self.multicast[group] = list(replicas)

    def set_clone_session(self, session: int, clone: CloneSession | None) -> None:
        self.sessions.pop(session, None)
        if clone is not None:
            self.sessions[session] = clone

    def counters(self, counter: int, start: int, count: int) -> Sequence[CounterValue]:
        return self.counter_cells[counter][start : start + count]

    def set_counters(self, counter: int, start: int, values: Sequence[CounterValue]) -> None:
        self.counter_cells[counter][start : start + len(values)] = values

    def set_meters(self, meter: int, start: int, rates: Sequence[MeterConfig | None]) -> None:
        self.meter_cells[meter][start : start + len(rates)] = rates

    def meter_colors(self, meter: int, start: int, count: int) -> Sequence[ColorCounts]:
        return self.color_cells[meter][start : start + count]

    def set_meter_colors(self, meter: int, start: int, counts: Sequence[ColorCounts]) -> None:
        self.color_cells[meter][start : start + len(counts)] = counts

    def registers(self, register: int, start: int, count: int) -> Sequence[int]:
        return self.register_cells[register][start : start + count]

    def set_registers(self, register: int, start: int, values: Sequence[int]) -> None:
        self.register_cells[register][start : start + len(values)] = values

    def set_value_set(self, value_set: int, members: Sequence[MatchKey]) -> None:
        self.value_sets[value_set] = tuple(members)

    def flush(self) -> None:
        self.flushes += 1
        if self.refused:
            count, self.refused = self.refused, 0
            raise PipelineFullError(f"{count} entries refused")

    def snapshot(self) -> object:
        """Everything that a client can change, comparable; handles are not part of it."""
        return (
            {t: {(e.key, e.priority): e for e in entries.values()} for t, entries in self.tables.items()},
            self.defaults,
            self.members,
            self.groups,
            self.multicast,
            self.sessions,
            {k: v for k, v in self.value_sets.items() if v},
            self.counter_cells,
            self.meter_cells,
            self.register_cells,
        )


@dataclass(frozen=True)
class ModelProgram:
    """A 'compiled' program: a P4Info whose order gives the indexes."""

    p4info: p4i.P4Info

    @property
    def index(self) -> ProgramIndex:
        info = self.p4info

        def names(objects: Sequence[object]) -> dict[str, int]:
            return {o.preamble.name: i for i, o in enumerate(objects)}  # type: ignore[attr-defined]

        return ProgramIndex(
            tables=names(info.tables),
            actions=names(info.actions),
            action_profiles=names(info.action_profiles),
            counters=names([*info.counters, *info.direct_counters]),
            meters=names([*info.meters, *info.direct_meters]),
            registers=names(info.registers),
            digests=names(info.digests),
            value_sets=names(info.value_sets),
        )


class ModelTarget:
    """p4switch.server.target.Target: device configurations are P4Info texts; events are what a test puts in."""

    def __init__(self) -> None:
        self.pipeline: ModelPipeline | None = None
        self.sent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.pending: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.ports = {1, 2, 3}

    def compile(self, device_config: bytes, *, pushed: bool) -> ModelProgram:
        try:
            return ModelProgram(text_format.Parse(device_config.decode(), p4i.P4Info()))
        except (UnicodeDecodeError, text_format.ParseError) as error:
            raise ConfigError(f"model.p4:1:1: error: {error}") from error

    def prepare(self, program: ModelProgram) -> ModelPipeline:
        return ModelPipeline(program.p4info)

    def commit(self, pipeline: ModelPipeline) -> None:
        self.pipeline = pipeline

    def has_cpu_port(self) -> bool:
        return True

    def packet_out(self, frame: bytes) -> None:
        self.sent.put(frame)

    def events(self, timeout_s: float) -> Sequence[Event]:
        try:
            return [self.pending.get(timeout=min(timeout_s, 0.02))]
        except queue.Empty:
            return []

    def exists(self, port: int) -> bool:
        return port in self.ports


@dataclass
class ModelSwitch:
    """A running server over the model."""

    device: Device
    target: ModelTarget
    server: P4RuntimeServer

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def pipeline(self) -> ModelPipeline:
        assert self.target.pipeline is not None
        return self.target.pipeline


@pytest.fixture
def p4info() -> p4i.P4Info:
    return text_format.Parse(P4INFO, p4i.P4Info())


@pytest.fixture
def pipeline(p4info: p4i.P4Info) -> ModelPipeline:
    return ModelPipeline(p4info)


@pytest.fixture
def target() -> ModelTarget:
    return ModelTarget()


@pytest.fixture
def state(p4info: p4i.P4Info, pipeline: ModelPipeline, target: ModelTarget) -> ForwardingState:
    return ForwardingState(Schema.build(p4info, ModelProgram(p4info).index), pipeline, target)


@pytest.fixture
def config(p4info: p4i.P4Info) -> p4r.ForwardingPipelineConfig:
    """The configuration of P4INFO, ready for SetForwardingPipelineConfig."""
    message = p4r.ForwardingPipelineConfig(p4info=p4info, p4_device_config=P4INFO.encode())
    message.cookie.cookie = 99
    return message


@pytest.fixture
def device(target: ModelTarget) -> Iterator[Device]:
    device = Device(1, target)
    yield device
    device.close()


@pytest.fixture
def model_switch(device: Device, target: ModelTarget) -> Iterator[ModelSwitch]:
    """A server over the model, without a program yet."""
    with P4RuntimeServer(device, "127.0.0.1:0") as server:
        yield ModelSwitch(device, target, server)


@pytest.fixture
def model_p4info_text() -> str:
    return P4INFO


class Client:
    """A bare P4Runtime client: exactly the messages that a test wants, nothing added."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        call = self._channel.unary_unary
        self.write = self._unary("Write", p4r.WriteResponse, call)
        self.set_pipeline = self._unary("SetForwardingPipelineConfig", p4r.SetForwardingPipelineConfigResponse, call)
        self.get_pipeline = self._unary("GetForwardingPipelineConfig", p4r.GetForwardingPipelineConfigResponse, call)
        self.capabilities = self._unary("Capabilities", p4r.CapabilitiesResponse, call)
        self.read = self._unary("Read", p4r.ReadResponse, self._channel.unary_stream)
        self._streams: list[ClientStream] = []

    def _unary(self, name: str, response: type, call: Callable[..., Any]) -> Callable[..., Any]:
        return call(f"/p4.v1.P4Runtime/{name}", lambda m: m.SerializeToString(), response.FromString)

    def stream(self, election_id: int | None = None, role: str = "", device_id: int = 1) -> ClientStream:
        """Open a stream and, with an election id, wait for the answer to its arbitration."""
        stream = ClientStream(self._channel)
        self._streams.append(stream)
        if election_id is not None:
            stream.arbitrate(election_id, role, device_id)
        return stream

    def write_as(self, election_id: int, *updates: p4r.Update, role: str = "", **more: Any) -> None:
        request = p4r.WriteRequest(device_id=1, role=role, updates=updates, **more)
        request.election_id.high, request.election_id.low = election_id >> 64, election_id & (1 << 64) - 1
        self.write(request, timeout=10)

    def configure(
        self, config: p4r.ForwardingPipelineConfig | None, election_id: int = 1, action: str = "VERIFY_AND_COMMIT"
    ) -> None:
        request = p4r.SetForwardingPipelineConfigRequest(device_id=1, action=action)
        request.election_id.low = election_id
        if config is not None:
            request.config.CopyFrom(config)
        self.set_pipeline(request, timeout=10)

    def read_all(self, *queries: p4r.Entity) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=1, entities=queries)
        return [entity for response in self.read(request, timeout=10) for entity in response.entities]

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._channel.close()


class ClientStream:
    """A StreamChannel: what comes in is read by a thread, so that a test can wait with a deadline."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._out: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._in: queue.SimpleQueue[p4r.StreamMessageResponse | grpc.RpcError] = queue.SimpleQueue()
        method = channel.stream_stream(
            "/p4.v1.P4Runtime/StreamChannel",
            lambda m: m.SerializeToString(),
            p4r.StreamMessageResponse.FromString,
        )
        self._call = method(iter(self._out.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, **kind: Any) -> None:
        self._out.put(p4r.StreamMessageRequest(**kind))

    def arbitrate(self, election_id: int | None, role: str = "", device_id: int = 1) -> p4r.MasterArbitrationUpdate:
        update = p4r.MasterArbitrationUpdate(device_id=device_id)
        if role:
            update.role.name = role
        if election_id is not None:
            update.election_id.high, update.election_id.low = election_id >> 64, election_id & (1 << 64) - 1
        self.send(arbitration=update)
        return self.receive().arbitration

    def receive(self, timeout_s: float = 10) -> p4r.StreamMessageResponse:
        """The next message. Raises the RpcError that ended the stream."""
        item = self._in.get(timeout=timeout_s)
        if isinstance(item, grpc.RpcError):
            raise item
        return item

    def _read(self) -> None:
        try:
            for message in self._call:
                self._in.put(message)
        except grpc.RpcError as error:
            self._in.put(error)

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()
        self._reader.join(timeout=10)


@pytest.fixture
def client(model_switch: ModelSwitch) -> Iterator[Client]:
    """A client of the server over the model; there is no program yet."""
    client = Client(model_switch.address)
    yield client
    client.close()


@pytest.fixture
def configured(client: Client, config: p4r.ForwardingPipelineConfig) -> Client:
    """A client whose stream 1 is primary and which has loaded P4INFO's program."""
    stream = client.stream(1)
    client.configure(config)
    client.primary = stream  # type: ignore[attr-defined]
    return client
