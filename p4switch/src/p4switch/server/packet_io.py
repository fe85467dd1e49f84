"""Packets between controller and data plane: the controller headers in front of them. Pure.

A packet to the CPU port starts with the program's `@controller_header("packet_in")`, one from it with
`packet_out`, each a whole number of bytes; P4Runtime carries the fields separately from the payload.
"""

from __future__ import annotations

from collections.abc import Sequence

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.schema import ParamSpec, Schema
from p4switch.server.status import invalid
from p4switch.server.translate import decode_metadata, encode_metadata


def packet_in(schema: Schema, frame: bytes) -> p4r.PacketIn:
    """What the client gets of a frame that left through the CPU port; one too short for its header has no metadata."""
    header_bytes = _header_bytes(schema.packet_in)
    if schema.packet_in is None or len(frame) < header_bytes:
        return p4r.PacketIn(payload=frame)
    bits = int.from_bytes(frame[:header_bytes], "big") >> (header_bytes * 8 - _header_bits(schema.packet_in))
    values = []
    for param in reversed(schema.packet_in):
        values.append(bits & ((1 << param.native_width) - 1))
        bits >>= param.native_width
    return p4r.PacketIn(payload=frame[header_bytes:], metadata=encode_metadata(schema.packet_in, values[::-1]))


def packet_out(schema: Schema, message: p4r.PacketOut) -> bytes:
    """The frame that enters through the CPU port. Raises StatusError when the metadata does not fit P4Info."""
    if schema.packet_out is None:
        if message.metadata:
            raise invalid("the program has no packet_out header, so a packet-out has no metadata")
        return message.payload
    values = decode_metadata(schema.packet_out, message.metadata, "packet_out")
    bits = 0
    for param, value in zip(schema.packet_out, values, strict=True):
        bits = bits << param.native_width | value
    header_bytes = _header_bytes(schema.packet_out)
    bits <<= header_bytes * 8 - _header_bits(schema.packet_out)
    return bits.to_bytes(header_bytes, "big") + message.payload


def _header_bits(params: Sequence[ParamSpec]) -> int:
    return sum(p.native_width for p in params)


def _header_bytes(params: Sequence[ParamSpec] | None) -> int:
    return 0 if params is None else (_header_bits(params) + 7) // 8
