"""Checks of values that configurations have in common: see `Section`. Each raises ValueError naming the value."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

from kvproto.units import parse_rate_bit_s, parse_size_bytes

LOG_LEVELS = ("debug", "info", "warning", "error")
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_PORT_MAX = 65535
_NO_HOST = re.compile(r"[\s,;/@'\"]")
"""What is in no host's name or address, and in what people write for several of them."""
_PORT_DIGITS = re.compile(r"[0-9]{1,5}")


def text(value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def flag(value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def whole(low: int, high: int) -> Callable[[object], int]:
    """Whole numbers from `low` to `high`."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Callable[[object], float]:
    """Numbers from `low` to `high`."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"{value!r} is not a number from {low:g} to {high:g}")
        return float(value)

    return check


def _amount(parse: Callable[[str], int], words: str) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, str):
            return parse(value)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ValueError(f"{value!r} is not {words}")
        return value

    return check


size = _amount(parse_size_bytes, "a size like 4096, 64KiB, 8MiB or 2GiB")
rate = _amount(parse_rate_bit_s, "a rate like 25gbit or 100mbit")
"""A number of bytes, or of bits per second; or a text like the ones above (`kvproto.units`)."""


def one_of(allowed: tuple[str, ...]) -> Callable[[object], str]:
    """One of some words."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
        return value

    return check


def optional_path(value: object) -> Path | None:
    """A path; "" is none."""
    return Path(text(value)) if value != "" else None


def ipv4(value: object) -> str:
    """An IPv4 address."""
    try:
        return str(ipaddress.IPv4Address(text(value)))
    except ipaddress.AddressValueError:
        raise ValueError(f"{value!r} is not an IPv4 address") from None


def ip(value: object) -> str:
    """An IPv4 or IPv6 address without a scope."""
    try:
        address = ipaddress.ip_address(text(value).strip("[]"))
    except ValueError:
        raise ValueError(f"{value!r} is not an IPv4 or IPv6 address") from None
    if isinstance(address, ipaddress.IPv6Address) and (address.scope_id or address.is_link_local):
        raise ValueError(
            f"{value!r} is a link-local address, which other nodes cannot reach by it: a global or unique local one"
            " (fd00::/8) is needed"
        )
    return str(address)


def multicast(value: object) -> str:
    """An IPv4 address of a group (RFC 5771)."""
    address = ipv4(value)
    if not ipaddress.IPv4Address(address).is_multicast:
        raise ValueError(f"{address} is not a multicast address (224.0.0.0 to 239.255.255.255)")
    return address


def mac(value: object) -> bytes:
    """A MAC address; its 6 bytes."""
    if not isinstance(value, str) or not _MAC.fullmatch(value):
        raise ValueError(f"{value!r} is not a MAC address like 02:4b:56:00:00:01 (in quotes)")
    return bytes.fromhex(value.replace(":", ""))


def host_port(value: object, port_min: int = 0) -> tuple[str, int]:
    """HOST:PORT, split into its two parts."""
    host, _, port = text(value).rpartition(":")
    if not host or not _PORT_DIGITS.fullmatch(port) or not port_min <= int(port) <= _PORT_MAX:
        raise ValueError(f"{value!r} is not HOST:PORT with a port from {port_min} to {_PORT_MAX}")
    if odd := _NO_HOST.search(host):
        raise ValueError(f"{value!r} is not one HOST:PORT: no host has {odd[0]!r} in its name")
    return host, int(port)


def endpoints(value: object) -> tuple[str, ...]:
    """HOST:PORT,HOST:PORT,... as operators' commands take it: each of them, once."""
    found = tuple(endpoint(one) for one in text(value).split(","))
    if len(set(found)) < len(found):
        raise ValueError(f"{value!r} names an address twice")
    return found


def endpoint(value: object) -> str:
    """HOST:PORT as it is written; port 0 takes any."""
    host_port(value)
    return text(value)
