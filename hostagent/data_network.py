"""Whether this node is still on its data network: what the kernel says of interface, address and group."""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path
from typing import Final

from hostagent.transport.interfaces import ask_interface
from kvproto.ids import Address, format_address

_SIOCGIFFLAGS: Final = 0x8913
_IFF_UP: Final = 0x1
_IFF_RUNNING: Final = 0x40
_GROUPS: Final = Path("/proc/net/igmp")


def network_fault(address: str, interface: str | None) -> str | None:
    """Why nothing can leave or come, or None. `interface` None: it has no name, as with the loopback."""
    if interface is not None:
        try:
            flags = int.from_bytes(ask_interface(interface, _SIOCGIFFLAGS)[:2], sys.byteorder)
        except OSError as error:
            return f"interface {interface}: {error.strerror}"
        if not flags & _IFF_UP:
            return f"interface {interface} is down"
        if not flags & _IFF_RUNNING:
            return f"interface {interface} has no carrier"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return f"no interface has the address {address} any more"
    return None


def group_fault(group: Address, interface: str | None) -> str | None:
    """Why casts cannot come, or None: the kernel lets them in only where this node is a member of their group."""
    if interface is None or format_address(group) in joined_groups(_GROUPS.read_text(), interface):
        return None
    return f"no socket is in group {format_address(group)} on {interface}; was the interface made anew?"


def joined_groups(table: str, interface: str) -> set[str]:
    """Groups of an interface in /proc/net/igmp: a line for each interface, with lines of its groups indented below,
    whose addresses are in the machine's byte order."""
    groups, here = set(), False
    for line in table.splitlines()[1:]:
        words = line.split()
        if not line.startswith("\t"):
            here = len(words) > 1 and words[1].rstrip(":") == interface
        elif here and words:
            groups.add(socket.inet_ntoa(int(words[0], 16).to_bytes(4, sys.byteorder)))
    return groups
