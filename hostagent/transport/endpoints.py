"""How an endpoint is written: host:port, an IPv6 address in brackets. Opens nothing."""

from __future__ import annotations

import ipaddress
import socket


def endpoint_of(address: str, port: int) -> str:
    """HOST:PORT of an IPv4 or IPv6 address."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def host_port_of(endpoint: str) -> tuple[str, int]:
    """Its parts; the port is -1 where it is no number."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port) if port.isascii() and port.isdigit() else -1


def is_address(host: str) -> bool:
    """Whether it is an IPv4 or IPv6 address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def family_of(address: str) -> socket.AddressFamily:
    """AF_INET or AF_INET6."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
