"""Who listens at an address where gRPC finds no gRPC server, in words for a person."""

from __future__ import annotations

import socket
from typing import Final

from kvdaemon.tls_probe import speaks_tls

TIMEOUT_S: Final = 2.0
_BROKEN_OFF: Final = ("Socket closed", "Stream removed", "Connection reset", "GOAWAY")
"""What gRPC says of a connection whose other end has gone; it is for its authors."""


def in_words(details: str) -> str:
    """Why a call failed, as gRPC has it, for a person."""
    return "the connection broke off" if any(phrase in details for phrase in _BROKEN_OFF) else details


def what_answers(address: str, tls_remedy: str = "give certificates in the section tls") -> str:
    """What a connection to HOST:PORT finds there. Blocks for a few seconds at most."""
    before, _, port = address.rpartition(":")
    host = before.strip("[]")
    if not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        return f"{address!r} is not HOST:PORT"
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as probe:
            said = _answer(probe)
    except TimeoutError:
        return "nothing answers (a firewall, or a wrong address?)"
    except ConnectionRefusedError:
        return "nobody listens there"
    except OSError as error:
        return f"it cannot be reached: {error.strerror or error}"
    if said is None:
        return "something listens there that says nothing: no gRPC server, or one that hangs"
    if not said and speaks_tls(host, int(port)):
        return f"it speaks TLS: {tls_remedy}"
    if said.startswith(b"HTTP/1."):
        return "an HTTP server listens there, such as a daemon's metrics page"
    return "something that is no gRPC server listens there"


def _answer(probe: socket.socket) -> bytes | None:
    """How it answers what a browser would ask; None: it does not."""
    try:
        probe.sendall(b"GET / HTTP/1.1\r\nHost: kvcast\r\nConnection: close\r\n\r\n")
        return probe.recv(64)
    except TimeoutError:
        return None
