"""An etcd that asks for certificates, and whose users may do what they were granted: a candidate needs one grant."""

from __future__ import annotations

import asyncio
import contextlib
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
from controlplane.election.election_config import EtcdUser
from controlplane.election.etcd_client import EtcdClient
from controlplane.election.etcd_store import EtcdLeaseStore, EtcdState
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


BY_CERTIFICATE = field(3, field(1, 1))  # UserAddOptions.no_password
PASSWORD = "s3cret, and of several words"


async def demand_grants(server: EtcdServer, root: TlsSettings | None, *, login: bytes = BY_CERTIFICATE) -> None:
    """From now on users may do what they were granted: `controllers` what is below /kvcast/. `root` None: plainly;
    `login`: how users prove who they are."""
    made = grpc.aio.insecure_channel(server.address)
    if root is not None:
        ca, key, cert = (path.read_bytes() for path in (root.ca, root.key, root.cert))
        made = grpc.aio.secure_channel(server.address, grpc.ssl_channel_credentials(ca, key, cert))
    below = field(1, 2) + field(2, "/kvcast/") + field(3, "/kvcast0")  # READWRITE
    async with made as channel:
        for method, request in (
            ("RoleAdd", field(1, "root")),
            ("RoleAdd", field(1, "kvcast")),
            ("RoleGrantPermission", field(1, "kvcast") + field(2, below)),
            *(("UserAdd", field(1, name) + login) for name in ("root", "controllers", "stranger")),
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


# ---------------------------------------------------------------------- users with passwords

TOKEN_TTL_S = 1


async def change_password(server: EtcdServer, name: str, password: str, root: EtcdUser) -> None:
    client = EtcdClient([server.address], None, root)
    await client.read(b"/", b"/")
    assert client.token
    async with grpc.aio.insecure_channel(server.address) as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/etcdserverpb.Auth/UserChangePassword", bytes, bytes
        )
        await ask(field(1, name) + field(2, password), metadata=[("token", client.token)])
    await client.close()


def on_etcd_with_passwords(
    folder: Path, steps: Callable[[EtcdServer, EtcdUser], Awaitable[None]], *options: str
) -> None:
    server = EtcdServer(folder, options=options)
    server.start()
    (folder / "password").write_text(f"{PASSWORD}\n")

    async def scene() -> None:
        async with asyncio.timeout(60.0):
            await demand_grants(server, None, login=field(2, PASSWORD))
            await steps(server, EtcdUser("controllers", folder / "password"))

    try:
        asyncio.run(scene())
    finally:
        server.kill()


def test_a_user_with_a_password_holds_the_lease_and_outlives_its_token(tmp_path: Path) -> None:
    """etcd forgets all tokens when it starts again, and those of a user whose password has changed."""

    async def steps(server: EtcdServer, user: EtcdUser) -> None:
        client = EtcdClient([server.address], None, user)
        store, state = EtcdLeaseStore(client, "/kvcast", "one", LEASE_MS), EtcdState(client, "/kvcast")
        changed = asyncio.Event()
        watch = asyncio.create_task(store.watch(changed.set))
        try:
            assert await store.look() is None
            hold = await store.take(0, None)
            assert hold is not None
            await state.save(b"{}", hold)
            await changed.wait()
            before = client.token
            assert before
            (tmp_path / "root").write_text(PASSWORD)
            await change_password(server, user.name, "another", EtcdUser("root", tmp_path / "root"))
            user.password_file.write_text("another")
            assert await store.renew(hold) == hold
            assert client.token not in (None, before), "tokens of the password before are refused"
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        before = client.token
        while client.token in (None, before):
            with contextlib.suppress(StoreUnavailableError):  # the connection of before breaks off when it is used
                assert await store.renew(hold) == hold
        assert await store.renew(hold) == hold
        await store.close()

    on_etcd_with_passwords(tmp_path, steps)


def test_a_token_that_expired_is_asked_for_anew(tmp_path: Path) -> None:
    async def steps(server: EtcdServer, user: EtcdUser) -> None:
        client = EtcdClient([server.address], None, user)
        store = EtcdLeaseStore(client, "/kvcast", "one", LEASE_MS)
        assert await store.look() is None
        before = client.token
        while client.token == before:  # whoever asks meanwhile has it last longer
            await asyncio.sleep(2 * TOKEN_TTL_S)
            assert await store.look() is None
        await store.close()

    on_etcd_with_passwords(tmp_path, steps, "--auth-token-ttl", str(TOKEN_TTL_S))


def test_a_wrong_password_is_told_in_one_line(tmp_path: Path) -> None:
    async def steps(server: EtcdServer, user: EtcdUser) -> None:
        (tmp_path / "wrong").write_text("guess")
        for asked, words in (
            (EtcdUser(user.name, tmp_path / "wrong"), "authentication failed"),
            (EtcdUser("stranger", user.password_file), "permission denied"),
            (EtcdUser(user.name, tmp_path / "absent"), "absent cannot be read: No such file"),
            (None, "user name is empty"),
        ):
            store = EtcdLeaseStore(EtcdClient([server.address], None, asked), "/kvcast", "one", LEASE_MS)
            with pytest.raises(StoreUnavailableError) as caught:
                await store.look()
            await store.close()
            assert words in str(caught.value)
            assert "\n" not in str(caught.value)
            assert PASSWORD not in str(caught.value)

    on_etcd_with_passwords(tmp_path, steps)


def test_a_password_is_no_hindrance_where_nobody_asks_for_it(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path)
    server.start()
    (tmp_path / "password").write_text(PASSWORD)

    async def steps() -> None:
        user = EtcdUser("controllers", tmp_path / "password")
        store = EtcdLeaseStore(EtcdClient([server.address], None, user), "/kvcast", "one", LEASE_MS)
        async with asyncio.timeout(60.0):
            assert await store.look() is None
            hold = await store.take(0, None)
            assert hold is not None
            await demand_grants(server, None, login=field(2, PASSWORD))
            assert await store.renew(hold) == hold, "from now on a token is asked for"
        await store.close()

    try:
        asyncio.run(steps())
    finally:
        server.kill()
