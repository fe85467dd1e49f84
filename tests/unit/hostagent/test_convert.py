"""What a controller says is checked before anything is made of it: numbers that nothing has end the stream."""

from __future__ import annotations

import pytest

import controlplane.core.limits
from hostagent import limits
from hostagent.controller.convert import RemoteProtocolError, events_of
from hostagent.core import effects, events
from kvproto.limits import MEMBERS_MAX
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import Fabric
from p4switch.ports import PORT_NUMBER_MAX
from tests.digests import digest
from tests.unit.hostagent.core_harness import PAGE, Scene

KEY = b"k" * 16
ADDRESS = bytes((10, 75, 0, 1))


def said(**message: object) -> list[object]:
    return list(events_of(rpc.ToAgent(**message), Fabric()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"membership": rpc.Membership(member=MEMBERS_MAX)}, f"member {MEMBERS_MAX}: a switch has members 0 to 63"),
        ({"membership": rpc.Membership(member=(1 << 32) - 2)}, "member 4294967294: a switch has members"),
        ({"welcome": rpc.Welcome(member=1 << 31)}, "member 2147483648"),
        (
            {"directory": rpc.DirectoryDelta(nodes=[rpc.Node(name="n1", data_ip=ADDRESS, member=1 << 20)])},
            "member 1048576",
        ),
        ({"directory": rpc.DirectoryDelta(chunks=[rpc.ChunkEntry(key=KEY)])}, "a chunk of 0 bytes"),
        (
            {"directory": rpc.DirectoryDelta(chunks=[rpc.ChunkEntry(key=KEY, size_bytes=limits.CHUNK_BYTES_MAX + 1)])},
            "a chunk of 4294967297 bytes",
        ),
        ({"directory": rpc.DirectoryDelta(chunks=[rpc.ChunkEntry(key=b"short", size_bytes=1)])}, "a key of 5 bytes"),
        (
            {
                "directory": rpc.DirectoryDelta(
                    chunks=[rpc.ChunkEntry(key=KEY, size_bytes=1, digest=b"\x01" + bytes(8))]
                )
            },
            "a digest by xxh3, the fabric's are by blake3",
        ),
    ],
)
def test_what_cannot_be_is_refused(message: dict[str, object], why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        said(**message)


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
