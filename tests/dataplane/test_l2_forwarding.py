"""Ordinary traffic: the data plane is a switch of layer 2, with and without entries."""

from __future__ import annotations

import pytest

from tests.dataplane.bench import ALL_PORTS, STRANGER_PORT, Bench, counts, table
from tests.dataplane.frames import (
    GROUP_IP,
    GROUP_MAC,
    POOL_IP,
    POOL_MAC,
    Control,
    Drop,
    Flag,
    Host,
    Op,
    Segment,
    arp_request,
    control_frame,
    ethernet,
    ipv4_udp,
)

BROADCAST = b"\xff" * 6


def everywhere_but(port: int) -> dict[int, int]:
    return {other: 1 for other in ALL_PORTS if other != port}


def ordinary_frames() -> dict[str, bytes]:
    sender, receiver = Host(1), Host(2)
    udp = ipv4_udp(
        src_mac=sender.mac,
        dst_mac=receiver.mac,
        src_ip=sender.ip,
        dst_ip=receiver.ip,
        src_port=5000,
        dst_port=6000,
        payload=b"ordinary",
    )
    options = udp[:14] + b"\x46" + udp[15:34] + b"\x94\x04\0\0" + udp[34:]
    first_fragment = udp[:20] + b"\x20\x00" + udp[22:]
    join = control_frame(sender, Control(Op.JOIN, b"k" * 16), receiver)
    wrong_checksum = udp[:24] + b"\xde\xad" + udp[26:]
    vlan = udp[:12] + b"\x81\x00\x00\x07" + udp[12:]
    roce = ipv4_udp(
        src_mac=sender.mac,
        dst_mac=receiver.mac,
        src_ip=sender.ip,
        dst_ip=receiver.ip,
        src_port=0xC000,
        dst_port=4791,
        payload=b"\x04" + b"\x00" * 40,
    )
    foreign_group = Segment(sender, b"k" * 16, 0, 1, b"x" * 256).frame(dst_ip=bytes([239, 1, 1, 1]))
    return {
        "udp": udp,
        "ip-options": options,
        "first-fragment": first_fragment,
        "first-fragment-of-control": join[:20] + b"\x20\x00" + join[22:],
        "later-fragment-like-control": join[:20] + b"\x00\x08" + join[22:],
        "wrong-ip-checksum": wrong_checksum,
        "vlan": vlan,
        "runt-ip": (udp[:14] + b"\x45\x00").ljust(60, b"\0"),
        "roce-of-others": roce,
        "multicast-roce-of-others": foreign_group,
        "ipv6": ethernet(sender.mac, receiver.mac, b"\x60" + bytes(80), 0x86DD),
        "arp-for-others": arp_request(sender, receiver.ip),
        "jumbo": ethernet(sender.mac, receiver.mac, bytes(range(256)) * 30),
    }


@pytest.mark.parametrize("kind", ordinary_frames())
def test_without_entries_every_frame_is_flooded_untouched(bare: Bench, kind: str) -> None:
    frame = ordinary_frames()[kind]
    received = bare.exchange((1, frame))
    assert counts(received) == everywhere_but(1)
    assert {sent for frames in received.values() for sent in frames} == {frame}


@pytest.mark.parametrize("kind", sorted(ordinary_frames().keys() - {"first-fragment-of-control"}))
def test_kvcast_switch_leaves_ordinary_frames_untouched(bench: Bench, kind: str) -> None:
    frame = ordinary_frames()[kind]
    received = bench.exchange((1, frame))
    known = {2: 1} if frame[:6] == Host(2).mac else everywhere_but(1)
    assert counts(received) == known
    assert {sent for frames in received.values() for sent in frames} == {frame}


def test_without_entries_kvcast_datagrams_are_ordinary_too(bare: Bench) -> None:
    key = bare.key()
    join = control_frame(Host(2), Control(Op.JOIN, key), Host(1))
    answer = control_frame(Host(1), Control(Op.NOTICE, key, flags=Flag.NO_SWITCH), Host(2))
    cast = bare.segments(key)[0].frame()
    for port, frame in [(2, join), (1, answer), (1, cast)]:
        received = bare.exchange((port, frame))
        assert counts(received) == everywhere_but(port)
        assert {sent for frames in received.values() for sent in frames} == {frame}


def test_known_address_goes_to_its_port_alone(bare: Bench) -> None:
    bare.insert(table("dmac", {"dst": int.from_bytes(Host(3).mac, "big")}, "forward", port=3))
    frame = ethernet(Host(1).mac, Host(3).mac, b"hello")
    assert counts(bare.exchange((1, frame))) == {3: 1}
    bare.remove(table("dmac", {"dst": int.from_bytes(Host(3).mac, "big")}, "forward", port=3))
    assert counts(bare.exchange((1, frame))) == everywhere_but(1)


def test_no_packet_goes_back_to_its_ingress_port(bench: Bench) -> None:
    before = bench.drops()
    assert counts(bench.exchange((3, ethernet(Host(3).mac, Host(3).mac, b"to myself")))) == {}
    assert bench.drops()[Drop.HAIRPIN] == before[Drop.HAIRPIN] + 1
    echoes = bench.drops("egress_drops")[Drop.FLOOD_ECHO]
    assert counts(bench.exchange((3, ethernet(Host(3).mac, BROADCAST, b"to all")))) == everywhere_but(3)
    assert bench.drops("egress_drops")[Drop.FLOOD_ECHO] > echoes


def test_arp_for_the_pool_is_answered_by_the_switch(bench: Bench) -> None:
    for port in (2, STRANGER_PORT):
        received = bench.exchange((port, arp_request(Host(port), POOL_IP)))
        assert counts(received) == {port: 1}
        (reply,) = received[port]
        assert reply[:12] == Host(port).mac + POOL_MAC
        assert reply[12:22] == bytes.fromhex("08060001080006040002")
        assert reply[22:42] == POOL_MAC + POOL_IP + Host(port).mac + Host(port).ip


def test_arp_without_controller_is_flooded(bare: Bench) -> None:
    assert counts(bare.exchange((2, arp_request(Host(2), POOL_IP)))) == everywhere_but(2)


def test_other_traffic_to_the_group_is_ordinary(bench: Bench) -> None:
    frame = ipv4_udp(
        src_mac=Host(1).mac,
        dst_mac=GROUP_MAC,
        src_ip=Host(1).ip,
        dst_ip=GROUP_IP,
        src_port=1,
        dst_port=2,
        payload=b"not kvcast",
    )
    assert counts(bench.exchange((1, frame))) == everywhere_but(1)
