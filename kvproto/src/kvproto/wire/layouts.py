"""Wire layouts and their constants. Generated from p4/include/headers.p4 by tools/generate_wire.py.

Fields that share a byte share an entry of the numpy dtypes, named after all of them.
"""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

ETHERTYPE_IPV4: Final = 0x800
ETHERTYPE_ARP: Final = 0x806
ETHERTYPE_VLAN: Final = 0x8100
ETHERTYPE_SERVICE_VLAN: Final = 0x88A8
IP_PROTOCOL_UDP: Final = 17
UDP_PORT_ROCE: Final = 0x12B7
UDP_PORT_CONTROL: Final = 0x12B9
KV_VERSION: Final = 1
OP_JOIN: Final = 1
OP_NOTICE: Final = 2
OP_LEAVE: Final = 3
OP_GET: Final = 4
OP_FILL: Final = 5
OP_FILL_ACK: Final = 6
OP_NAK: Final = 7
OP_HERE: Final = 8
OP_DATA: Final = 16
FLAG_JOINED: Final = 1
FLAG_LEFT: Final = 2
FLAG_REFUSED: Final = 4
FLAG_CACHED: Final = 8
FLAG_NO_SWITCH: Final = 16
FLAG_ONLY_ME: Final = 32
FLAG_CAST_TOO: Final = 64
BTH_OPCODE_UD_SEND_ONLY: Final = 100
QPN_MULTICAST: Final = 0xFFFFFF
IP_DONT_FRAGMENT: Final = 2


ETHERNET_BYTES: Final = 14
_ETHERNET = struct.Struct("!6s6sH")


@dataclass(frozen=True, slots=True)
class Ethernet:
    """`ethernet_t`, 14 bytes."""

    dst: int = 0
    src: int = 0
    ether_type: int = 0

    def pack(self) -> bytes:
        """The header's bytes. Raises struct.error or OverflowError for a value that does not fit."""
        return _ETHERNET.pack(
            self.dst.to_bytes(6, "big"),
            self.src.to_bytes(6, "big"),
            self.ether_type,
        )

    @classmethod
    def unpack(cls, buffer: bytes | bytearray | memoryview, offset: int = 0) -> "Ethernet":
        """The header at `offset`. Raises struct.error when the buffer ends before it does."""
        raw = _ETHERNET.unpack_from(buffer, offset)
        return cls(
            int.from_bytes(raw[0], "big"),
            int.from_bytes(raw[1], "big"),
            raw[2],
        )


IPV4_BYTES: Final = 20
_IPV4 = struct.Struct("!BBHHHBBHII")


@dataclass(frozen=True, slots=True)
class Ipv4:
    """`ipv4_t`, 20 bytes."""

    version: int = 0
    ihl: int = 0
    dscp: int = 0
    ecn: int = 0
    total_length: int = 0
    identification: int = 0
    flags: int = 0
    fragment_offset: int = 0
    ttl: int = 0
    protocol: int = 0
    checksum: int = 0
    src: int = 0
    dst: int = 0

    def pack(self) -> bytes:
        """The header's bytes. Raises struct.error or OverflowError for a value that does not fit."""
        return _IPV4.pack(
            self.version << 4 | self.ihl,
            self.dscp << 2 | self.ecn,
            self.total_length,
            self.identification,
            self.flags << 13 | self.fragment_offset,
            self.ttl,
            self.protocol,
            self.checksum,
            self.src,
            self.dst,
        )

    @classmethod
    def unpack(cls, buffer: bytes | bytearray | memoryview, offset: int = 0) -> "Ipv4":
        """The header at `offset`. Raises struct.error when the buffer ends before it does."""
        raw = _IPV4.unpack_from(buffer, offset)
        return cls(
            raw[0] >> 4 & 0xF,
            raw[0] & 0xF,
            raw[1] >> 2 & 0x3F,
            raw[1] & 0x3,
            raw[2],
            raw[3],
            raw[4] >> 13 & 0x7,
            raw[4] & 0x1FFF,
            raw[5],
            raw[6],
            raw[7],
            raw[8],
            raw[9],
        )


UDP_BYTES: Final = 8


KV_CONTROL_BYTES: Final = 40
_KV_CONTROL = struct.Struct("!BBBBHHII16sQ")
KV_CONTROL_DTYPE: Final = np.dtype(
    [
        ("version", ">u1"),
        ("op", ">u1"),
        ("flags", ">u1"),
        ("member", ">u1"),
        ("count", ">u2"),
        ("tag", ">u2"),
        ("segment", ">u4"),
        ("segments", ">u4"),
        ("key", "u1", (16,)),
        ("members", ">u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class KvControl:
    """`kv_control_t`, 40 bytes."""

    version: int = 0
    op: int = 0
    flags: int = 0
    member: int = 0
    count: int = 0
    tag: int = 0
    segment: int = 0
    segments: int = 0
    key: bytes = bytes(16)
    members: int = 0

    def pack(self) -> bytes:
        """The header's bytes. Raises struct.error or OverflowError for a value that does not fit."""
        return _KV_CONTROL.pack(
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
    def unpack(cls, buffer: bytes | bytearray | memoryview, offset: int = 0) -> "KvControl":
        """The header at `offset`. Raises struct.error when the buffer ends before it does."""
        raw = _KV_CONTROL.unpack_from(buffer, offset)
        return cls(
            raw[0],
            raw[1],
            raw[2],
            raw[3],
            raw[4],
            raw[5],
            raw[6],
            raw[7],
            raw[8],
            raw[9],
        )


BTH_BYTES: Final = 12
_BTH = struct.Struct("!BBHB3sB3s")
BTH_DTYPE: Final = np.dtype(
    [
        ("opcode", ">u1"),
        ("solicited_event_mig_request_pad_count_transport_version", ">u1"),
        ("partition_key", ">u2"),
        ("resv8a", ">u1"),
        ("qpn", "u1", (3,)),
        ("ack_request_resv7", ">u1"),
        ("psn", "u1", (3,)),
    ]
)


@dataclass(frozen=True, slots=True)
class Bth:
    """`bth_t`, 12 bytes."""

    opcode: int = 0
    solicited_event: int = 0
    mig_request: int = 0
    pad_count: int = 0
    transport_version: int = 0
    partition_key: int = 0
    resv8a: int = 0
    qpn: int = 0
    ack_request: int = 0
    resv7: int = 0
    psn: int = 0

    def pack(self) -> bytes:
        """The header's bytes. Raises struct.error or OverflowError for a value that does not fit."""
        return _BTH.pack(
            self.opcode,
            self.solicited_event << 7 | self.mig_request << 6 | self.pad_count << 4 | self.transport_version,
            self.partition_key,
            self.resv8a,
            self.qpn.to_bytes(3, "big"),
            self.ack_request << 7 | self.resv7,
            self.psn.to_bytes(3, "big"),
        )

    @classmethod
    def unpack(cls, buffer: bytes | bytearray | memoryview, offset: int = 0) -> "Bth":
        """The header at `offset`. Raises struct.error when the buffer ends before it does."""
        raw = _BTH.unpack_from(buffer, offset)
        return cls(
            raw[0],
            raw[1] >> 7 & 0x1,
            raw[1] >> 6 & 0x1,
            raw[1] >> 4 & 0x3,
            raw[1] & 0xF,
            raw[2],
            raw[3],
            int.from_bytes(raw[4], "big"),
            raw[5] >> 7 & 0x1,
            raw[5] & 0x7F,
            int.from_bytes(raw[6], "big"),
        )


DETH_BYTES: Final = 8
_DETH = struct.Struct("!IB3s")
DETH_DTYPE: Final = np.dtype(
    [
        ("qkey", ">u4"),
        ("reserved", ">u1"),
        ("src_qpn", "u1", (3,)),
    ]
)


@dataclass(frozen=True, slots=True)
class Deth:
    """`deth_t`, 8 bytes."""

    qkey: int = 0
    reserved: int = 0
    src_qpn: int = 0

    def pack(self) -> bytes:
        """The header's bytes. Raises struct.error or OverflowError for a value that does not fit."""
        return _DETH.pack(
            self.qkey,
            self.reserved,
            self.src_qpn.to_bytes(3, "big"),
        )

    @classmethod
    def unpack(cls, buffer: bytes | bytearray | memoryview, offset: int = 0) -> "Deth":
        """The header at `offset`. Raises struct.error when the buffer ends before it does."""
        raw = _DETH.unpack_from(buffer, offset)
        return cls(
            raw[0],
            raw[1],
            int.from_bytes(raw[2], "big"),
        )


KV_DATA_BYTES: Final = 32
_KV_DATA = struct.Struct("!BBBBIII16s")
KV_DATA_DTYPE: Final = np.dtype(
    [
        ("version", ">u1"),
        ("op", ">u1"),
        ("flags", ">u1"),
        ("reserved", ">u1"),
        ("segment", ">u4"),
        ("segments", ">u4"),
        ("length", ">u4"),
        ("key", "u1", (16,)),
    ]
)


@dataclass(frozen=True, slots=True)
class KvData:
    """`kv_data_t`, 32 bytes."""

    version: int = 0
    op: int = 0
    flags: int = 0
    reserved: int = 0
    segment: int = 0
    segments: int = 0
    length: int = 0
    key: bytes = bytes(16)

    def pack(self) -> bytes:
        """The header's bytes. Raises struct.error or OverflowError for a value that does not fit."""
        return _KV_DATA.pack(
            self.version,
            self.op,
            self.flags,
            self.reserved,
            self.segment,
            self.segments,
            self.length,
            self.key,
        )

    @classmethod
    def unpack(cls, buffer: bytes | bytearray | memoryview, offset: int = 0) -> "KvData":
        """The header at `offset`. Raises struct.error when the buffer ends before it does."""
        raw = _KV_DATA.unpack_from(buffer, offset)
        return cls(
            raw[0],
            raw[1],
            raw[2],
            raw[3],
            raw[4],
            raw[5],
            raw[6],
            raw[7],
        )


ICRC_BYTES: Final = 4
