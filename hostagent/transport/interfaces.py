"""What the kernel says of this machine's interfaces. All their addresses: an interface may have several, and the one
that a node uses need not be its first. Flags and MTU: netdevice(7)."""

from __future__ import annotations

import ctypes
import enum
import errno
import fcntl
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hostagent.config import DataConfig
from hostagent.transport.base import TransportError
from hostagent.transport.endpoints import family_of

_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFMTU: Final = 0x8921


class InterfaceFlag(enum.IntFlag):
    """Of an interface; there are more."""

    UP = 0x1
    LOOPBACK = 0x8
    RUNNING = 0x40
    """It has a carrier."""
    MULTICAST = 0x1000


class _IfAddrs(ctypes.Structure):
    """One of getifaddrs(3)'s list."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other_end", ctypes.c_void_p),
    ("statistics", ctypes.c_void_p),
]


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """An address that an interface has."""

    interface: str
    address: str
    prefix_bits: int
    is_loopback: bool
    """The interface's traffic stays on this machine; its address may be reached by others, though."""


def addresses() -> list[InterfaceAddress]:
    """Of all interfaces, in the kernel's order. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return list(_listed(first))
    finally:
        libc.freeifaddrs(first)


def _listed(one: ctypes._Pointer[_IfAddrs]) -> Iterator[InterfaceAddress]:
    while one:
        entry = one.contents
        address = _ip(entry.address)
        if address is not None:
            bits = int.from_bytes(_ip(entry.netmask) or b"", "big").bit_count()
            name = entry.name.decode(errors="surrogateescape").partition(":")[0]  # behind it an alias has its label
            text = str(ipaddress.ip_address(address))
            yield InterfaceAddress(name, text, bits, bool(entry.flags & InterfaceFlag.LOOPBACK))
        one = entry.next


def _ip(sockaddr: int | None) -> bytes | None:
    """The address in a sockaddr, 4 or 16 bytes; None: there is none, or of another family."""
    if not sockaddr:
        return None
    (family,) = struct.unpack("=H", ctypes.string_at(sockaddr, 2))
    if family == socket.AF_INET:
        return ctypes.string_at(sockaddr + 4, 4)
    return ctypes.string_at(sockaddr + 8, 16) if family == socket.AF_INET6 else None


def ask_interface(name: str, request: int) -> bytes:
    """Answer of one of the SIOCGIF... requests of netdevice(7): the 24 bytes after the name. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))[16:40]


def interface_flags(name: str) -> InterfaceFlag:
    """Raises OSError for an interface that there is not."""
    return InterfaceFlag(int.from_bytes(ask_interface(name, _SIOCGIFFLAGS)[:2], sys.byteorder))


def mtu_bytes(name: str) -> int:
    """Raises OSError for an interface that there is not."""
    return int.from_bytes(ask_interface(name, _SIOCGIFMTU)[:4], sys.byteorder)


def is_link_local(address: str) -> bool:
    """An address that means nothing without an interface: no peer can be told of it."""
    return ":" in address and ipaddress.IPv6Address(address).is_link_local


def is_own_address(address: str) -> bool:
    """Whether this machine can send from an address."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return False
    return True


def entry_of(address: str) -> InterfaceAddress | None:
    """Where an address is; None: on no interface."""
    return next((one for one in addresses() if one.address == address), None)


def interface_with(address: str) -> str | None:
    """The interface that has an address, the loopback excepted; None: there is none."""
    found = entry_of(address)
    return None if found is None or found.is_loopback else found.interface


def sending_interface(address: str, chosen: str = "") -> str | None:
    """By which interface datagrams from an address leave: the chosen one, else the one that has it; None: it is one of
    the loopback's, and routes decide.

    Raises TransportError where nothing says it: a default route would take KV to the management network.
    """
    found = entry_of(address)
    if chosen and (found is None or found.interface != chosen):
        return chosen
    if found is None and not ipaddress.ip_address(address).is_loopback:
        raise TransportError(
            f"no interface of this machine has {address}: data.address is one of {_list(addresses())}, or set"
            " data.interface, too"
        )
    return None if found is None or found.is_loopback else found.interface


def interface_address(config: DataConfig, before: str = "") -> str:
    """The address on the data network: the configured one; else the one `before`, as long as the interface has it; else
    the interface's first, IPv4 before IPv6. Raises TransportError."""
    if not config.interface:
        return config.address
    names = [name for _, name in socket.if_nameindex()]
    if config.interface not in names:
        raise TransportError(f"there is no interface {config.interface}; set data.interface to one of {_join(names)}")
    entries = addresses()
    own = [one for one in entries if one.interface == config.interface]
    if config.address:
        elsewhere = [one for one in entries if one.address == config.address and not one.is_loopback]
        if elsewhere and config.interface not in {one.interface for one in elsewhere}:
            raise TransportError(
                f"data.address {config.address} is {elsewhere[0].interface}'s, not data.interface {config.interface}'s,"
                f" which has {_list(own)}: correct one of the two"
            )
        return config.address
    usable = usable_addresses(own)
    if not usable:
        only = f" but {_join([one.address for one in own])}, which other nodes cannot reach by it" if own else ""
        raise TransportError(f"interface {config.interface} has no address{only}; give it one")
    return before if before in usable else usable[0]


def ipv4_beside(address: str, interface: str | None) -> str:
    """The IPv4 address for casts of a node that is read at `address`: the same, else its interface's first; empty:
    there is none."""
    if ":" not in address:
        return address
    own = [one for one in addresses() if one.interface == interface]
    return next((one for one in usable_addresses(own) if ":" not in one), "")


def usable_addresses(entries: Sequence[InterfaceAddress]) -> list[str]:
    """Addresses by which others can reach an interface, IPv4 first, in the kernel's order."""
    reachable = [one.address for one in entries if not is_link_local(one.address)]
    return sorted(reachable, key=lambda address: ":" in address)


def _list(entries: list[InterfaceAddress]) -> str:
    return _join([one for one in usable_addresses(entries) if one != "::1"])


def _join(names: list[str]) -> str:
    return ", ".join(names) or "none"
