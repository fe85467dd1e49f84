"""Checksums and hashes of TNA, a second time: what its externs are held against."""

from __future__ import annotations

import struct


def crc16_arc(octets: bytes) -> int:
    """CRC-16/ARC, bit by bit."""
    crc = 0
    for octet in octets:
        crc ^= octet
        for _ in range(8):
            crc = (crc >> 1) ^ (0xA001 if crc & 1 else 0)
    return crc


def internet_checksum(header: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
