"""TLS of the P4Runtime server: certificates from files, which may be replaced while it runs, and who may control.

A client's identity is the URIs (SPIFFE) in its certificate's subject alternative names, and nothing else: authorities
let their users choose e-mail addresses, DNS names and common names more freely.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from p4switch.errors import SwitchError
from p4switch.server.status import denied

log = logging.getLogger(__name__)

_URIS = "peer_uri"
"""The property of gRPC's authentication context that has them."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `ca`: clients must show a certificate that it has signed; None: clients show none.

    `controllers`: URIs of certificates that may write, set programs and open streams; empty: every client may.
    """

    cert: Path
    key: Path
    ca: Path | None = None
    controllers: frozenset[str] = frozenset()


class Certificates:
    """The files' contents, read again once they have changed. Raises SwitchError when they are no good at the start."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = self._stamps()
        self._current = _load(files)

    def credentials(self) -> grpc.ServerCredentials:
        """For a gRPC server; every handshake uses the content of the files at that time."""
        return grpc.dynamic_ssl_server_credentials(
            self._current,
            self._newer,  # type: ignore[arg-type]  # gRPC takes None for "nothing new"; its types do not say so
            require_client_authentication=self._files.ca is not None,
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """What has changed, for the handshake at hand; None: nothing. Files that are no good are logged, not used."""
        stamp = self._stamps()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            self._current = _load(self._files)
        except SwitchError as error:
            log.warning("the certificates before stay in use: %s", error)
            return None
        log.info("certificate %s is in use", self._files.cert)
        return self._current

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(p) for p in (self._files.cert, self._files.key, self._files.ca) if p is not None)


def check_controller(controllers: frozenset[str], context: grpc.ServicerContext) -> None:
    """Raise StatusError unless the client may change things."""
    if not controllers:
        return
    names = identity(context)
    if not names & controllers:
        who = ", ".join(sorted(names)) or "a client without a URI in its certificate"
        raise denied(f"{who} may read only: no --tls-controller")


def identity(context: grpc.ServicerContext) -> frozenset[str]:
    """The URIs in the client's certificate."""
    properties: Mapping[str, Iterable[bytes]] = context.auth_context()  # type: ignore[assignment]
    return frozenset(name.decode(errors="replace") for name in properties.get(_URIS, ()))


def _load(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    try:
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trial.load_cert_chain(files.cert, files.key, password=_no_password)
        if files.ca is not None:
            trial.load_verify_locations(files.ca)
        pair = (files.key.read_bytes(), files.cert.read_bytes())
        ca = None if files.ca is None else files.ca.read_bytes()
    except ssl.SSLError as error:
        raise SwitchError(f"{_names(files)}: no certificate with its key in PEM: {error.reason or error}") from error
    except OSError as error:
        raise SwitchError(f"cannot read {error.filename or _names(files)}: {error.strerror}") from error
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=ca)


def _no_password() -> str:
    raise SwitchError("the key is encrypted: give one without a password, readable by the switch's user only")


def _names(files: TlsFiles) -> str:
    return ", ".join(str(p) for p in (files.cert, files.key, files.ca) if p is not None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
