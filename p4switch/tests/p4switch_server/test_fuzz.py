# ruff: noqa: E501, ISC004 - messages in text form
"""Random but plausible requests: refused or done, never an internal error, never half done."""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.forwarding import ForwardingState
from p4switch.server.migration import carry_over
from p4switch.server.schema import Schema
from p4switch.server.status import Code, StatusError

IDS = [0x02000001, 0x02000002, 0x02000003, 0x02000004, 0x02000005, 0x01000001, 0x01000002, 0x01000003, 0x11000001,
       0x12000001, 0x14000001, 0x16000001, 0x17000001, 0x03000001, 0, 1, 2, 3, 0xFFFFFFFF]  # fmt: skip
ID_FIELDS = {
    "table_id": IDS[:5],
    "action_id": IDS[5:8],
    "action_profile_id": [IDS[8]],
    "counter_id": [IDS[9]],
    "meter_id": [IDS[10]],
    "register_id": [IDS[11]],
    "digest_id": [IDS[12]],
    "value_set_id": [IDS[13]],
}
BYTES = [b"", b"\0", b"\1", b"\6", b"\xff", b"\x0a\0\0\0", b"\0\0\1", b"\xff" * 7, b"\x01" * 40]
INTEGERS = [0, 1, 2, 3, 4, 8, 9, 31, 32, 33, 511, 512]
DEPTH_MAX = 7


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of a field: mostly such as make sense, sometimes anything that its type can hold."""
    cpp = field.cpp_type
    if cpp == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([v.number for v in field.enum_type.values])
    if cpp == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.sampled_from(BYTES) | st.binary(max_size=9)
    if field.type == FieldDescriptor.TYPE_STRING:
        return st.sampled_from(["", "x"])
    signed = cpp in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    bits = 32 if cpp in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    anything = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)
    known = ID_FIELDS.get(field.name)
    return st.sampled_from(known or INTEGERS) | st.sampled_from(INTEGERS) | anything


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> dict[str, Any]:
    """Fields for a message, as keyword arguments of its class; one field of each oneof at most."""
    fields: dict[str, Any] = {}
    oneofs = {o.name: draw(st.sampled_from(list(o.fields))).name for o in descriptor.oneofs}
    for field in descriptor.fields:
        chosen = field.containing_oneof is not None and oneofs[field.containing_oneof.name] == field.name
        if field.containing_oneof is not None and not chosen:
            continue
        if not chosen and draw(st.integers(0, 3)) == 0:
            continue
        if field.message_type is None:
            value: st.SearchStrategy[Any] = scalars(field)
        elif (
            depth >= DEPTH_MAX
            or field.message_type.full_name.startswith("google.")
            or field.message_type.GetOptions().map_entry
        ):
            continue
        else:
            value = messages(field.message_type, depth + 1)
        fields[field.name] = draw(st.lists(value, max_size=2)) if field.is_repeated else draw(value)
    return fields


def built(fields: dict[str, Any]) -> p4r.Update:
    return p4r.Update(**fields)


UPDATES = messages(p4r.Update.DESCRIPTOR).map(built)
QUERIES = messages(p4r.Entity.DESCRIPTOR).map(lambda fields: p4r.Entity(**fields))

FUZZ = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

VALID = [
    'table_entry { table_id: 0x02000001 match { field_id: 1 lpm { value: "\\012\\000\\000\\000" prefix_len: 8 } } '
    "action { action { action_id: 0x01000003 } } counter_data { packet_count: 5 } }",
    'table_entry { table_id: 0x02000002 match { field_id: 1 exact { value: "\\006" } } priority: 2 '
    "action { action { action_id: 0x01000002 } } }",
    "action_profile_member { action_profile_id: 0x11000001 member_id: 1 action { action_id: 0x01000002 } }",
    "action_profile_member { action_profile_id: 0x11000001 member_id: 2 action { action_id: 0x01000002 } }",
    "action_profile_group { action_profile_id: 0x11000001 group_id: 1 members { member_id: 1 weight: 1 } }",
    'table_entry { table_id: 0x02000003 match { field_id: 1 exact { value: "\\001" } } action { action_profile_group_id: 1 } }',
    "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { egress_port: 1 } } }",
    "digest_entry { digest_id: 0x17000001 }",
]
KINDS = st.sampled_from([p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE])
VALID_UPDATES = st.builds(
    lambda kind, text: p4r.Update(type=kind, entity=text_format.Parse(text, p4r.Entity())),
    KINDS,
    st.sampled_from(VALID),
)


def fresh(p4info: p4i.P4Info, target: Any) -> ForwardingState:
    schema, program = compiled(p4info.SerializeToString(), target)
    return ForwardingState(schema, target.prepare(program), target)


@functools.cache
def compiled(p4info: bytes, target: Any) -> tuple[Schema, Any]:
    """The same program for all examples of a test."""
    message = p4i.P4Info.FromString(p4info)
    program = target.compile(text_format.MessageToString(message).encode(), pushed=True)
    return Schema.build(message, program.index), program


@FUZZ
@given(batch=st.lists(UPDATES | VALID_UPDATES, max_size=6), atomicity=st.sampled_from([0, 1, 2]))
def test_writes_are_done_or_refused(p4info, target, batch, atomicity):
    state = fresh(p4info, target)
    before = copy.deepcopy(state.pipeline.snapshot())
    outcomes = state.write(batch, atomicity)
    assert len(outcomes) == len(batch)
    if all(outcomes) or (atomicity and any(outcomes)):
        assert state.pipeline.snapshot() == before, "all refused, and something changed"
    twin = fresh(p4info, target)
    carry_over(state, twin)
    assert twin.pipeline.snapshot() == state.pipeline.snapshot(), "what is read, written elsewhere, is not the same"


@FUZZ
@given(batch=st.lists(VALID_UPDATES, max_size=6), query=QUERIES)
def test_reads_answer_or_are_refused(p4info, target, batch, query):
    state = fresh(p4info, target)
    state.write(batch, 0)
    try:
        entities = list(state.read(query))
    except StatusError:
        return
    assert all(e.WhichOneof("entity") == query.WhichOneof("entity") for e in entities)


@settings(FUZZ, max_examples=50)
@given(fields=messages(p4i.P4Info.DESCRIPTOR, 3))
def test_any_p4info_is_accepted_or_refused(p4info, target, fields):
    program = target.compile(text_format.MessageToString(p4info).encode(), pushed=True)
    garbled = p4i.P4Info(**fields)
    garbled.MergeFrom(p4info)
    with contextlib.suppress(StatusError):
        Schema.build(garbled, program.index)


class Sink:
    """Counts what a client would get."""

    def __init__(self) -> None:
        self.sent: list[p4r.StreamMessageResponse] = []
        self.ended: list[Code] = []

    def send(self, message: p4r.StreamMessageResponse, *, droppable: bool) -> None:
        message.SerializeToString()
        self.sent.append(message)

    def end(self, code: Code, message: str) -> None:
        self.ended.append(code)


STREAM_MESSAGES = messages(p4r.StreamMessageRequest.DESCRIPTOR).map(lambda fields: p4r.StreamMessageRequest(**fields))


@settings(FUZZ, max_examples=60)
@given(batch=st.lists(STREAM_MESSAGES, max_size=8))
def test_stream_messages_are_answered_or_ignored(device, config, batch):
    """One device for all examples, as it would be: streams come and go, and leave nothing behind."""
    device.load(config)
    sink = Sink()
    stream = device.open_stream(sink)
    first = p4r.StreamMessageRequest()
    first.arbitration.device_id = 1
    first.arbitration.election_id.high = (1 << 64) - 1
    first.arbitration.election_id.low = (1 << 64) - 1
    for message in [first, *batch]:
        device.stream_message(stream, message)
    device.close_stream(stream)
    assert sink.sent[0].arbitration.status.code == Code.OK
    assert set(sink.ended) <= {Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.NOT_FOUND}
