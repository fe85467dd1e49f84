"""What a process signs with the key of its certificate, so that others of its role know it again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from kvdaemon.identity import Role
from kvdaemon.tls import Certificates, TlsError, checked_chain

_HASH = hashes.SHA256()
_PADDING = padding.PSS(padding.MGF1(_HASH), padding.PSS.DIGEST_LENGTH)
CERTIFICATE_BYTES_MAX = 64 * 1024


class Seals:
    """Of one process: its own signatures, and those of processes of the same role and trust domain."""

    def __init__(self, certificates: Certificates, role: Role) -> None:
        self._certificates = certificates
        self._role = role

    def seal(self, content: bytes) -> tuple[bytes, bytes]:
        """(signature, certificates in PEM). Raises TlsError for a kind of key that signs nothing here."""
        self._certificates.look()
        current = self._certificates.current
        key: Any = load_pem_private_key(current.key, password=None)
        scheme = _scheme(key)
        if scheme is None:
            raise TlsError(f"a key of the kind {type(key).__name__} signs no state: use EC, RSA or Ed25519")
        return key.sign(content, *scheme), current.cert

    def holds(self, content: bytes, signature: bytes, certificate: bytes) -> bool:
        """Whether somebody of this role has signed it, with a certificate that is good now."""
        if not signature or len(certificate) > CERTIFICATE_BYTES_MAX:
            return False
        try:
            found, identity = checked_chain(certificate, self._certificates.current.ca, self._role, datetime.now(UTC))
        except TlsError:
            return False
        if identity.trust_domain != self._certificates.trust_domain:
            return False
        key: Any = found.public_key()
        scheme = _scheme(key)
        try:
            if scheme is not None:
                key.verify(signature, content, *scheme)
        except InvalidSignature:
            return False
        return scheme is not None


def _scheme(key: object) -> tuple[Any, ...] | None:
    """How keys of this kind sign; None: they sign nothing here."""
    match key:
        case ec.EllipticCurvePrivateKey() | ec.EllipticCurvePublicKey():
            return (ec.ECDSA(_HASH),)
        case rsa.RSAPrivateKey() | rsa.RSAPublicKey():
            return _PADDING, _HASH
        case ed25519.Ed25519PrivateKey() | ed25519.Ed25519PublicKey():
            return ()
    return None
