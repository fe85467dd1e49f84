"""Identifiers of the protocol: nodes, members of a switch, addresses, reads. Owns no state."""

import functools
from collections.abc import Iterable
from typing import Final, NewType

_ADDRESSES: Final = 1024
"""Whose text is remembered: peers and groups. Each datagram has one."""

NodeId = NewType("NodeId", str)
"""A node as the controller knows it; one agent per node."""

Member = NewType("Member", int)
"""Small index of a node at its switch: its bit in interest sets, 0..63."""

Address = NewType("Address", int)
"""IPv4 address as an unsigned 32-bit integer in host order (`parse_address`, `format_address`)."""

FetchId = NewType("FetchId", int)
"""One fetch of an engine at this node; chosen by the shell, never reused while the node lives."""

ReadId = NewType("ReadId", int)
"""One reliable read (a stripe); chosen by the reader, never reused while the node lives."""

FillId = NewType("FillId", int)
"""One filling of a chunk into the switch; chosen by whoever orders it, never reused while the holder lives."""


@functools.lru_cache(maxsize=_ADDRESSES)
def parse_address(text: str) -> Address:
    """IPv4 address from dotted text. Raises ValueError naming the text."""
    parts = text.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and int(part) <= 255 for part in parts):
        raise ValueError(f"not an IPv4 address: {text!r}")
    return Address(int.from_bytes(bytes(map(int, parts)), "big"))


@functools.lru_cache(maxsize=_ADDRESSES)
def format_address(address: Address) -> str:
    """Dotted text of an IPv4 address."""
    return ".".join(map(str, address.to_bytes(4, "big")))


def members_of(bitmap: int) -> Iterable[Member]:
    """Members whose bit is set, lowest first."""
    while bitmap:
        low = bitmap & -bitmap
        yield Member(low.bit_length() - 1)
        bitmap ^= low
