"""p4switch, running: P4Runtime requests of anybody at its server, frames of members and strangers at its ports.

Where the C compiler has sanitizers, both run with runtime and generated program compiled for them.
"""

from __future__ import annotations

import contextlib
import time
from random import Random
from typing import Any, ClassVar

import finsy as fy
import grpc
from google.protobuf.message import DecodeError

from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.testing import memory_switch
from p4switch_server.conftest import Client
from p4switch_server.control_session import ControlSession
from tests.dataplane.bench import ALL_PORTS, Bench
from tests.dataplane.frames import (
    CONTROL_PORT,
    FENCE_ETHERTYPE,
    FROM_SWITCH_DSCP,
    GROUP_IP,
    GROUP_MAC,
    POOL_IP,
    POOL_MAC,
    Control,
    Host,
    Op,
    Segment,
    arp_request,
    control_frame,
    here_frame,
)
from tests.dataplane.targets import V1MODEL
from tests.fuzz.protobufs import Maker
from tests.fuzz.reached import ROOT
from tests.fuzz.target import Case, check

_PROGRAM = ROOT / "p4switch/tests/p4switch_server/matching.p4"
_ANSWER_S = 20.0
_KINDS = (
    p4r.WriteRequest,
    p4r.WriteRequest,
    p4r.ReadRequest,
    p4r.StreamMessageRequest,
    p4r.SetForwardingPipelineConfigRequest,
)
_NEVER = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
)


def _pools(p4info: p4i.P4Info) -> dict[str, list[Any]]:
    """Numbers that mean something to a program."""

    def ids(objects: Any) -> list[Any]:
        return [*(one.preamble.id for one in objects), 1, 0xFFFF_FFFF]

    return {
        "table_id": ids(p4info.tables),
        "action_id": ids(p4info.actions),
        "counter_id": ids(p4info.counters),
        "meter_id": ids(p4info.meters),
        "register_id": ids(p4info.registers),
        "value_set_id": ids(p4info.value_sets),
        "action_profile_id": ids(p4info.action_profiles),
        "digest_id": ids(p4info.digests),
        "device_id": [1, 1, 1, 2],
        "high": [0],
        "low": [1, 1, 1, 2],
        "role": [""],
        "name": [""],
        "role_id": [0],
        "field_id": [1, 2, 3, 4],
        "param_id": [1, 2],
        "member_id": [1, 2, 3],
        "group_id": [1, 2],
        "index": [0, 1, 3, 7, 8, -1],
        "prefix_len": [0, 8, 32, 33, -1],
        "priority": [0, 1, 2, 5],
        "value": [b"", b"\0", b"\1", b"\xff", b"\x0a\0\0\0", b"\0\1", b"\xff" * 256, b"\xff" * 257],
        "mask": [b"\xff", b"\xff" * 4, b"\0"],
        "low_": [b"\1"],
        "egress_port": [1, 2, 3, 511],
        "instance": [0, 1],
        "multicast_group_id": [1, 2, 65535],
        "session_id": [1, 2, 0],
        "cir": [0, 1, -1, 1 << 62],
        "cburst": [0, 1, -1],
        "pir": [0, 1, 1 << 62],
        "pburst": [0, 1],
        "packet_length_bytes": [0, 64],
        "weight": [0, 1, -1],
        "bitstring": [b"\0", b"\1"],
    }


class P4Runtime:
    """A step: which request (its first byte), and the request. Requests with another first byte are frames."""

    name: ClassVar[str] = "p4runtime"
    checks: ClassVar[str] = "requests are done or refused with a status of P4Runtime; the whole state stays readable"
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = (b"\x08\x01", b"\x0a\0\0\0", b"\xff" * 16, b"\x10\x01", b"\x18\x00")

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._switch = self._undo.enter_context(memory_switch(_PROGRAM, ports=2))
        self._p4info = self._switch.switch.p4info
        self._client = Client(self._switch.address)
        self._undo.callback(self._client.close)
        self._stream = self._client.stream(1)
        config = self._client.get_pipeline(
            p4r.GetForwardingPipelineConfigRequest(device_id=1), timeout=_ANSWER_S, wait_for_ready=True
        ).config
        self._config = config.p4_device_config
        self._pools = _pools(self._p4info)

    def fresh(self, random: Random) -> Case:
        return [self._step(random) for _ in range(random.choice((1, 3, 10)))]

    def _step(self, random: Random) -> bytes:
        if random.random() < 0.2:
            return (
                bytes((len(_KINDS),))
                + random.choice((b"\0\1", random.randbytes(2)))
                + random.randbytes(random.choice((8, 58)))
            )
        number = random.choice((0, 0, 0, 0, 2, 2, 3, 4))
        request = Maker(random, self._pools, fill=random.choice((0.4, 0.8))).filled(_KINDS[number]())
        if isinstance(request, p4r.SetForwardingPipelineConfigRequest):
            # What is committed is compiled, which takes seconds: the compiler has a target of its own.
            request.action = random.choice((1, 4, 99, 0))
            request.config.p4_device_config = random.choice((b"", random.randbytes(40)))
        return bytes((number,)) + request.SerializeToString()

    def run(self, case: Case) -> None:
        for step in case:
            if not step:
                continue
            number = step[0] % (len(_KINDS) + 1)
            if number == len(_KINDS):
                self._switch.send(1 + len(step) % 2, step[1:].ljust(14, b"\0"))
                continue
            try:
                request = _KINDS[number].FromString(step[1:])
            except DecodeError:
                continue
            self._ask(request)
        self._look()

    def _ask(self, request: Any) -> None:
        try:
            match request:
                case p4r.WriteRequest():
                    self._client.write(request, timeout=_ANSWER_S)
                case p4r.ReadRequest():
                    list(self._client.read(request, timeout=_ANSWER_S))
                case p4r.StreamMessageRequest():
                    # On a stream of its own: one that is illegal ends its stream.
                    stream = self._client.stream(None)
                    kind = request.WhichOneof("update") or "other"
                    stream.send(**{kind: getattr(request, kind)})
                    with contextlib.suppress(grpc.RpcError):
                        stream.receive(_ANSWER_S)
                    stream.close()
                case p4r.SetForwardingPipelineConfigRequest():
                    if request.action not in (2, 3, 5):
                        self._client.set_pipeline(request, timeout=_ANSWER_S)
        except grpc.RpcError as error:
            said = error.details() or ""
            check(error.code() not in _NEVER, f"a request ends with {error.code().name}: {said[:300]}")
            check("Exception" not in said, f"an exception reaches a client: {said[:300]}")

    def _look(self) -> None:
        queries = (
            p4r.Entity(table_entry=p4r.TableEntry()),
            p4r.Entity(value_set_entry=p4r.ValueSetEntry()),
            p4r.Entity(register_entry=p4r.RegisterEntry()),
            p4r.Entity(meter_entry=p4r.MeterEntry()),
            p4r.Entity(counter_entry=p4r.CounterEntry()),
        )
        for query in queries:
            for _ in self._client.read(p4r.ReadRequest(device_id=1, entities=[query]), timeout=_ANSWER_S):
                pass
        for frames in self._switch.take_all(settled_after=0).values():
            check(all(len(frame) < 10_000 for frame in frames), "a frame leaves that nobody could have sent")

    def close(self) -> None:
        self._undo.close()


_KEY = b"fuzz key........"
_SEGMENTS = 4
_REGISTERS_EVERY = 16
"""Reading all interest sets takes longer than a case."""


class _InProcess:
    """`tests.dataplane.targets.Target` in this process, where sanitizers see its memory."""

    name = "p4switch in process"
    profile = V1MODEL
    segment_bytes = 4096
    ports = ALL_PORTS
    can_read_registers = True

    def __init__(self) -> None:
        self.used_cells: set[tuple[str, int]] = set()
        defines = dict(size.removeprefix("-D").split("=") for size in V1MODEL.sizes)
        with contextlib.ExitStack() as undo:
            self._switch = undo.enter_context(
                memory_switch(V1MODEL.program, ports=ALL_PORTS, defines={"SEGMENT_BYTES": "4096", **defines})
            )
            self.control = ControlSession(self._switch.address, fy.SwitchOptions(), V1MODEL.digests)
            undo.callback(self.control.close)
            self._undo = undo.pop_all()

    def send(self, port: int, frame: bytes) -> None:
        self._switch.send(port, frame)

    def receive(self, timeout_s: float) -> list[tuple[int, bytes]]:
        until_s = time.monotonic() + timeout_s
        while not (frames := list(self._switch.switch.runtime.collect())) and time.monotonic() < until_s:
            time.sleep(0.0005)
        return frames

    def close(self) -> None:
        self._undo.close()


class Packets:
    """A step: a port (its first byte), and a frame. The switch runs kvcast's program with members on ports 1 to 8."""

    name: ClassVar[str] = "packets"
    checks: ClassVar[str] = (
        "the switch goes on; nothing malformed reaches a member from the switch; a stranger joins nothing"
    )
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = (
        _KEY,
        GROUP_IP,
        GROUP_MAC,
        POOL_IP,
        POOL_MAC,
        b"\x08\x00\x45",
        b"\x81\x00",
        b"\x12\xb9",
        b"\x12\xb7",
        b"\xff" * 6,
    )

    def __init__(self) -> None:
        self._target = _InProcess()
        profile = self._target.profile
        flood = fy.P4MulticastGroupEntry(profile.flood_group, replicas=tuple((port, 1) for port in ALL_PORTS))
        digests = [fy.P4DigestEntry(name, max_list_size=1) for name in profile.digests]
        self._target.control.insert([flood, profile.session, *digests])
        self._bench = Bench(self._target, "fuzz")
        self._bench.attach()
        self._bench.fabric()
        self._exchanges = 0
        content = Random(3).randbytes(_SEGMENTS * self._target.segment_bytes)
        size = self._target.segment_bytes
        self._segments = [
            Segment(Host(1), _KEY, at, _SEGMENTS, content[at * size : (at + 1) * size]) for at in range(_SEGMENTS)
        ]
        self._bench.cache(self._segments, 0)

    def fresh(self, random: Random) -> Case:
        return [bytes((random.randrange(1, 10),)) + self._frame(random) for _ in range(random.choice((1, 4, 12)))]

    def _frame(self, random: Random) -> bytes:
        sender, other = Host(random.randrange(1, 10)), Host(random.randrange(1, 10))
        segment = random.choice(self._segments)
        match random.randrange(6):
            case 0:
                return segment.frame()
            case 1:
                return segment.fill_frame(sender=random.choice((None, sender)))
            case 2:
                return here_frame(sender, random.choice((_KEY, bytes(16))))
            case 3:
                return arp_request(sender, other.ip)
            case _:
                op = random.choice((*Op, 0, 9, 16))
                amount, first = random.choice((0, 1, _SEGMENTS, 65535)), random.choice((0, 1, _SEGMENTS - 1, 1 << 31))
                control = Control(
                    op,
                    random.choice(
                        (_KEY, b"other key......."),
                    ),
                    first,
                    random.choice((_SEGMENTS, 0, 1 << 20)),
                    amount,
                    random.choice((0, 0x8000, 0xFFFF)),
                    random.randrange(64),
                    random.randrange(9),
                    random.choice((0, 1, 255)),
                )
                port = random.choice((CONTROL_PORT, CONTROL_PORT, 0))
                return control_frame(sender, control, other, src_port=port)

    def run(self, case: Case) -> None:
        frames = [
            (1 + (step[0] - 1) % len(ALL_PORTS), step[1 : 1500 + 4096].ljust(14, b"\0"))
            for step in case
            if step and step[13:15] != FENCE_ETHERTYPE.to_bytes(2, "big")
        ]
        if not frames:
            return
        for received in self._bench.exchange(*frames).values():
            for frame in received:
                if (
                    len(frame) > 42
                    and frame[12:14] == b"\x08\x00"
                    and frame[15] >> 2 == FROM_SWITCH_DSCP
                    and frame[6:12] != POOL_MAC
                ):
                    check(len(frame) >= 82, "a cut frame bears the switch's mark")
        self._exchanges += 1
        if self._exchanges % _REGISTERS_EVERY == 0:
            cells = self._target.control.read(fy.P4RegisterEntry("interest_members"))
            check(not any(int(cell.data) >> Host(9).member & 1 for cell in cells), "a stranger is in an interest set")

    def close(self) -> None:
        self._target.close()
