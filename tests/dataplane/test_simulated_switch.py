"""The simulator's model of the switch does what the switch does.

`kvsim` runs hundreds of nodes around a model of the data plane. Here the same random operations
go through the model and through the real program, and every packet that comes out of either must be the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from kvchunk.ids import ChunkKey
from kvproto.ids import Address, Member
from kvsim.bodies import CONTROL_BYTES, ControlBody, DataBody, FillBody
from kvsim.chance import Chance
from kvsim.engine import Engine
from kvsim.link import Link, Packet
from kvsim.switch import Cached, SwitchModel
from tests.dataplane.bench import MEMBER_PORTS, Bench
from tests.dataplane.frames import (
    CONTROL_PORT,
    FROM_SWITCH_DSCP,
    Control,
    Flag,
    Host,
    Op,
    Segment,
    control_frame,
    parse,
)

OPERATIONS = 60
CHUNKS = 3
SEGMENTS = 8
HOLDER_PORT = 1

Emitted = dict[int, list[tuple[object, ...]]]
"""What came out of each port, in order."""


def address(host: Host) -> Address:
    return Address(int.from_bytes(host.ip, "big"))


@dataclass(slots=True)
class Collector:
    """A port of the model."""

    port: int
    emitted: Emitted

    def deliver(self, packet: Packet, at_ns: int) -> None:
        body = packet.body
        if isinstance(body, ControlBody):
            outcome: tuple[object, ...] = ("control", Control.unpack(body.payload))
        else:
            assert isinstance(body, DataBody)
            outcome = ("data", body.key, body.segment, body.from_switch)
        self.emitted.setdefault(self.port, []).append(outcome)


class Model:
    """The simulator's switch with a member on each member port."""

    def __init__(self, segment_bytes: int) -> None:
        engine = Engine()
        self.switch = SwitchModel(engine, entries=1 << 20, ttl_ns=60_000_000_000, segment_bytes=segment_bytes)
        self.emitted: Emitted = {}
        for port in MEMBER_PORTS:
            link = Link(1e12, 0, 1 << 40, Chance(0))
            member = Member(Host(port).member)
            self.switch.attach(member, address(Host(port)), link, Collector(port, self.emitted))

    def receive(self, port: int, body: object, destination: Address | None) -> Emitted:
        self.emitted.clear()
        packet = Packet(address(Host(port)), destination, CONTROL_BYTES, body)
        self.switch.receive(packet, Member(Host(port).member))
        return dict(self.emitted)


def real(bench: Bench, port: int, frame: bytes, expect: int) -> Emitted:
    emitted: Emitted = {}
    for out, frames in bench.exchange((port, frame), expect=expect).items():
        if bench.target.profile.circulates:
            # Segments are served as they come by, in any order; the model serves them in theirs.
            frames = sorted(frames, key=lambda frame: parse(frame).segment)
        for datagram in map(parse, frames):
            if datagram.dst_port == CONTROL_PORT:
                emitted.setdefault(out, []).append(("control", datagram.control))
            else:
                key = datagram.payload[36:52]
                emitted.setdefault(out, []).append(("data", key, datagram.segment, datagram.dscp == FROM_SWITCH_DSCP))
    return emitted


@pytest.mark.parametrize("seed", range(4))
def test_model_and_program_send_the_same_packets(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    model = Model(bench.segment_bytes)
    holder = Host(HOLDER_PORT)
    chunks = [bench.segments(bench.key(), SEGMENTS, holder=HOLDER_PORT) for _ in range(CHUNKS)]
    slots = {chunk[0].key: 8 * number for number, chunk in enumerate(chunks)}
    states = dict.fromkeys(slots, "absent")

    def both(port: int, frame: bytes, body: object, destination: Address | None) -> None:
        expected = model.receive(port, body, destination)
        got = real(bench, port, frame, sum(map(len, expected.values())))
        assert got == expected, f"from port {port}: {body}"

    def as_body(segment: Segment) -> DataBody:
        return DataBody(ChunkKey(segment.key), segment.segment, segment.segments, 1, address(holder))

    for _ in range(OPERATIONS):
        chunk = rng.choice(chunks)
        key = chunk[0].key
        port = rng.choice(MEMBER_PORTS[1:])
        tag = rng.randrange(1 << 16)
        match rng.choice(["join", "join", "leave", "get", "get", "cast", "cast", "fill", "cache"]):
            case "join":
                control = Control(Op.JOIN, key, rng.randrange(SEGMENTS), SEGMENTS, tag=tag)
            case "leave":
                control = Control(Op.LEAVE, key, 0, SEGMENTS, tag=tag)
            case "get":
                first = rng.randrange(SEGMENTS)
                control = Control(
                    Op.GET, key, first, SEGMENTS, rng.randint(1, SEGMENTS - first), tag, rng.choice([0, Flag.ONLY_ME])
                )
            case "cast":
                segment = rng.choice(chunk)
                both(HOLDER_PORT, segment.frame(), as_body(segment), None)
                continue
            case "fill":
                segment = rng.choice(chunk)
                flags = rng.choice([0, Flag.CAST_TOO])
                fill = Control(Op.FILL, key, segment.segment, SEGMENTS, tag=tag, flags=flags)
                body = FillBody(fill.pack(), as_body(segment))
                both(HOLDER_PORT, segment.fill_frame(control=fill), body, None)
                continue
            case _:
                if states[key] == "absent":
                    entry = bench.chunk(key, "filling", base_slot=slots[key], segments=SEGMENTS, port=HOLDER_PORT)
                    bench.insert(entry)
                    model.switch.cache[ChunkKey(key)] = Cached(SEGMENTS, Member(holder.member))
                    for segment in chunk:
                        fill = Control(Op.FILL, key, segment.segment, SEGMENTS, tag=tag)
                        body = FillBody(fill.pack(), as_body(segment))
                        both(HOLDER_PORT, segment.fill_frame(control=fill), body, None)
                    states[key] = "filling"
                elif states[key] == "filling":
                    bench.serve(key, slots[key], SEGMENTS)
                    model.switch.cache[ChunkKey(key)].filling_member = None
                    states[key] = "serving"
                continue
        both(port, control_frame(Host(port), control, holder), ControlBody(control.pack()), address(holder))
