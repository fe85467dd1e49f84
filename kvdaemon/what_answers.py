"""Who listens at an address where gRPC finds no gRPC server, in words for a person; and why TLS with it fails.

gRPC retries, and reports only that it cannot connect: a handshake with the standard library has errors that name the
cause.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

from kvdaemon.tls_settings import TlsSettings

TIMEOUT_S: Final = 2.0
_BROKEN_OFF: Final = ("Socket closed", "Stream removed", "Connection reset", "GOAWAY")
"""gRPC's words, meant for its authors, for a connection that the other end closed."""
_ALERTS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority that signed our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that our certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it says that our certificate is bad",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it demands a certificate, and this process has none",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: give it certificates, or remove tls here",
    "RECORD_LAYER_FAILURE": "it does not speak TLS: give it certificates, or remove tls here",
}


def in_words(details: str) -> str:
    """gRPC's reason for a failed call, in words for a person."""
    return "the connection broke off" if any(phrase in details for phrase in _BROKEN_OFF) else details


def what_answers(address: str, tls_remedy: str = "give certificates in the section tls") -> str:
    """What a connection to HOST:PORT or unix:PATH finds there. Blocks for a few seconds at most."""
    before, _, port = address.rpartition(":")
    host = before.strip("[]")
    path = address.removeprefix("unix:") if address.startswith("unix:") else None
    if path is None and (not port.isascii() or not port.isdigit() or int(port) > 0xFFFF):
        return f"{address!r} is not HOST:PORT"
    try:
        with _to_file(path) if path is not None else socket.create_connection((host, int(port)), TIMEOUT_S) as probe:
            said = _answer(probe)
    except TimeoutError:
        return "nothing answers (a firewall, or a wrong address?)"
    except ConnectionRefusedError:
        return "no process listens there"
    except OSError as error:
        return f"it cannot be reached: {error.strerror or error}"
    if said is None:
        return "a process listens there and does not answer: it is not a gRPC server, or it hangs"
    if not said and path is None and _speaks_tls(host, int(port)):
        return f"it speaks TLS: {tls_remedy}"
    if said.startswith(b"HTTP/1."):
        return "an HTTP server listens there, such as a daemon's metrics page"
    return "the process that listens there is not a gRPC server"


def _to_file(path: str) -> socket.socket:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(TIMEOUT_S)
        probe.connect(path)
    except OSError:
        probe.close()
        raise
    return probe


def _answer(probe: socket.socket) -> bytes | None:
    """Its answer to an HTTP request; None: it gives none."""
    try:
        probe.sendall(b"GET / HTTP/1.1\r\nHost: kvcast\r\nConnection: close\r\n\r\n")
        return probe.recv(64)
    except TimeoutError:
        return None


def why_not(address: str, tls: TlsSettings, server_name: str) -> str:
    """The cause in one line; empty: the handshake succeeds. Blocks for a few seconds at most."""
    host, _, port = address.rpartition(":")
    try:
        context = ssl.create_default_context(cafile=str(tls.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(tls.cert, tls.key)
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=server_name) as secured,
        ):
            # In TLS 1.3 a client has finished before the server has looked at its certificate (RFC 8446, 2).
            secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not that of {server_name}: {error.verify_message.rstrip('.')}"
    except ssl.SSLError as error:
        return _ALERTS.get(error.reason or "", f"TLS fails: {error.reason or error}")
    except TimeoutError:
        return "it does not answer"
    except OSError as error:
        return f"it cannot be reached: {error.strerror or error}"
    return ""


def _speaks_tls(host: str, port: int) -> bool:
    """Whether a server answers a TLS handshake; whose it is does not matter. Blocks for a few seconds at most."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False
