"""Who listens at an address where gRPC finds no gRPC server, in words for a person."""

from __future__ import annotations

import socket
from typing import Final

from kvdaemon.tls_probe import speaks_tls

TIMEOUT_S: Final = 2.0
_BROKEN_OFF: Final = ("Socket closed", "Stream removed", "Connection reset", "GOAWAY")
"""gRPC's words, meant for its authors, for a connection that the other end closed."""


def in_words(details: str) -> str:
    """gRPC's reason for a failed call, in words for a person."""
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
        return "no process listens there"
    except OSError as error:
        return f"it cannot be reached: {error.strerror or error}"
    if said is None:
        return "a process listens there and does not answer: it is not a gRPC server, or it hangs"
    if not said and speaks_tls(host, int(port)):
        return f"it speaks TLS: {tls_remedy}"
    if said.startswith(b"HTTP/1."):
        return "an HTTP server listens there, such as a daemon's metrics page"
    return "the process that listens there is not a gRPC server"


def _answer(probe: socket.socket) -> bytes | None:
    """Its answer to an HTTP request; None: it gives none."""
    try:
        probe.sendall(b"GET / HTTP/1.1\r\nHost: kvcast\r\nConnection: close\r\n\r\n")
        return probe.recv(64)
    except TimeoutError:
        return None
