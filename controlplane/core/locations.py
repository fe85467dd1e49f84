"""Where nodes are: what the switch saw of them, held against what was configured and against each other. Pure.

A node says HERE on the data network, with a key that the controller gave it alone. The switch reports the port, MAC and
IP address it came from. So a port is never believed because somebody wrote it down, and no host can speak for a node.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.core.ids import SwitchPort


@dataclass(frozen=True, slots=True)
class Location:
    """A node's data interface, and the port of the switch behind which it is."""

    port: SwitchPort
    mac: bytes
    ip: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """What one node says or was seen to be, as far as others can contradict it."""

    name: str
    mac: bytes
    ip: bytes
    port: SwitchPort | None
    """Where it was seen; None: nowhere yet."""


def contradiction(claim: Claim, seen: Location, others: Iterable[Claim]) -> str:
    """Why a frame that a node sent from `seen` does not show where the node is; empty: it does. `others`: nodes that
    were seen, and keep what they have."""
    if (seen.mac, seen.ip) != (claim.mac, claim.ip):
        return (
            f"it sends from {mac_text(seen.mac)}, {ip_text(seen.ip)} at switch port {seen.port}, and says that it is"
            f" {mac_text(claim.mac)}, {ip_text(claim.ip)}"
        )
    for other in others:
        if other.mac == claim.mac:
            return f"its MAC address {mac_text(claim.mac)} at switch port {seen.port} is that of {other.name}"
        if other.ip == claim.ip:
            return f"its address {ip_text(claim.ip)} at switch port {seen.port} is that of {other.name}"
    return ""


def refusal(port: SwitchPort, configured: SwitchPort | None, others: Iterable[Claim]) -> str:
    """Why a node that was seen at `port` takes part in no cast; empty: it does. `others`: nodes that take part."""
    if configured is not None and configured != port:
        return f"switch port {configured} is configured, and it was seen at switch port {port}"
    sharing = next((other.name for other in others if other.port == port), "")
    return f"switch port {port} is that of {sharing}, too" if sharing else ""


def mac_text(mac: bytes) -> str:
    """As people write it."""
    return mac.hex(":")


def ip_text(ip: bytes) -> str:
    """As people write it."""
    return str(ipaddress.ip_address(ip))
