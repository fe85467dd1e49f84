"""P4Runtime over TLS: who may connect, who may change things, and certificates that are replaced under the server."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from p4switch.cli import main
from p4switch.errors import SwitchError
from p4switch.listening import is_local
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.tls import TlsFiles
from p4switch.switch import Switch, SwitchOptions

CONTROLLER = "spiffe://example.org/controller"
SERVICE = "/p4.v1.P4Runtime"


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority in a folder."""

    folder: Path

    @property
    def cert(self) -> Path:
        return self.folder / "ca.pem"

    @staticmethod
    def make(folder: Path) -> Authority:
        folder.mkdir(exist_ok=True)
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder / "ca.key")
        openssl("req", "-x509", *key, "-subj", "/CN=test authority", "-days", "2", "-out", folder / "ca.pem")
        return Authority(folder)

    def sign(self, name: str, *alternative: str) -> tuple[Path, Path]:
        """Certificate and key for `name`."""
        cert, key, request = (self.folder / f"{name}.{suffix}" for suffix in ("pem", "key", "csr"))
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key)
        openssl("req", *curve, "-subj", f"/CN={name}", "-out", request)
        extensions = self.folder / f"{name}.ext"
        extensions.write_text("subjectAltName=" + ",".join(alternative) + "\n")
        signer = ("-CA", self.cert, "-CAkey", self.folder / "ca.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-extfile", extensions, "-out", cert)
        return cert, key


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> TlsFiles:
    """The switch's own copies, so that a test may replace them."""
    cert, key = authority.sign("switch", "DNS:localhost", "IP:127.0.0.1")
    own = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", authority.cert, frozenset({CONTROLLER}))
    own.cert.write_bytes(cert.read_bytes())
    own.key.write_bytes(key.read_bytes())
    return own


@pytest.fixture
def switch(files: TlsFiles) -> Iterator[Switch]:
    with Switch(SwitchOptions(tls=files)) as one:
        yield one


def channel(switch: Switch, authority: Authority, client: tuple[Path, Path] | None) -> grpc.Channel:
    cert, key = (None, None) if client is None else (path.read_bytes() for path in client)
    credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes(), key, cert)
    return grpc.secure_channel(switch.address, credentials)


def outcome(channel: grpc.Channel, method: str, request: p4r.WriteRequest | p4r.CapabilitiesRequest) -> grpc.StatusCode:
    """How one call ends."""
    function = channel.unary_unary(f"{SERVICE}/{method}", lambda m: m.SerializeToString(), lambda raw: raw)
    try:
        function(request, timeout=20)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def serial_of(switch: Switch, authority: Authority, client: tuple[Path, Path]) -> str:
    """Of the certificate that the server shows now."""
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.load_cert_chain(*client)
    context.set_alpn_protocols(["h2"])
    host, port = switch.address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        certificate = secured.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_the_controller_writes_and_others_read(switch: Switch, authority: Authority) -> None:
    write = p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1))
    operator = authority.sign("operator", "URI:spiffe://example.org/operator")
    with channel(switch, authority, operator) as other:
        assert outcome(other, "Capabilities", p4r.CapabilitiesRequest()) is grpc.StatusCode.OK
        assert outcome(other, "Write", write) is grpc.StatusCode.PERMISSION_DENIED
        stream = other.stream_stream(f"{SERVICE}/StreamChannel")
        with pytest.raises(grpc.RpcError, match=r"spiffe://example\.org/operator may read only"):
            next(stream(iter([p4r.StreamMessageRequest().SerializeToString()]), timeout=20))
    with channel(switch, authority, authority.sign("controller", f"URI:{CONTROLLER}")) as controller:
        stream = controller.stream_stream(
            f"{SERVICE}/StreamChannel",
            p4r.StreamMessageRequest.SerializeToString,
            p4r.StreamMessageResponse.FromString,
        )
        arbitration = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1))
        answers = stream(iter([p4r.StreamMessageRequest(arbitration=arbitration)]), timeout=20)
        assert next(answers).arbitration.status.code == 0


def test_strangers_do_not_get_in(switch: Switch, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority.make(tmp_path / "stranger").sign("controller", f"URI:{CONTROLLER}")
    for client in (None, stranger):
        with channel(switch, authority, client) as outside:
            assert outcome(outside, "Capabilities", p4r.CapabilitiesRequest()) is grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(switch.address) as plain:
        assert outcome(plain, "Capabilities", p4r.CapabilitiesRequest()) is grpc.StatusCode.UNAVAILABLE


def test_certificates_are_replaced_under_the_server(
    switch: Switch, files: TlsFiles, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    client = authority.sign("operator", "DNS:operator")
    first = serial_of(switch, authority, client)
    assert serial_of(switch, authority, client) == first
    cert, key = authority.sign("switch", "DNS:localhost")
    files.cert.write_bytes(cert.read_bytes())
    assert serial_of(switch, authority, client) == first, "half of a replacement: the key is still the old one's"
    assert "the certificates before stay in use" in caplog.text
    files.key.write_bytes(key.read_bytes())
    assert serial_of(switch, authority, client) != first


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: f.key.unlink(), "cannot read"),
        (lambda f: f.cert.write_text("nothing"), "no certificate with its key in PEM"),
        (lambda f: openssl("ec", "-in", f.key, "-aes128", "-passout", "pass:x", "-out", f.key), "the key is encrypted"),
    ],
    ids=["no key", "no certificate", "an encrypted key"],
)
def test_files_that_are_no_good_end_the_start(files: TlsFiles, damage: Callable[[TlsFiles], object], said: str) -> None:
    damage(files)
    with pytest.raises(SwitchError, match=said), Switch(SwitchOptions(tls=files)):
        pass


def test_who_listens_for_everybody_without_tls_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    with Switch(SwitchOptions(grpc="127.0.0.1:0")):
        assert caplog.text == ""
    with Switch(SwitchOptions(grpc="0.0.0.0:0")):
        assert "it answers this machine only" in caplog.text
    with Switch(SwitchOptions(grpc="0.0.0.0:0", insecure=True)):
        assert "whoever reaches it controls the switch" in caplog.text
    local = {address: is_local(address) for address in ("unix:/run/x", "[::1]:1", "localhost:1", "10.0.0.1:1", "h:1")}
    assert list(local.values()) == [True, True, True, False, False]


def test_words_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--tls-cert", "a"], "go together"),
        (["--tls-ca", "a"], "need --tls-cert and --tls-key"),
        (["--tls-cert", "a", "--tls-key", "b", "--tls-controller", "c"], "needs --tls-ca"),
        (["--tls-cert", "a", "--tls-key", "b", "--tls-ca", "c", "--tls-controller", "d"], "d is no URI"),
    ):
        assert main(["--no-p4", *words]) == 1
        assert said in capsys.readouterr().err


def test_the_command_speaks_tls_1_3_and_nothing_before(files: TlsFiles, authority: Authority) -> None:
    options = ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", authority.cert]
    argv = [sys.executable, "-m", "p4switch", "--no-p4", "--grpc", "127.0.0.1:0", *map(str, options)]
    argv += ["-i", f"1@unix:{files.cert.parent}/a,{files.cert.parent}/b"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "listening on" in line)
        host, port = line.split("listening on ")[1].split()[0].rsplit(":", 1)
        context = ssl.create_default_context(cafile=str(authority.cert))
        context.load_cert_chain(*authority.sign("operator", "DNS:operator"))
        context.set_alpn_protocols(["h2"])
        spoken = []
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context.maximum_version = version
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                try:
                    with context.wrap_socket(plain, server_hostname="localhost") as secured:
                        spoken.append(secured.version())
                except OSError:
                    spoken.append("refused")
        assert spoken == ["refused", "TLSv1.3"]
    finally:
        process.terminate()
        process.communicate(timeout=20)
