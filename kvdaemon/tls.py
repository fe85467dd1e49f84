"""TLS from files: read and checked, read again when they are replaced, with errors of one line that name the file.

Both sides always show a certificate (mutual TLS). Certificates may be replaced under a running daemon: a server looks
at its files at every handshake, a client at every connection. Connections that are open stay as they are.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.utils import CryptographyDeprecationWarning

from kvdaemon.errors import CannotRunError
from kvdaemon.identity import Identity, Role, identities
from kvdaemon.tls_settings import TlsSettings
from kvdaemon.what_answers import why_not

log = logging.getLogger(__name__)


_DAMAGES = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What cryptography raises at the sight of certificates that are none, some of it only when a part is asked for."""


class TlsError(CannotRunError):
    """These files do not make a connection: one line that names the file."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Checked contents of the files: PEM, and what the certificate says."""

    cert: bytes
    key: bytes
    ca: bytes
    identity: Identity
    ends: datetime
    """When the certificate, or one of those between it and the authority's, expires."""


def load(settings: TlsSettings, role: Role, node: str = "", now: datetime | None = None) -> Credentials:
    """Read and check the files of a process of this role (an agent: of this node). Raises TlsError."""
    try:
        return _load(settings, role, node, now or datetime.now(UTC))
    except _DAMAGES as error:
        what = " ".join(str(error).split())
        raise TlsError(f"{settings.cert} or {settings.ca} is damaged: {what}") from error


def _load(settings: TlsSettings, role: Role, node: str, now: datetime) -> Credentials:
    cert, key, ca = (_read(path) for path in (settings.cert, settings.key, settings.ca))
    chain, authorities = _certificates(settings.cert, cert), _certificates(settings.ca, ca)
    _check_key(settings, key, chain[0])
    path = _path(settings, chain, authorities)
    for one in path:
        _check_time(settings, one, now)
    ends = min(one.not_valid_after_utc for one in path)
    return Credentials(cert, key, ca, _identity(settings, chain[0], role, node), ends)


class Certificates:
    """The files of one process: what it shows to others, and whom it accepts."""

    def __init__(self, settings: TlsSettings, role: Role, node: str = "") -> None:
        """See `load`. Raises TlsError."""
        self._settings = settings
        self._role = role
        self._node = node
        self._stamps = stamps(settings)
        self.current = load(settings, role, node)
        self._served: Credentials | None = None
        """What gRPC's server has now. It asks in threads of its own."""

    @property
    def trust_domain(self) -> str:
        """Of this process, and of everybody whom it accepts."""
        return self.current.identity.trust_domain

    def look(self) -> bool:
        """Read the files again if they have changed. What is no good is logged and not used. Returns whether there is
        something new."""
        found = stamps(self._settings)
        if found == self._stamps:
            return False
        self._stamps = found
        try:
            self.current = load(self._settings, self._role, self._node)
        except TlsError as error:
            log.warning("the certificate before stays in use: %s", error)
            return False
        log.info("certificate %s is in use, until %s", self._settings.cert, _day(self.current.ends))
        return True

    def ends_s(self) -> float:
        """When the certificate that the files have now expires, in seconds since 1970."""
        self.look()
        return self.current.ends.timestamp()

    def for_server(self) -> grpc.ServerCredentials:
        """For a port of a gRPC server: looks at the files at every handshake. Clients have to show a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._newer() or _configuration(self.current),
            self._newer,  # type: ignore[arg-type]  # gRPC takes None for "nothing new"; its types do not say so
            require_client_authentication=True,
        )

    def for_channel(self) -> tuple[grpc.ChannelCredentials, list[tuple[str, str]]]:
        """Credentials and options of one connection to the controller. Raises TlsError."""
        self.look()
        current = self.current
        if words := expired_words(current.ends):
            raise TlsError(f"{self._settings.cert}: {words}: renew it")
        credentials = grpc.ssl_channel_credentials(current.ca, current.key, current.cert)
        return credentials, [("grpc.ssl_target_name_override", self._controller_name)]

    def why_not(self, address: str) -> str:
        """Why a TLS connection to the controller at HOST:PORT fails (see `what_answers`)."""
        return why_not(address, self._settings, self._controller_name)

    @property
    def _controller_name(self) -> str:
        return Identity(self.trust_domain, Role.CONTROLLER).server_name

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        self.look()
        if self.current is self._served:
            return None
        self._served = self.current
        return _configuration(self._served)


def checked_chain(pem: bytes, ca: bytes, role: Role, now: datetime) -> tuple[x509.Certificate, Identity]:
    """A certificate that somebody shows, the others of its chain behind it, and whose it is. Raises TlsError unless an
    authority in `ca` has signed it, it is good now, and it is of this role."""
    shown = TlsSettings(Path("the certificate shown"), Path("no key"), Path("the authorities"))
    try:
        chain, authorities = _certificates(shown.cert, pem), _certificates(shown.ca, ca)
        for one in _path(shown, chain, authorities):
            _check_time(shown, one, now)
        return chain[0], _identity(shown, chain[0], role, "")
    except _DAMAGES as error:
        raise TlsError("the certificate shown is damaged") from error


def stamps(settings: TlsSettings) -> tuple[tuple[int, int, int] | None, ...]:
    """Changes when one of the files is replaced or written, also behind a symbolic link (Kubernetes)."""
    found: list[tuple[int, int, int] | None] = []
    for path in (settings.cert, settings.key, settings.ca):
        try:
            entry = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((entry.st_mtime_ns, entry.st_ino, entry.st_size))
    return tuple(found)


def expired_words(ends: datetime, now: datetime | None = None) -> str:
    """A line when a certificate has expired; else empty."""
    return f"the certificate expired {_day(ends)}" if ends <= (now or datetime.now(UTC)) else ""


# -- inside


def _configuration(current: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(current.key, current.cert)], root_certificates=current.ca)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from error


def _certificates(path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        with warnings.catch_warnings():
            # What breaks RFC 5280 (a serial number below 1) is no certificate, also where it can still be read.
            warnings.simplefilter("error", CryptographyDeprecationWarning)
            return x509.load_pem_x509_certificates(pem)
    except (ValueError, CryptographyDeprecationWarning) as error:
        raise TlsError(f"{path} has no certificate in PEM") from error


def _check_key(settings: TlsSettings, pem: bytes, cert: x509.Certificate) -> None:
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise TlsError(f"{settings.key} is encrypted: give a key without a password, mode 0600") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsError(f"{settings.key} has no private key in PEM") from error
    if key.public_key() != cert.public_key():
        raise TlsError(f"{settings.key} is not the key of {settings.cert}")


def _path(
    settings: TlsSettings, chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> list[x509.Certificate]:
    """From the certificate to the authority that all trust. Raises TlsError if there is no way."""
    path = [chain[0]]
    while len(path) <= len(chain):
        authority = next((one for one in authorities if _issued(path[-1], one)), None)
        if authority is not None:
            return [*path, authority]
        between = next((one for one in chain[1:] if one not in path and _issued(path[-1], one)), None)
        if between is None:
            break
        path.append(between)
    raise TlsError(f"{settings.cert} is not signed by {settings.ca}")


def _issued(cert: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _check_time(settings: TlsSettings, cert: x509.Certificate, now: datetime) -> None:
    where = f"{settings.cert} ({cert.subject.rfc4514_string() or 'no subject'})"
    if now > cert.not_valid_after_utc:
        raise TlsError(f"{where} expired {_day(cert.not_valid_after_utc)}: renew it")
    if now < cert.not_valid_before_utc:
        raise TlsError(f"{where} is not valid before {_day(cert.not_valid_before_utc)}: is this machine's clock right?")


def _identity(settings: TlsSettings, cert: x509.Certificate, role: Role, node: str) -> Identity:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    wanted = f"/{role.value}" + (f"/{node}" if node else "")
    for one in identities(uris):
        if one.role is role and (not node or one.node == node):
            return one
    shown = ", ".join(uris) or "no kvcast process"
    raise TlsError(f"{settings.cert} is the certificate of {shown}: this process needs spiffe://TRUST_DOMAIN{wanted}")


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")
