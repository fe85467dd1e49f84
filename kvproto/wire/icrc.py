"""Invariant CRC of RoCEv2 over IPv4 (InfiniBand Architecture Specification, annex A17).

CRC-32 (the polynomial of Ethernet, as zlib computes it) over eight bytes of ones, the IP header, the UDP header and
everything behind it but the ICRC itself, with what routers may change set to ones: TTL, DSCP and ECN, both checksums
and the reserved byte of the BTH. It stands at the end of the datagram, least significant byte first.
"""

import struct
import zlib

from kvproto.ids import Address
from kvproto.wire.layouts import IP_PROTOCOL_UDP, IPV4_BYTES, UDP_BYTES, UDP_PORT_ROCE

ICRC_BYTES = 4
BTH_RESERVED_OFFSET = 4
"""The byte of the BTH that the ICRC masks."""
_MASKED_LINK = b"\xff" * 8
_HEADERS = struct.Struct("!BBHHHBBHIIHHHH")


def icrc_seed(source: Address, destination: Address, source_port: int, payload_bytes: int) -> int:
    """CRC of everything before the BTH, for datagrams whose UDP payload has `payload_bytes` (ICRC included).

    The same for all datagrams of one length between the same ports, so it is computed once and continued.
    IP identification 0, don't fragment, as all data datagrams have them.
    """
    udp_bytes = UDP_BYTES + payload_bytes
    headers = _HEADERS.pack(
        0x45,
        0xFF,
        IPV4_BYTES + udp_bytes,
        0,
        0x4000,
        0xFF,
        IP_PROTOCOL_UDP,
        0xFFFF,
        source,
        destination,
        source_port,
        UDP_PORT_ROCE,
        udp_bytes,
        0xFFFF,
    )
    return zlib.crc32(headers, zlib.crc32(_MASKED_LINK))


def icrc(seed: int, transport: bytes | bytearray | memoryview) -> int:
    """ICRC of a datagram from the BTH up to but without the ICRC, continued from `icrc_seed`."""
    state = zlib.crc32(transport[:BTH_RESERVED_OFFSET], seed)
    state = zlib.crc32(b"\xff", state)
    return zlib.crc32(transport[BTH_RESERVED_OFFSET + 1 :], state)


def pack_icrc(value: int) -> bytes:
    """The four bytes that end the datagram."""
    return struct.pack("<I", value)
