"""Malformed and hostile datagrams: dropped, counted by reason, and without a trace in the registers."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tests.dataplane.bench import Bench, counts, mask, notices, served
from tests.dataplane.frames import CONTROL_PORT, GROUP_IP, GROUP_MAC, Control, Drop, Host, Op, control_frame, ipv4_udp

FUZZ_FRAMES = 300


def control_payload(payload: bytes, *, ip_length: int | None = None, udp_length: int | None = None) -> bytes:
    return ipv4_udp(
        src_mac=Host(2).mac,
        dst_mac=Host(1).mac,
        src_ip=Host(2).ip,
        dst_ip=Host(1).ip,
        src_port=CONTROL_PORT,
        dst_port=CONTROL_PORT,
        payload=payload,
        ip_length=ip_length,
        udp_length=udp_length,
    )


JOIN = Control(Op.JOIN, b"malformed join..")
MALFORMED_CONTROL = {
    "empty": (control_payload(b""), Drop.TRUNCATED),
    "one-byte-short": (control_payload(JOIN.pack()[:-1]), Drop.TRUNCATED),
    "cut-on-the-way": (control_frame(Host(2), JOIN, Host(1))[:-1], Drop.TRUNCATED),
    "one-byte-long": (control_payload(JOIN.pack() + b"\0"), Drop.BAD_LENGTH),
    "udp-length-lies": (control_payload(JOIN.pack(), udp_length=47), Drop.BAD_LENGTH),
    "ip-length-lies": (control_payload(JOIN.pack(), ip_length=67), Drop.BAD_LENGTH),
    "version-0": (control_payload(dataclasses.replace(JOIN, version=0).pack()), Drop.BAD_VERSION),
    "version-2": (control_payload(dataclasses.replace(JOIN, version=2).pack()), Drop.BAD_VERSION),
    "op-0": (control_payload(dataclasses.replace(JOIN, op=0).pack()), Drop.UNKNOWN_OP),
    "op-9": (control_payload(dataclasses.replace(JOIN, op=9).pack()), Drop.UNKNOWN_OP),
    "data-op": (control_payload(dataclasses.replace(JOIN, op=16).pack()), Drop.UNKNOWN_OP),
    "forged-notice": (control_payload(dataclasses.replace(JOIN, op=Op.NOTICE).pack()), Drop.FORGED_OP),
    "forged-fill-ack": (control_payload(dataclasses.replace(JOIN, op=Op.FILL_ACK).pack()), Drop.FORGED_OP),
    "long-here": (control_payload(dataclasses.replace(JOIN, op=Op.HERE).pack() + b"\0"), Drop.BAD_LENGTH),
    "fill-without-data": (control_payload(dataclasses.replace(JOIN, op=Op.FILL).pack()), Drop.BAD_LENGTH),
}


@pytest.mark.parametrize("kind", MALFORMED_CONTROL)
def test_malformed_control_is_dropped_and_counted(bench: Bench, kind: str) -> None:
    frame, reason = MALFORMED_CONTROL[kind]
    before = bench.drops()
    assert counts(bench.exchange((2, frame))) == {}
    after = bench.drops()
    assert after[reason] == before[reason] + 1
    assert sum(after.values()) == sum(before.values()) + 1, "one reason a packet"


def malformed_casts(bench: Bench, key: bytes) -> dict[str, tuple[bytes, Drop]]:
    data = bench.segments(key)[0]
    change = dataclasses.replace
    whole = data.frame()
    no_transport = ipv4_udp(
        src_mac=Host(1).mac,
        dst_mac=GROUP_MAC,
        src_ip=Host(1).ip,
        dst_ip=GROUP_IP,
        src_port=1,
        dst_port=4791,
        payload=b"short",
    )
    return {
        "no-transport": (no_transport, Drop.TRUNCATED),
        "cut-in-the-header": (whole[: 42 + 30], Drop.TRUNCATED),
        "cut-in-the-payload": (whole[:-100], Drop.TRUNCATED),
        "cut-in-the-icrc": (whole[:-1], Drop.TRUNCATED),
        "short-payload": (change(data, payload=data.payload[:-4]).frame(), Drop.BAD_LENGTH),
        "long-payload": (change(data, payload=data.payload + b"pad.").frame(), Drop.BAD_LENGTH),
        "version": (change(data, version=2).frame(), Drop.BAD_VERSION),
        "op": (change(data, op=1).frame(), Drop.UNKNOWN_OP),
        "opcode": (change(data, opcode=0x04).frame(), Drop.BAD_VERSION),
        "queue-pair": (change(data, qpn=17).frame(), Drop.BAD_VERSION),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "no-transport",
        "cut-in-the-header",
        "cut-in-the-payload",
        "cut-in-the-icrc",
        "short-payload",
        "long-payload",
        "version",
        "op",
        "opcode",
        "queue-pair",
    ],
)
def test_malformed_cast_is_dropped_and_counted(bench: Bench, kind: str) -> None:
    key = bench.key()
    bench.join(2, key)
    frame, reason = malformed_casts(bench, key)[kind]
    before = bench.drops()
    assert counts(bench.exchange((1, frame))) == {}
    after = bench.drops()
    assert after[reason] == before[reason] + 1
    assert sum(after.values()) == sum(before.values()) + 1


def hostile_frames(bench: Bench, waiting: bytes, cached: bytes, seed: int) -> list[tuple[int, bytes]]:
    """Random datagrams about two live chunks, none of them well formed."""
    rng = random.Random(seed)
    fill = bench.segments(cached)[3]
    frames: list[tuple[int, bytes]] = []
    while len(frames) < FUZZ_FRAMES:
        port = rng.randrange(1, 10)
        kind = rng.randrange(6)
        key = rng.choice([waiting, cached, rng.randbytes(16)])
        control = Control(
            op=rng.randrange(256),
            key=key,
            segment=rng.randrange(16),
            segments=rng.randrange(16),
            count=rng.randrange(4),
            flags=rng.randrange(256),
            member=rng.randrange(256),
            members=rng.getrandbits(64),
            version=rng.choice([0, 2, 3, 255]),
        )
        if kind == 0:  # any version but ours
            payload = control.pack()
        elif kind == 1:  # our version, an operation that a host may not use
            payload = dataclasses.replace(control, version=1, op=rng.choice([0, 2, 6, *range(9, 256)])).pack()
        elif kind == 2:  # every operation, cut anywhere
            whole = dataclasses.replace(control, version=1, op=rng.randrange(1, 8)).pack()
            payload = whole[: rng.randrange(40)]
        elif kind == 3:  # every operation with something behind it
            whole = dataclasses.replace(control, version=1, op=rng.choice([1, 3, 4, 7])).pack()
            payload = whole + rng.randbytes(rng.randrange(1, 400))
        elif kind == 4:  # FILL of a chunk that is served
            forged = dataclasses.replace(fill, payload=rng.randbytes(bench.segment_bytes))
            frames.append((port, forged.fill_frame(sender=Host(port))))
            continue
        else:  # noise
            noise = rng.randbytes(rng.randrange(0, 400))
            payload = bytes([rng.choice([0, *range(2, 256)])]) + noise
        host = Host(port)
        frames.append(
            (
                port,
                ipv4_udp(
                    src_mac=host.mac,
                    dst_mac=Host(rng.randrange(1, 9)).mac,
                    src_ip=host.ip,
                    dst_ip=rng.choice([Host(1).ip, GROUP_IP]),
                    src_port=rng.randrange(1 << 16),
                    dst_port=CONTROL_PORT,
                    payload=payload,
                ),
            )
        )
    return frames


@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_datagrams_leave_no_trace(bench: Bench, seed: int) -> None:
    waiting, cached = bench.key(), bench.key()
    segments = bench.segments(cached)
    bench.cache(segments, base_slot=0)
    bench.join(2, waiting)
    bench.join(3, waiting)
    bench.join(4, cached)
    registers = bench.registers() if bench.target.can_read_registers else {}
    before = sum(bench.drops().values())

    for first in range(0, FUZZ_FRAMES, 50):
        batch = hostile_frames(bench, waiting, cached, seed)[first : first + 50]
        assert counts(bench.exchange(*batch)) == {}

    assert sum(bench.drops().values()) == before + FUZZ_FRAMES
    if bench.target.can_read_registers:
        assert bench.registers() == registers
    assert notices(bench.join(2, waiting))[2].members == mask(2, 3)
    received = bench.ask(5, bench.get(cached, 0, amount=8), expect=16)
    assert counts(received) == {4: 8, 5: 8}
    for frames in received.values():
        for frame, segment in zip(bench.in_order(frames), segments, strict=True):
            served(frame, segment)
