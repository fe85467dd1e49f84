"""`kvcast pki`: an authority and certificates for a cluster, as daemons and commands want them.

A small certificate authority for development: certificates as kvcast's daemons and commands want them.

An authority signs, everybody has a certificate with the URI of its identity (SPIFFE), and servers have a DNS name too.
Keys are on the curve P-256, certificates as RFC 5280 has them. It keeps no list of what it has signed and revokes
nothing: whoever has the authority's key can be everybody.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from rich.table import Table

from kvcast.arguments import checked, output_folder, whole
from kvcast.errors import UsageError
from kvcast.operator import console
from kvdaemon.files import replace_file
from kvdaemon.identity import TRUST_DOMAIN, Identity, Role, parse_identity, trust_domain

AUTHORITY: Final = "ca"
"""Name of its files."""
AUTHORITY_DAYS: Final = 3650
_SERVERS: Final = (Role.CONTROLLER, Role.SWITCH)
_BEFORE: Final = timedelta(minutes=5)
"""For machines whose clocks are behind."""


class CertificateError(Exception):
    """One line about files that are there and no good."""


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs; lies in a folder as ca.pem and ca.key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    trust_domain: str

    def issue(self, folder: Path, identity: Identity, days: float) -> Path:
        """Write a new certificate with its key: NAME.pem and NAME.key. Returns the former. Raises OSError."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = _builder(_common_name(str(identity)), key.public_key(), self.cert.subject, days)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(str(identity))]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role in _SERVERS:
            names.append(x509.DNSName(identity.server_name))
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        cert = (
            cert.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        name = file_name(identity)
        write_pair(folder, name, cert.sign(self.key, hashes.SHA256()), key)
        return folder / f"{name}.pem"


def file_name(identity: Identity) -> str:
    """Of its files, without .pem and .key."""
    return f"{identity.role.value}-{identity.node}" if identity.node else identity.role.value


def authority(folder: Path, trust_domain: str) -> tuple[Authority, bool]:
    """The one in a folder, or a new one. Returns it, and whether it is new. Raises CertificateError, OSError."""
    cert_path, key_path = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"
    if cert_path.exists() != key_path.exists():
        missing = key_path if cert_path.exists() else cert_path
        raise CertificateError(f"{missing} is missing: nothing can be signed here without it")
    if cert_path.exists():
        return _read(cert_path, key_path, trust_domain), False
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name(f"kvcast authority of {trust_domain}")
    cert = (
        _builder(name, key.public_key(), name, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    write_pair(folder, AUTHORITY, cert, key)
    return Authority(cert, key, trust_domain), True


def write_pair(folder: Path, name: str, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """The key first, readable for its owner only; each file appears whole or not at all. Raises OSError."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    replace_file(folder / f"{name}.key", private, 0o600)
    replace_file(folder / f"{name}.pem", cert.public_bytes(serialization.Encoding.PEM), 0o644)


def _read(cert_path: Path, key_path: Path, trust_domain: str) -> Authority:
    try:
        cert = x509.load_pem_x509_certificate(cert_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        uris = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
            x509.UniformResourceIdentifier
        )
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise CertificateError(f"{cert_path} and {key_path} are no authority of kvcast pki") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != cert.public_key():
        raise CertificateError(f"{key_path} is not the key of {cert_path}")
    if uris != [f"spiffe://{trust_domain}"]:
        raise CertificateError(f"{cert_path} is the authority of {', '.join(uris)}: give its name with --trust-domain")
    if cert.not_valid_after_utc < datetime.now(UTC):
        raise CertificateError(f"{cert_path} has expired: begin with another folder")
    return Authority(cert, key, trust_domain)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


_FOR = {
    Role.AGENT: "agent.yaml of the node",
    Role.CONTROLLER: "controller.yaml",
    Role.OPERATOR: "commands: --tls-cert, --tls-key",
    Role.ENGINE: "engines",
    Role.SWITCH: "p4switch --tls-cert and --tls-key",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast pki`."""
    parser.add_argument("--dir", type=output_folder, default=Path("tls"), metavar="DIR", help="default: tls")
    parser.add_argument("--nodes", default="", metavar="NODE,...", help="the agents; more can be added by another call")
    parser.add_argument(
        "--trust-domain",
        type=checked(trust_domain),
        default=TRUST_DOMAIN,
        metavar="NAME",
        help="the first part of all identities (default %(default)s)",
    )
    parser.add_argument("--days", type=whole(1), default=365, help="that certificates are good for (default 365)")
    parser.add_argument("--renew", action="store_true", help="replace certificates that are there")


def run(args: argparse.Namespace) -> int:
    """Make what is missing, and show it."""
    wanted = [Identity(args.trust_domain, role) for role in Role if role is not Role.AGENT]
    for node in filter(None, (name.strip() for name in args.nodes.split(","))):
        try:
            wanted.append(parse_identity(f"spiffe://{args.trust_domain}/agent/{node}"))
        except ValueError as error:
            raise UsageError(f"--nodes: {node!r} is not a node's name: letters, digits, '.', '_' and '-'") from error
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("FILES", "IDENTITY", "FOR"):
        table.add_column(heading, overflow="fold")
    try:
        args.dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        signer, new = authority(args.dir, args.trust_domain)
        table.add_row(AUTHORITY, "the authority" + ("" if new else " (was there)"), "everybody's ca; its key: nobody's")
        for identity in wanted:
            name = file_name(identity)
            there = (args.dir / f"{name}.pem").exists() and not args.renew
            if not there:
                signer.issue(args.dir, identity, args.days)
            table.add_row(name, f"{identity}{' (was there)' if there else ''}", _FOR[identity.role])
    except CertificateError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"cannot write to {args.dir}: {error.strerror}") from error
    out = console()
    out.print(table)
    out.print(f"Each is two files in {args.dir}: NAME.pem, the certificate, and NAME.key, its key (mode 0600).")
    return 0
