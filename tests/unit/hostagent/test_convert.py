"""What a controller says is checked before anything is made of it: a record that cannot be is refused, and the rest of
its message counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

import controlplane.core.limits
from hostagent import limits
from hostagent.controller.convert import RemoteProtocolError, events_of, fabric_of
from hostagent.controller.refusals import TOLD_AGAIN_S, Refusals
from hostagent.core import effects, events
from hostagent.core.directory import SequenceGapError
from hostagent.core.work import TaskStatus
from kvproto.limits import MEMBERS_MAX, PREFIX_CHUNKS_MAX
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import Fabric
from p4switch.ports import PORT_NUMBER_MAX
from tests.digests import digest
from tests.unit.hostagent.core_harness import PAGE, Scene

KEY = b"k" * 16
ADDRESS = bytes((10, 75, 0, 1))


def said(refusals: Refusals | None = None, **message: Any) -> list[Any]:
    return list(events_of(rpc.ToAgent(**message), Fabric(), refusals or Refusals()))


def chunk(**changes: Any) -> rpc.ChunkEntry:
    return rpc.ChunkEntry(**{"key": KEY, "size_bytes": 4096, "digest": digest(1), **changes})


BAD_CHUNKS = [
    (chunk(size_bytes=0), "size_bytes 0 is not in 1.."),
    (chunk(size_bytes=limits.CHUNK_BYTES_MAX + 1), "size_bytes 4294967297 is not in"),
    (chunk(key=b"short"), "key has 5 bytes"),
    (chunk(parent=b"short"), "parent has 5 bytes"),
    (chunk(parent=KEY), "is its own parent"),
    (chunk(position=PREFIX_CHUNKS_MAX), f"position {PREFIX_CHUNKS_MAX}"),
    (chunk(digest=b"\x01" + bytes(8)), "a digest by xxh3, the fabric's are by blake3"),
    (chunk(digest=b""), "digest"),
]


@pytest.mark.parametrize(
    ("message", "what", "why"),
    [
        ({"membership": rpc.Membership(member=MEMBERS_MAX)}, "member", f"member {MEMBERS_MAX}: a switch has members"),
        ({"membership": rpc.Membership(member=(1 << 32) - 2)}, "member", "member 4294967294: a switch has members"),
        ({"welcome": rpc.Welcome(member=1 << 31)}, "member", "member 2147483648"),
        ({"welcome": rpc.Welcome(fabric=rpc.Fabric(pool_ip=b"1"))}, "pool_address", "an address of 1 bytes"),
        ({"switch_state": rpc.SwitchState(present=True, here=b"1")}, "here", "key has 1 bytes"),
        ({"task": rpc.Task(drop=rpc.Drop(keys=[KEY, b"1"]))}, "task", "key has 1 bytes"),
        (
            {"directory": rpc.DirectoryDelta(nodes=[rpc.Node(name="n1", data_ip=ADDRESS, member=1 << 20)])},
            "node",
            "member 1048576",
        ),
        ({"directory": rpc.DirectoryDelta(nodes=[rpc.Node(name="n1")])}, "node", "an address of 0 bytes"),
        ({"directory": rpc.DirectoryDelta(chunks_gone=[b"1"])}, "chunk_gone", "key has 1 bytes"),
        *(({"directory": rpc.DirectoryDelta(chunks=[bad])}, "chunk", why) for bad, why in BAD_CHUNKS),
    ],
)
def test_what_cannot_be_is_refused(message: dict[str, object], what: str, why: str) -> None:
    refusals = Refusals()
    said(refusals, **message)
    assert refusals.counts == {what: 1}
    ((told, reason),) = refusals.news(0.0)
    assert told == what
    assert why in reason


def test_one_bad_record_costs_that_record() -> None:
    refusals = Refusals()
    good = [chunk(key=bytes(15) + bytes([number])) for number in range(3)]
    claims = rpc.Claims(
        made=[
            rpc.Claim(keys=[KEY, b"bad", KEY[::-1]], size_bytes=1, eta_ms=[1, 2, 3]),
            rpc.Claim(keys=[KEY], size_bytes=1),
            rpc.Claim(keys=[KEY], eta_ms=[1]),
        ],
        withdrawn=[KEY, b"bad"],
    )
    variants = [rpc.Variant(size_bytes=1, digest=digest(2)), rpc.Variant(digest=digest(2))]
    (event,) = said(
        refusals,
        directory=rpc.DirectoryDelta(
            sequence=7,
            nodes=[rpc.Node(name="n1", data_ip=ADDRESS), rpc.Node(name="n2")],
            chunks=[good[0], *(bad for bad, _ in BAD_CHUNKS), *good[1:], chunk(others=variants)],
            chunks_gone=[KEY, b"bad"],
            claims=[rpc.NodeClaims(node=1, claims=claims)],
        ),
    )
    delta = event.delta
    assert delta.sequence == 7
    assert [node.name for node in delta.nodes] == ["n1"]
    assert [entry.key for entry in delta.chunks] == [*(one.key for one in good), KEY]
    assert [one.digest for one in delta.chunks[-1].others] == [digest(2)]
    assert delta.chunks_gone == (KEY,)
    assert [one.key for one in delta.claims[0].made] == [KEY, KEY[::-1]]
    assert delta.claims[0].withdrawn == (KEY,)
    assert refusals.counts == {
        "node": 1, "chunk": len(BAD_CHUNKS), "chunk_gone": 1, "claim": 3, "withdrawn": 1, "variant": 1
    }  # fmt: skip


def test_the_log_has_one_line_of_a_kind_in_a_minute() -> None:
    refusals = Refusals()
    for number in range(1000):
        refusals.add("chunk", f"reason {number}")
        refusals.add("node", "x" * 1000)
        expected = [("chunk", f"reason {number}"), ("node", "x" * 200)] if number % 600 == 0 else []
        assert refusals.news(number * TOLD_AGAIN_S / 600) == expected
    assert refusals.counts == {"chunk": 1000, "node": 1000}


def test_who_gave_a_task_that_cannot_be_hears_why() -> None:
    scene = Scene()
    for event in said(task=rpc.Task(task=9, fetch=rpc.Fetch(keys=[KEY, b"bad"]))):
        scene.say(event)
    (end,) = scene.take(effects.ReportTaskEnd)
    assert (end.task, end.status, end.detail) == (9, TaskStatus.REFUSED, "key has 3 bytes, not 16")
    scene.close()


_WORDS = st.sampled_from([0, 1, 5, MEMBERS_MAX, 1 << 16, (1 << 32) - 1])
_BYTES = st.sampled_from([b"", KEY, bytes(16), ADDRESS, b"short", digest(1), b"\x01" + bytes(8)])
_SCALARS: dict[int, Callable[[Any], st.SearchStrategy[Any]]] = {
    FieldDescriptor.CPPTYPE_BOOL: lambda _: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: lambda _: st.sampled_from(["", "n1", "x" * 300, "\x1b[1m"]),
    FieldDescriptor.CPPTYPE_ENUM: lambda field: st.sampled_from(sorted(field.enum_type.values_by_number)),
    FieldDescriptor.CPPTYPE_FLOAT: lambda _: st.floats(width=32),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda _: st.floats(),
    FieldDescriptor.CPPTYPE_INT32: lambda _: st.sampled_from([0, 1, -1, (1 << 31) - 1]),
    FieldDescriptor.CPPTYPE_INT64: lambda _: st.sampled_from([0, 1, -1, (1 << 63) - 1]),
    FieldDescriptor.CPPTYPE_UINT32: lambda _: _WORDS,
    FieldDescriptor.CPPTYPE_UINT64: lambda _: st.one_of(_WORDS, st.just((1 << 64) - 1)),
}


def fill(draw: st.DrawFn, message: Message, depth: int = 0) -> None:
    """Give fields of a message values of their types, whatever these mean."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if depth and draw(st.integers(0, 3)) == 0:
            continue
        is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        if field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                if is_message:
                    fill(draw, getattr(message, field.name).add(), depth + 1)
                else:
                    getattr(message, field.name).append(draw(scalar(field)))
        elif is_message:
            fill(draw, getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, draw(scalar(field)))


def scalar(field: Any) -> st.SearchStrategy[Any]:
    is_bytes = field.type == FieldDescriptor.TYPE_BYTES
    return _BYTES if is_bytes else _SCALARS[field.cpp_type](field)


@st.composite
def messages(draw: st.DrawFn, kind: str) -> rpc.ToAgent:
    message = rpc.ToAgent()
    inner = getattr(message, kind)
    inner.SetInParent()
    fill(draw, inner, 1)
    return message


KINDS = [one.name for one in rpc.ToAgent.DESCRIPTOR.oneofs_by_name["message"].fields]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, derandomize=True, deadline=None)
@given(data=st.data())
def test_whatever_a_controller_says_the_agent_goes_on(kind: str, data: st.DataObject) -> None:
    """All messages, of any values: what is taken of them, the core takes, too."""
    message = data.draw(messages(kind))
    fabric = Fabric(segment_bytes=PAGE)
    if kind == "welcome":
        try:
            fabric = fabric_of(message.welcome.fabric, fabric)
        except RemoteProtocolError:
            return  # without a fabric nothing goes
    scene = Scene()
    scene.say(events.Welcomed(7, 0, None, PAGE, None, 0, 1.0))
    for event in events_of(message, fabric, Refusals()):
        try:
            scene.say(event)
        except SequenceGapError:
            return  # a delta is lost: another stream begins with all of it
    scene.pass_ms(100)
    scene.close()


def test_the_last_member_and_the_largest_chunk_are_fine() -> None:
    assert said(membership=rpc.Membership(member=MEMBERS_MAX - 1)) == [events.MemberGiven(MEMBERS_MAX - 1)]  # type: ignore[arg-type]
    delta = rpc.DirectoryDelta(chunks=[rpc.ChunkEntry(key=KEY, size_bytes=limits.CHUNK_BYTES_MAX, digest=digest(1))])
    assert len(said(directory=delta)) == 1


def test_no_controller_makes_a_heart_race() -> None:
    scene = Scene()
    scene.say(events.Welcomed(7, 0, None, PAGE, None, 0, 0.001))
    scene.take(effects.BeatHeart)
    scene.pass_ms(100)
    assert len(scene.take(effects.BeatHeart)) == 10
    scene.close()


def test_the_ports_of_a_switch_are_the_same_everywhere() -> None:
    assert limits.SWITCH_PORT_MAX == controlplane.core.limits.SWITCH_PORT_MAX == PORT_NUMBER_MAX
