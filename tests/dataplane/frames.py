"""Frames of the data-plane tests, packed and parsed with `struct` alone.

Deliberately independent of `kvproto`: this is the second witness of docs/reference/wire.md, so that a
mistake shared by the P4 headers and the generated codec still shows.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

from p4switch_tna.checksums import internet_checksum

CONTROL_PORT = 4793
ROCE_PORT = 4791
GROUP_IP = bytes([239, 75, 86, 1])
GROUP_MAC = bytes.fromhex("01005e4b5601")
POOL_IP = bytes([10, 75, 255, 254])
POOL_MAC = bytes.fromhex("024b56fffffe")
FROM_SWITCH_DSCP = 0x2A
QKEY = 0x11111111
FENCE_ETHERTYPE = 0x88B5  # IEEE 802 local experimental

ETHERNET_BYTES = 14
CONTROL_FRAME_BYTES = 82
TRANSPORT_BYTES = 52  # BTH, DETH, data header


class Op(IntEnum):
    JOIN = 1
    NOTICE = 2
    LEAVE = 3
    GET = 4
    FILL = 5
    FILL_ACK = 6
    NAK = 7
    HERE = 8


class Flag(IntFlag):
    JOINED = 0x01
    LEFT = 0x02
    REFUSED = 0x04
    CACHED = 0x08
    NO_SWITCH = 0x10
    ONLY_ME = 0x20
    CAST_TOO = 0x40


class Drop(IntEnum):
    """Cells of the drop counters (p4/include/drops.p4)."""

    NOT_A_MEMBER = 1
    TRUNCATED = 2
    BAD_LENGTH = 3
    BAD_VERSION = 4
    UNKNOWN_OP = 5
    FORGED_OP = 6
    NO_INTEREST = 7
    LAST_LEFT = 8
    BEYOND_END = 9
    FILL_REFUSED = 10
    FILL_MISMATCH = 11
    HAIRPIN = 12
    NOT_INTERESTED = 13
    FLOOD_ECHO = 14
    HERE = 15
    FORGED_SOURCE = 16
    FORGED_ARP = 17
    NOT_PLAIN = 18
    NOT_JOINED = 19
    METERED = 20
    GET_TOO_LARGE = 21
    TOO_MANY_ENTRIES = 22


@dataclass(frozen=True, slots=True)
class Host:
    """Host on switch port `port`; member `port - 1` where the test makes it one."""

    port: int

    @property
    def mac(self) -> bytes:
        return bytes([0x02, 0x4B, 0x56, 0, 0, self.port])

    @property
    def ip(self) -> bytes:
        return bytes([10, 75, 0, self.port])

    @property
    def member(self) -> int:
        return self.port - 1

    @property
    def bit(self) -> int:
        return 1 << self.member


def ipv4_udp(
    *,
    src_mac: bytes,
    dst_mac: bytes,
    src_ip: bytes,
    dst_ip: bytes,
    src_port: int,
    dst_port: int,
    payload: bytes,
    from_kernel: bool = False,
    ip_length: int | None = None,
    udp_length: int | None = None,
) -> bytes:
    """An Ethernet frame with one UDP datagram; lengths can be made to lie.

    Plain fields are those of the wire format; `from_kernel` fills those that it leaves open, as some
    host's kernel or router might: TOS, identification, fragment flags, TTL, UDP checksum.
    """
    ip_length = 28 + len(payload) if ip_length is None else ip_length
    udp_length = 8 + len(payload) if udp_length is None else udp_length
    tos, identification, flags, ttl = (0xB9, 0x1234, 0, 63) if from_kernel else (0, 0, 0x4000, 64)
    header = struct.pack("!BBHHHBBH4s4s", 0x45, tos, ip_length, identification, flags, ttl, 17, 0, src_ip, dst_ip)
    header = header[:10] + struct.pack("!H", internet_checksum(header)) + header[12:]
    udp = struct.pack("!HHHH", src_port, dst_port, udp_length, 0)
    if from_kernel:
        pseudo = src_ip + dst_ip + struct.pack("!HH", 17, udp_length)
        covered = pseudo + udp + payload + b"\0" * (len(payload) % 2)
        udp = udp[:6] + struct.pack("!H", internet_checksum(covered) or 0xFFFF)
    return dst_mac + src_mac + b"\x08\x00" + header + udp + payload


@dataclass(frozen=True, slots=True)
class Control:
    """The 40 bytes of a control datagram."""

    op: int
    key: bytes
    segment: int = 0
    segments: int = 8
    count: int = 0
    tag: int = 0
    flags: int = 0
    member: int = 0
    members: int = 0
    version: int = 1

    def pack(self) -> bytes:
        return struct.pack(
            "!BBBBHHII16sQ",
            self.version,
            self.op,
            self.flags,
            self.member,
            self.count,
            self.tag,
            self.segment,
            self.segments,
            self.key,
            self.members,
        )

    @classmethod
    def unpack(cls, octets: bytes) -> Control:
        version, op, flags, member, count, tag, segment, segments, key, members = struct.unpack(
            "!BBBBHHII16sQ", octets[:40]
        )
        return cls(op, key, segment, segments, count, tag, flags, member, members, version)


def control_frame(sender: Host, control: Control, holder: Host, *, src_port: int = CONTROL_PORT) -> bytes:
    """A control datagram from `sender` to the holder's address."""
    return ipv4_udp(
        src_mac=sender.mac,
        dst_mac=holder.mac,
        src_ip=sender.ip,
        dst_ip=holder.ip,
        src_port=src_port,
        dst_port=CONTROL_PORT,
        payload=control.pack(),
        from_kernel=True,
    )


def here_frame(sender: Host, key: bytes) -> bytes:
    """What an agent sends to tell where it is."""
    return ipv4_udp(
        src_mac=sender.mac,
        dst_mac=POOL_MAC,
        src_ip=sender.ip,
        dst_ip=POOL_IP,
        src_port=CONTROL_PORT,
        dst_port=CONTROL_PORT,
        payload=Control(Op.HERE, key, segments=1).pack(),
        from_kernel=True,
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """One data datagram as its holder builds it: BTH, DETH, data header, payload, ICRC."""

    holder: Host
    key: bytes
    segment: int
    segments: int
    payload: bytes
    length: int = -1
    src_port: int = 0xC123
    src_qpn: int = 0x000102
    partition_key: int = 0xFFFF
    opcode: int = 0x64
    qpn: int = 0xFFFFFF
    version: int = 1
    op: int = 16
    flags: int = 0

    def transport(self) -> bytes:
        """BTH to payload."""
        length = len(self.payload) if self.length < 0 else self.length
        bth = struct.pack("!BBHII", self.opcode, 0x40, self.partition_key, self.qpn, self.segment & 0xFFFFFF)
        deth = struct.pack("!II", QKEY, self.src_qpn)
        header = struct.pack(
            "!BBBBIII16s", self.version, self.op, self.flags, 0, self.segment, self.segments, length, self.key
        )
        return bth + deth + header + self.payload

    def with_icrc(self) -> bytes:
        """BTH to ICRC: what a FILL carries and every receiver gets."""
        transport = self.transport()
        return transport + icrc(self.holder.ip, GROUP_IP, self.src_port, transport)

    def frame(self, *, dst_ip: bytes = GROUP_IP, dst_mac: bytes = GROUP_MAC) -> bytes:
        """The frame in which the holder casts the segment."""
        return ipv4_udp(
            src_mac=self.holder.mac,
            dst_mac=dst_mac,
            src_ip=self.holder.ip,
            dst_ip=dst_ip,
            src_port=self.src_port,
            dst_port=ROCE_PORT,
            payload=self.with_icrc(),
        )

    def fill_frame(self, *, sender: Host | None = None, control: Control | None = None) -> bytes:
        """The frame in which `sender` (the holder) asks the switch to store the segment."""
        sender = sender or self.holder
        control = control or Control(Op.FILL, self.key, self.segment, self.segments)
        return ipv4_udp(
            src_mac=sender.mac,
            dst_mac=POOL_MAC,
            src_ip=sender.ip,
            dst_ip=POOL_IP,
            src_port=self.src_port,
            dst_port=CONTROL_PORT,
            payload=control.pack() + self.with_icrc(),
        )


def icrc(src_ip: bytes, dst_ip: bytes, src_port: int, transport: bytes) -> bytes:
    """Invariant CRC over a RoCEv2 datagram: TTL, DSCP/ECN, both checksums and BTH resv8a count as ones."""
    udp_length = 8 + len(transport) + 4
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0xFF, 20 + udp_length, 0, 0x4000, 0xFF, 17, 0xFFFF, src_ip, dst_ip)
    udp = struct.pack("!HHHH", src_port, ROCE_PORT, udp_length, 0xFFFF)
    masked = transport[:4] + b"\xff" + transport[5:]
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + masked))


@dataclass(frozen=True, slots=True)
class Datagram:
    """A received frame, taken apart as far as UDP."""

    dst_mac: bytes
    src_mac: bytes
    src_ip: bytes
    dst_ip: bytes
    dscp: int
    src_port: int
    dst_port: int
    payload: bytes
    headers_valid: bool

    @property
    def control(self) -> Control:
        assert self.dst_port == CONTROL_PORT, self
        return Control.unpack(self.payload)

    @property
    def icrc_valid(self) -> bool:
        assert self.dst_port == ROCE_PORT, self
        return icrc(self.src_ip, self.dst_ip, self.src_port, self.payload[:-4]) == self.payload[-4:]

    @property
    def segment(self) -> int:
        return int.from_bytes(self.payload[24:28], "big")


def parse(frame: bytes) -> Datagram:
    """Takes a UDP frame apart; `headers_valid` says whether lengths and checksums are right."""
    ip = frame[14:34]
    ip_length = int.from_bytes(ip[2:4], "big")
    udp_length = int.from_bytes(frame[38:40], "big")
    udp = frame[34:]
    pseudo = ip[12:20] + struct.pack("!HH", 17, udp_length)
    valid = (
        frame[12:15] == b"\x08\x00\x45"
        and internet_checksum(ip) == 0
        and ip_length == udp_length + 20 == len(frame) - 14
        and (udp[6:8] == b"\0\0" or internet_checksum(pseudo + udp + b"\0" * (len(udp) % 2)) == 0)
    )
    return Datagram(
        dst_mac=frame[:6],
        src_mac=frame[6:12],
        src_ip=ip[12:16],
        dst_ip=ip[16:20],
        dscp=ip[1] >> 2,
        src_port=int.from_bytes(frame[34:36], "big"),
        dst_port=int.from_bytes(frame[36:38], "big"),
        payload=frame[42:],
        headers_valid=valid,
    )


def arp_request(sender: Host, target_ip: bytes) -> bytes:
    arp = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, sender.mac, sender.ip, b"\0" * 6, target_ip)
    return (b"\xff" * 6 + sender.mac + b"\x08\x06" + arp).ljust(60, b"\0")


def ethernet(src: bytes, dst: bytes, payload: bytes, ether_type: int = 0x9000) -> bytes:
    return (dst + src + struct.pack("!H", ether_type) + payload).ljust(60, b"\0")


def with_fields(control: Control, **fields: int | bytes) -> Control:
    return replace(control, **fields)  # type: ignore[arg-type]


def signature(key: bytes) -> int:
    return zlib.crc32(key)
