"""Who may say what: nodes tell where they are, and nobody speaks with another's addresses or past the parser."""

from __future__ import annotations

import struct

import pytest

from p4switch_tna.checksums import internet_checksum
from tests.dataplane.bench import ALL_PORTS, STRANGER_PORT, Bench, counts, notices, number, table
from tests.dataplane.frames import (
    FROM_SWITCH_DSCP,
    GROUP_IP,
    POOL_IP,
    Control,
    Drop,
    Host,
    Op,
    control_frame,
    ethernet,
    here_frame,
    ipv4_udp,
    parse,
)

DIGEST_S = 5.0
BROADCAST = b"\xff" * 6
PLACES = ["control-port", "roce-port", "group", "pool"]
"""Where odd packets may not go."""


def sighting(bench: Bench) -> dict[str, int] | None:
    return bench.target.control.next_digest(DIGEST_S, "sighting_t")


def refused(bench: Bench, port: int, frame: bytes, reason: Drop) -> None:
    """The frame goes nowhere and is counted, once, for this reason."""
    before = bench.drops()
    assert counts(bench.exchange((port, frame))) == {}
    after = bench.drops()
    assert {one: after[one] - before[one] for one in Drop if after[one] != before[one]} == {reason: 1}


def passes(bench: Bench, port: int, frame: bytes, *to: int) -> None:
    """The frame comes out of these ports as it came in, and of no other."""
    received = bench.exchange((port, frame))
    assert counts(received) == dict.fromkeys(to, 1)
    assert {one for frames in received.values() for one in frames} == {frame}


def everywhere_but(port: int) -> list[int]:
    return [one for one in ALL_PORTS if one != port]


# -- where nodes are


def test_a_node_that_nobody_knows_is_reported_with_all_it_says(bench: Bench) -> None:
    host, key = Host(STRANGER_PORT), bench.any_key()
    refused(bench, host.port, here_frame(host, key), Drop.HERE)
    said = {"key": number(key), "mac": number(host.mac), "ip": number(host.ip), "port": host.port}
    assert sighting(bench) == said


def test_a_node_that_is_known_is_not_reported_again(bench: Bench) -> None:
    refused(bench, 2, here_frame(Host(2), bench.any_key()), Drop.HERE)
    stranger, key = Host(STRANGER_PORT), bench.any_key()
    refused(bench, stranger.port, here_frame(stranger, key), Drop.HERE)
    said = sighting(bench)
    assert said is not None
    assert said["key"] == number(key), "the first report is the one of the node that is not known"


def test_a_node_that_moved_is_reported_and_heard_again_once_it_is_written(bench: Bench) -> None:
    host, key = Host(20), bench.any_key()
    bench.know(host, 2)
    hello = ethernet(host.mac, Host(4).mac, b"hello")
    passes(bench, 2, hello, 4)
    refused(bench, STRANGER_PORT, hello, Drop.FORGED_SOURCE)
    refused(bench, STRANGER_PORT, here_frame(host, key), Drop.HERE)
    said = sighting(bench)
    assert said is not None
    assert (said["key"], said["port"]) == (number(key), STRANGER_PORT)
    old = table("station", {"src": number(host.mac)}, "stands_at", port=2)
    bench.remove(old)
    bench.insert(table("station", {"src": number(host.mac)}, "stands_at", port=STRANGER_PORT))
    passes(bench, STRANGER_PORT, hello, 4)
    refused(bench, 2, hello, Drop.FORGED_SOURCE)


def test_without_a_controller_a_node_that_says_where_it_is_is_ordinary(bare: Bench) -> None:
    passes(bare, 2, here_frame(Host(2), bare.any_key()), *everywhere_but(2))


# -- who speaks


@pytest.mark.parametrize("port", [3, STRANGER_PORT])
def test_nobody_speaks_with_another_nodes_mac(bench: Bench, port: int) -> None:
    for frame in (
        ethernet(Host(1).mac, Host(2).mac, b"as another"),
        ethernet(Host(1).mac, BROADCAST, b"as another, to all", 0x86DD),
        control_frame(Host(1), Control(Op.JOIN, bench.key()), Host(2)),
        bench.segments(bench.key())[0].frame(),
    ):
        refused(bench, port, frame, Drop.FORGED_SOURCE)


def from_ip(frame: bytes, ip: bytes) -> bytes:
    return frame[:26] + ip + frame[30:]


def test_a_member_speaks_kvcast_from_its_own_address_only(bench: Bench) -> None:
    key = bench.key()
    bench.join(3, key)
    for ip in (Host(1).ip, POOL_IP, bytes([10, 1, 2, 3])):
        refused(bench, 2, from_ip(bench.segments(key, holder=2)[0].frame(), ip), Drop.FORGED_SOURCE)
        for op in (Op.JOIN, Op.LEAVE, Op.GET, Op.NAK):
            asks = control_frame(Host(2), Control(op, key, count=1), Host(1))
            refused(bench, 2, from_ip(asks, ip), Drop.FORGED_SOURCE)
    second_mac = bytes.fromhex("02aabbccdd02")
    refused(bench, 2, bench.segments(key, holder=2)[0].frame().replace(Host(2).mac, second_mac), Drop.FORGED_SOURCE)


def test_a_hosts_other_traffic_may_have_other_addresses(bench: Bench) -> None:
    machine = bytes.fromhex("02aabbccdd02")
    passes(bench, 2, ethernet(machine, Host(4).mac, b"a virtual machine"), 4)
    udp = ipv4_udp(
        src_mac=Host(2).mac,
        dst_mac=Host(4).mac,
        src_ip=bytes([192, 168, 1, 1]),
        dst_ip=Host(4).ip,
        src_port=1,
        dst_port=53,
        payload=b"a second address",
    )
    passes(bench, 2, udp, 4)


def arp(operation: int, mac: bytes, ip: bytes, target: bytes, *, sender: bytes | None = None) -> bytes:
    packet = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, operation, mac, ip, b"\0" * 6, target)
    return (BROADCAST + (sender or mac) + b"\x08\x06" + packet).ljust(60, b"\0")


def tagged(frame: bytes, *tags: int) -> bytes:
    """The same behind 802.1Q tags, the first of them outside."""
    return frame[:12] + b"".join(struct.pack("!HH", 0x8100, tag) for tag in tags) + frame[12:]


@pytest.mark.parametrize("operation", [1, 2])
def test_arp_gives_nobody_anothers_address(bench: Bench, operation: int) -> None:
    bench.insert(table("address", {"ip": number(POOL_IP)}, "taken"))
    mine = Host(3)
    for victim in (Host(1).ip, POOL_IP):
        refused(bench, 3, arp(operation, mine.mac, victim, Host(2).ip), Drop.FORGED_ARP)
        refused(bench, 3, tagged(arp(operation, mine.mac, victim, Host(2).ip), 0), Drop.FORGED_ARP)
        refused(bench, 3, tagged(arp(operation, mine.mac, victim, Host(2).ip), 0, 0), Drop.FORGED_ARP)
    refused(bench, 3, arp(operation, Host(1).mac, Host(1).ip, Host(2).ip, sender=mine.mac), Drop.FORGED_ARP)
    refused(bench, STRANGER_PORT, arp(operation, Host(9).mac, Host(1).ip, Host(2).ip), Drop.FORGED_ARP)


@pytest.mark.parametrize("ip", [Host(3).ip, bytes(4), bytes([10, 75, 9, 9])], ids=["own", "probe", "unknown"])
def test_arp_that_contradicts_nothing_passes(bench: Bench, ip: bytes) -> None:
    passes(bench, 3, arp(1, Host(3).mac, ip, Host(3).ip), *everywhere_but(3))


# -- what hosts take and the parser does not look into


def plain(place: str) -> bytes:
    """A datagram to one of kvcast's places, from member 2 to member 4."""
    return ipv4_udp(
        src_mac=Host(2).mac,
        dst_mac=Host(4).mac,
        src_ip=Host(2).ip,
        dst_ip={"group": GROUP_IP, "pool": POOL_IP}.get(place, Host(4).ip),
        src_port=5000,
        dst_port={"control-port": 4793, "roce-port": 4791}.get(place, 9),
        payload=b"x" * 64,
    )


def with_options(frame: bytes, words: int) -> bytes:
    return frame[:14] + bytes([0x45 + words]) + frame[15:34] + b"\x01" * (4 * words) + frame[34:]


def odd(frame: bytes) -> dict[str, bytes]:
    """The same in ways that a kernel puts right."""
    return {
        **{f"{words}-options": with_options(frame, words) for words in range(1, 11)},
        "first-fragment": frame[:20] + b"\x20\x00" + frame[22:],
        "priority-tag": tagged(frame, 0),
        "vlan": tagged(frame, 7),
        "service-tag": frame[:12] + b"\x88\xa8\0\0" + frame[12:],
        "two-tags": tagged(frame, 0, 0),
        "tag-and-options": tagged(with_options(frame, 2), 0),
    }


@pytest.mark.parametrize("place", PLACES)
def test_nothing_odd_comes_to_kvcast(bench: Bench, place: str) -> None:
    for frame in odd(plain(place)).values():
        refused(bench, 2, frame, Drop.NOT_PLAIN)


def test_later_fragments_do_not_come_to_group_and_pool(bench: Bench) -> None:
    for place in ("group", "pool"):
        frame = plain(place)
        refused(bench, 2, frame[:20] + b"\x00\x08" + frame[22:], Drop.NOT_PLAIN)


def test_what_hides_behind_three_tags_goes_nowhere_frame(bench: Bench) -> None:
    refused(bench, 2, tagged(plain("control-port"), 0, 0, 0), Drop.NOT_PLAIN)


@pytest.mark.parametrize("kind", odd(plain("elsewhere")))
def test_what_is_odd_and_not_kvcasts_passes(bench: Bench, kind: str) -> None:
    passes(bench, 2, odd(plain("elsewhere"))[kind], 4)


def test_without_a_controller_odd_packets_pass(bare: Bench) -> None:
    for frame in odd(plain("control-port")).values():
        passes(bare, 2, frame, *everywhere_but(2))


# -- the switch's own mark


@pytest.mark.parametrize("dscp", [FROM_SWITCH_DSCP, FROM_SWITCH_DSCP ^ 1, 0])
def test_no_host_marks_its_casts_as_the_switchs(bench: Bench, dscp: int) -> None:
    key = bench.key()
    assert list(notices(bench.join(3, key))) == [3]
    frame = bench.segments(key, holder=2)[0].frame()
    header = frame[14:15] + bytes([dscp << 2 | 1]) + frame[16:24] + b"\0\0" + frame[26:34]
    header = header[:10] + struct.pack("!H", internet_checksum(header)) + header[12:]
    received = bench.exchange((2, frame[:14] + header + frame[34:]))
    assert list(received) == [3]
    datagram = parse(received[3][0])
    assert datagram.headers_valid
    assert datagram.dscp == (0 if dscp == FROM_SWITCH_DSCP else dscp)
    assert received[3][0][34:] == frame[34:]
    assert received[3][0][15] & 3 == 1, "ECN stays"
