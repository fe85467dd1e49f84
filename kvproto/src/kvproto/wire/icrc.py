"""Invariant CRC of RoCEv2 over IPv4 (InfiniBand Architecture Specification, annex A17).

CRC-32 (the polynomial of Ethernet, as zlib computes it) over eight bytes of ones, the IP header, the UDP header and
everything behind it but the ICRC itself, with what routers may change set to ones: TTL, DSCP and ECN, both checksums
and the reserved byte of the BTH. It stands at the end of the datagram, least significant byte first.
"""

import functools
import struct
import zlib

from kvproto.ids import Address
from kvproto.wire.layouts import IP_PROTOCOL_UDP, IPV4_BYTES, UDP_BYTES, UDP_PORT_ROCE

ICRC_BYTES = 4
BTH_RESERVED_OFFSET = 4
"""The byte of the BTH that the ICRC masks."""
_MASKED_LINK = b"\xff" * 8
_IDENTIFICATION_END = 6
"""Where the identification ends in the IP header."""
_DESTINATION_END = 20
_HEADERS = struct.Struct("!BBHHHBBHIIHHHH")


def masked_headers(source: Address, destination: Address, source_port: int, payload_bytes: int) -> bytes:
    """What the ICRC covers before the BTH, 36 bytes; `payload_bytes`: of the datagram's UDP payload, ICRC included.

    IP identification 0, don't fragment, as all data datagrams have them. The source stands at byte 20, its port at 28.
    """
    udp_bytes = UDP_BYTES + payload_bytes
    return _MASKED_LINK + _HEADERS.pack(
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


def icrc_seed(source: Address, destination: Address, source_port: int, payload_bytes: int) -> int:
    """CRC of everything before the BTH.

    The same for all datagrams of one length between the same ports, so it is computed once and continued.
    """
    return zlib.crc32(masked_headers(source, destination, source_port, payload_bytes))


@functools.cache
def identification_basis(payload_bytes: int) -> tuple[tuple[int, int], ...]:
    """What the identification's bits do to the ICRC of datagrams of this length, reduced: (leading bit, pattern).

    A CRC is linear: flipping a bit of the message flips the same bits of the CRC whatever the rest of the message is.
    """
    udp_bytes = UDP_BYTES + payload_bytes
    behind = bytes(IPV4_BYTES + udp_bytes - ICRC_BYTES - _IDENTIFICATION_END)
    zero = zlib.crc32(bytes(2) + behind)
    basis: list[tuple[int, int]] = []
    for bit in range(16):
        pattern = zlib.crc32((1 << bit).to_bytes(2, "big") + behind) ^ zero
        for lead, known in basis:
            if pattern & lead:
                pattern ^= known
        basis.append((1 << (pattern.bit_length() - 1), pattern))
    return tuple(basis)


@functools.lru_cache(maxsize=256)
def destination_difference(changed: int, payload_bytes: int) -> int:
    """What other bits in the destination's address, those `changed`, do to the ICRC of datagrams of this length."""
    behind = bytes(IPV4_BYTES + UDP_BYTES + payload_bytes - ICRC_BYTES - _DESTINATION_END)
    return zlib.crc32(changed.to_bytes(4, "big") + behind) ^ zlib.crc32(bytes(4) + behind)


def pack_icrc(value: int) -> bytes:
    """The four bytes that end the datagram."""
    return struct.pack("<I", value)
