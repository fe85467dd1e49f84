"""What the kernel says when interfaces and their addresses change: messages of rtnetlink(7), read. It opens nothing.

A datagram has any number of messages, each with a length, and each message attributes, each with a length. Whatever is
cut short or of another kind is passed over: what is not understood must not keep a node from looking for itself.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

GROUPS: Final = 0x1 | 0x10 | 0x100
"""RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR."""
DATAGRAM_BYTES_MAX: Final = 64 * 1024
"""The kernel makes none longer than 32 KiB."""

_HEAD: Final = struct.Struct("=IHHII")
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NEW_LINK, _LINK_LOST, _NEW_ADDRESS, _ADDRESS_LOST = 16, 17, 20, 21
_IFLA_IFNAME, _IFA_ADDRESS, _IFA_LOCAL = 3, 1, 2
_KIND: Final = 0x3FFF
"""Of an attribute's type: above it are flags."""


@dataclass(frozen=True, slots=True)
class LinkChange:
    """An interface is there, as it is now, or no longer."""

    index: int
    name: str
    lost: bool


@dataclass(frozen=True, slots=True)
class AddressChange:
    """An interface has an address, or no longer."""

    index: int
    address: str
    lost: bool


Change: TypeAlias = LinkChange | AddressChange


def changes_of(datagram: bytes) -> Iterator[Change]:
    """What a datagram tells, in order."""
    for kind, body in _messages(datagram):
        change: Change | None = None
        if kind in (_NEW_LINK, _LINK_LOST):
            change = _link(body, lost=kind == _LINK_LOST)
        elif kind in (_NEW_ADDRESS, _ADDRESS_LOST):
            change = _address(body, lost=kind == _ADDRESS_LOST)
        if change is not None:
            yield change


def _messages(datagram: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEAD.size <= len(datagram):
        size, kind, *_ = _HEAD.unpack_from(datagram, at)
        if size < _HEAD.size or at + size > len(datagram):
            return
        yield kind, datagram[at + _HEAD.size : at + size]
        at += -(-size // 4) * 4


def _attributes(body: bytes, at: int) -> dict[int, bytes]:
    """By type; of several, the last."""
    found = {}
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if size < _ATTRIBUTE.size or at + size > len(body):
            break
        found[kind & _KIND] = body[at + _ATTRIBUTE.size : at + size]
        at += -(-size // 4) * 4
    return found


def _link(body: bytes, *, lost: bool) -> LinkChange | None:
    if len(body) < _LINK.size:
        return None
    _, _, index, _, _ = _LINK.unpack_from(body)
    name = _attributes(body, _LINK.size).get(_IFLA_IFNAME, b"")
    return LinkChange(index, name.partition(b"\0")[0].decode(errors="surrogateescape"), lost)


def _address(body: bytes, *, lost: bool) -> AddressChange | None:
    if len(body) < _ADDRESS.size:
        return None
    family, _, _, _, index = _ADDRESS.unpack_from(body)
    size = {socket.AF_INET: 4, socket.AF_INET6: 16}.get(family)
    attributes = _attributes(body, _ADDRESS.size)
    # Of a point-to-point link, IFA_ADDRESS is the other end's.
    packed = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS, b"")
    if size is None or len(packed) != size:
        return None
    return AddressChange(index, str(ipaddress.ip_address(packed)), lost)
