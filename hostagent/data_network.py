"""Whether this node is still on its data network: what the kernel says of interface, address and group."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final

from hostagent.transport.interfaces import InterfaceFlag, interface_flags, is_own_address
from kvproto.ids import Address, format_address

_GROUPS: Final = Path("/proc/net/igmp")


def network_fault(address: str, interface: str | None) -> str | None:
    """Why nothing can leave or come, or None. `interface` None: it has no name, as with the loopback."""
    if interface is not None:
        try:
            flags = interface_flags(interface)
        except OSError as error:
            return f"interface {interface}: {error.strerror}"
        if InterfaceFlag.UP not in flags:
            return f"interface {interface} is down"
        if InterfaceFlag.RUNNING not in flags:
            return f"interface {interface} has no carrier"
    return None if is_own_address(address) else f"no interface has the address {address} any more"


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
