"""Strangers at a running controller: who says nothing, who leads a name here, whose certificate has odd names."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import grpc
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from bmv2_testbed.processes import child_environment
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from tests.certificates import DOMAIN, Pki

pytestmark = pytest.mark.security
DESCRIPTORS = 1024
"""Where service managers start."""
LIMIT_S = 20.0


@dataclass(frozen=True)
class Addresses:
    grpc: str
    pages: str


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def controller(pki: Pki) -> Iterator[Addresses]:
    """A process with certificates."""
    config = pki.folder / "controller.yaml"
    section = pki.section("controller")
    config.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", "metrics": "127.0.0.1:0", "tls": section}))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = f"ulimit -Sn {min(DESCRIPTORS, hard)}; exec {sys.executable} -m controlplane --config {config}"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True, env=child_environment()) as process:
        assert process.stdout is not None
        found = dict(word.split("=") for word in process.stdout.readline().split() if "=" in word)
        yield Addresses(found["grpc"], found["metrics"])
        process.terminate()


@contextlib.contextmanager
def silent(address: str, count: int) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as held:
        for _ in range(count):
            held.enter_context(socket.create_connection((host, int(port))))
        yield


def test_silent_connections_keep_nobody_from_the_control_channel(controller: Addresses, pki: Pki) -> None:
    with silent(controller.grpc, DESCRIPTORS + 100):
        for _ in range(3):
            with grpc.secure_channel(controller.grpc, pki.credentials("operator"), options=pki.options) as channel:
                control_pb2_grpc.OperatorStub(channel).Status(rpc.StatusRequest(), timeout=LIMIT_S)


@pytest.mark.parametrize("page", ["livez", "healthz", "metrics"])
def test_silent_connections_keep_no_probe_from_its_answer(controller: Addresses, page: str) -> None:
    with silent(controller.pages, 300):
        for _ in range(28):
            with urllib.request.urlopen(f"http://{controller.pages}/{page}", timeout=LIMIT_S) as answer:
                assert answer.status == 200


def test_a_name_that_leads_here_reads_no_page_that_names_chunks(controller: Addresses) -> None:
    """A stranger's page in a browser of this machine asks by the stranger's name, which leads to 127.0.0.1."""
    port = controller.pages.rpartition(":")[2]
    for path in ("", "live", "v1/cost?keys=00"):
        for fields in ({"Host": f"evil.example:{port}"}, {"Origin": "http://evil.example"}):
            request = urllib.request.Request(f"http://{controller.pages}/{path}", headers=fields)
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(request, timeout=LIMIT_S)
            assert refusal.value.code == 403
            assert b"this name may be a stranger's" in refusal.value.read()
            refusal.value.close()


@pytest.mark.parametrize("kind", [x509.DNSName, x509.RFC822Name])
def test_no_name_but_a_uri_makes_an_operator(controller: Addresses, pki: Pki, kind: type[x509.GeneralName]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    operator = f"spiffe://{DOMAIN}/operator"
    own = x509.UniformResourceIdentifier(f"spiffe://{DOMAIN}/agent/h1")
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=pki.signer.cert.subject,
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, operator)]),
        public_key=key.public_key(),
        serial_number=4711,
        not_valid_before=now - timedelta(minutes=1),
        not_valid_after=now + timedelta(hours=1),
        extensions=[],
    ).add_extension(x509.SubjectAlternativeName([own, kind(operator)]), critical=False)
    cert = builder.sign(pki.signer.key, hashes.SHA256()).public_bytes(Encoding.PEM)
    shown = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    credentials = grpc.ssl_channel_credentials((pki.folder / "ca.pem").read_bytes(), shown, cert)
    refused = pytest.raises(grpc.RpcError, match=r"spiffe://test\.internal/agent/h1 may not call Status")
    with grpc.secure_channel(controller.grpc, credentials, options=pki.options) as channel, refused:
        control_pb2_grpc.OperatorStub(channel).Status(rpc.StatusRequest(), timeout=LIMIT_S)
