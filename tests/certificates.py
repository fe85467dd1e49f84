"""Certificates for tests, from the authority that `kvcast pki` makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from kvcast.commands.pki import Authority, authority, file_name
from kvdaemon.identity import Identity, Role, parse_identity
from kvdaemon.tls_settings import TlsSettings

DOMAIN = "test.internal"
EXPIRED = -1 / 1440
"""Days: a minute ago."""


@dataclass(frozen=True, slots=True)
class Pki:
    """An authority in a folder; names of certificates are paths of identities: agent/n1, operator."""

    folder: Path
    signer: Authority

    @staticmethod
    def make(folder: Path, domain: str = DOMAIN) -> Pki:
        folder.mkdir(exist_ok=True)
        return Pki(folder, authority(folder, domain)[0])

    def files(self, name: str, days: float = 1, *, renew: bool = False) -> TlsSettings:
        identity = parse_identity(f"spiffe://{self.signer.trust_domain}/{name}")
        cert = self.folder / f"{file_name(identity)}.pem"
        if renew or days != 1 or not cert.exists():
            self.signer.issue(self.folder, identity, days)
        return TlsSettings(cert, cert.with_suffix(".key"), self.folder / "ca.pem")

    def section(self, name: str) -> dict[str, str]:
        """For a configuration."""
        files = self.files(name)
        return {"cert": str(files.cert), "key": str(files.key), "ca": str(files.ca)}

    def credentials(self, name: str | None, days: float = 1) -> grpc.ChannelCredentials:
        """Of a client that looks at nothing: what it shows, the server has to judge. None: it shows nothing."""
        ca = (self.folder / "ca.pem").read_bytes()
        if name is None:
            return grpc.ssl_channel_credentials(ca)
        files = self.files(name, days)
        return grpc.ssl_channel_credentials(ca, files.key.read_bytes(), files.cert.read_bytes())

    @property
    def options(self) -> list[tuple[str, str]]:
        """Of a channel to the controller."""
        return [("grpc.ssl_target_name_override", Identity(self.signer.trust_domain, Role.CONTROLLER).server_name)]

    def channel(self, address: str, name: str | None, days: float = 1) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(address, self.credentials(name, days), options=self.options)
