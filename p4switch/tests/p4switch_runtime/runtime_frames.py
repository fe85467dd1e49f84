"""Frames that command the exerciser (exerciser.c), and what comes back."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

_COMMAND = struct.Struct("!BBHHHQ")
_ETHERNET = struct.Struct("!6s6sH")
TYPE_COMMAND = 0x88B5


class Op(IntEnum):
    FORWARD = 1
    MULTICAST = 2
    CLONE_I2E = 3
    CLONE_E2E = 4
    RESUBMIT = 5
    RECIRCULATE = 6
    DIGEST = 7
    DROP = 8
    TRUNCATE = 9
    EGRESS_DROP = 10
    EGRESS_WRITE = 11
    REGISTER = 12
    METER = 13
    LOG = 14
    REMOVE = 15
    CLONE_LOOP = 16
    RANDOM = 17
    SEE = 18


@dataclass(frozen=True, slots=True)
class Reply:
    """A command frame that came out: its fields and what followed them."""

    op: int
    keep: int
    a: int
    b: int
    c: int
    value: int
    payload: bytes


def mac(number: int) -> bytes:
    return (0x020000000000 + number).to_bytes(6, "big")


def ethernet(destination: int, source: int = 99, payload: bytes = b"x" * 46, kind: int = 0x0800) -> bytes:
    return _ETHERNET.pack(mac(destination), mac(source), kind) + payload


def command(op: Op, a: int = 0, b: int = 0, *, value: int = 0, keep: int = 0, payload: bytes = b"payload") -> bytes:
    """``keep`` 0: no field list; 1: the list that keeps ``value``; c is filled by the program."""
    return _ETHERNET.pack(mac(1), mac(2), TYPE_COMMAND) + _COMMAND.pack(op, keep, a, b, 0, value) + payload


def reply(frame: bytes) -> Reply:
    assert frame[12:14] == TYPE_COMMAND.to_bytes(2, "big")
    op, keep, a, b, c, value = _COMMAND.unpack_from(frame, 14)
    return Reply(op, keep, a, b, c, value, frame[30:])
