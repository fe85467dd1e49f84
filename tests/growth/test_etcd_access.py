"""An etcd that asks for certificates, and whose users may do what they were granted: a candidate needs one grant."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controlplane.election.contract import StoreUnavailableError
from controlplane.election.etcd_client import EtcdClient
from controlplane.election.etcd_state import EtcdState
from controlplane.election.etcd_store import EtcdLeaseStore
from kvdaemon.tls_settings import TlsSettings
from tests.growth.etcd_server import EtcdServer

pytestmark = pytest.mark.growth

LEASE_MS = 3000


class EtcdAuthority:
    """Signs certificates of etcd and of its users, who are called by their common names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        folder.mkdir()
        self._write("ca", self._key, self._signed(self._name, self._key, is_authority=True))

    def files(self, name: str) -> TlsSettings:
        """A certificate of this name, for a server on loopback or its user."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._write(name, key, self._signed(subject, key, is_authority=False))
        cert = self._folder / f"{name}.pem"
        return TlsSettings(cert, cert.with_suffix(".key"), self._folder / "ca.pem")

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        certificate = certificate.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=1))
        certificate = certificate.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        return certificate.add_extension(loopback, critical=False).sign(self._key, hashes.SHA256())

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (self._folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self._folder / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


def field(number: int, value: bytes | str | int) -> bytes:
    """Of a protobuf message: administering etcd is no part of the product's client."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(raw)]) + raw


async def demand_grants(server: EtcdServer, root: TlsSettings) -> None:
    """From now on users may do what they were granted: `controllers` what is below /kvcast/."""
    ca, key, cert = (path.read_bytes() for path in (root.ca, root.key, root.cert))
    below = field(1, 2) + field(2, "/kvcast/") + field(3, "/kvcast0")  # READWRITE
    async with grpc.aio.secure_channel(server.address, grpc.ssl_channel_credentials(ca, key, cert)) as channel:
        for method, request in (
            ("RoleAdd", field(1, "root")),
            ("RoleAdd", field(1, "kvcast")),
            ("RoleGrantPermission", field(1, "kvcast") + field(2, below)),
            *(("UserAdd", field(1, name) + field(3, field(1, 1))) for name in ("root", "controllers", "stranger")),
            ("UserGrantRole", field(1, "root") + field(2, "root")),
            ("UserGrantRole", field(1, "controllers") + field(2, "kvcast")),
            ("AuthEnable", b""),
        ):
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/etcdserverpb.Auth/{method}", bytes, bytes
            )
            await ask(request, wait_for_ready=True)


def on_guarded_etcd(folder: Path, steps: Callable[[EtcdServer, EtcdAuthority], Awaitable[None]]) -> None:
    authority = EtcdAuthority(folder / "pki")
    server = EtcdServer(folder, authority.files("server"))
    server.start()

    async def scene() -> None:
        async with asyncio.timeout(60.0):
            await demand_grants(server, authority.files("root"))
            await steps(server, authority)

    try:
        asyncio.run(scene())
    finally:
        server.kill()


def test_a_grant_below_the_prefix_is_all_that_a_controller_needs(tmp_path: Path) -> None:
    async def steps(server: EtcdServer, authority: EtcdAuthority) -> None:
        def client() -> EtcdClient:
            return EtcdClient([server.address], authority.files("controllers"))

        store, state = EtcdLeaseStore(client(), "/kvcast", "one", LEASE_MS), EtcdState(client(), "/kvcast")
        changed = asyncio.Event()
        watch = asyncio.create_task(store.watch(changed.set))
        try:
            assert await store.look() is None
            hold = await store.take(0, None)
            assert hold is not None
            assert await store.look() == hold
            assert await store.renew(hold) == hold
            await state.save(b"{}", hold)
            assert await state.load() == b"{}"
            await changed.wait()
            await store.release(hold)
            assert await store.look() is None
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await store.close()
            await state.close()

    on_guarded_etcd(tmp_path, steps)


def test_who_may_not_is_told_in_one_line(tmp_path: Path) -> None:
    async def steps(server: EtcdServer, authority: EtcdAuthority) -> None:
        foreign = EtcdAuthority(tmp_path / "foreign").files("controllers")
        for tls, words in (
            (authority.files("stranger"), "permission denied"),
            (foreign, "it cannot be reached"),
            (None, "unavailable"),
        ):
            store = EtcdLeaseStore(EtcdClient([server.address], tls), "/kvcast", "one", LEASE_MS)
            with pytest.raises(StoreUnavailableError) as caught:
                await store.look()
            await store.close()
            assert words in str(caught.value)
            assert "\n" not in str(caught.value)

    on_guarded_etcd(tmp_path, steps)
