"""Names in certificates, and files that are no good: one line each."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvdaemon.errors import ConfigError
from kvdaemon.identity import Identity, Role, identities, parse_identity, trust_domain
from kvdaemon.settings import Section
from kvdaemon.tls import Certificates, TlsError, load
from kvdaemon.tls_settings import TlsSettings, demand_tls, is_loopback, take_tls
from tests.certificates import DOMAIN, EXPIRED, Pki


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki.make(tmp_path)


@given(st.sampled_from(list(Role)), st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True))
def test_an_identity_is_its_name(role: Role, node: str) -> None:
    one = Identity(DOMAIN, role, node if role is Role.AGENT else "")
    assert parse_identity(str(one)) == one
    assert identities(["DNS", str(one), "spiffe://x/unknown"]) == (one,)


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://test.internal/agent",
        "spiffe://test.internal/agent/",
        "spiffe://test.internal/agent/a/b",
        "spiffe://test.internal/operator/x",
        "spiffe://test.internal/operator/",
        "spiffe://test.internal/root",
        "spiffe://TEST/operator",
        "spiffe:///operator",
        "https://test.internal/operator",
        "",
    ],
)
def test_what_is_no_identity(uri: str) -> None:
    with pytest.raises(ValueError, match=r"is not spiffe|names no node"):
        parse_identity(uri)
    assert identities([uri]) == ()


def test_trust_domains() -> None:
    assert trust_domain("kvcast.internal") == "kvcast.internal"
    for text in ("", "Upper", "a/b", "-a", "a-"):
        with pytest.raises(ValueError, match="not a trust domain"):
            trust_domain(text)


def encrypt(files: TlsSettings) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    protection = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, protection))


def another_key(files: TlsSettings) -> None:
    form, protection = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP256R1())
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, protection))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda files: files.key.unlink(), r"cannot read .*agent-n1\.key: No such file"),
        (lambda files: files.ca.unlink(), r"cannot read .*ca\.pem: No such file"),
        (lambda files: files.cert.write_text("nothing"), r"agent-n1\.pem has no certificate in PEM"),
        (lambda files: files.key.write_text("nothing"), r"agent-n1\.key has no private key in PEM"),
        (encrypt, r"agent-n1\.key is encrypted"),
        (another_key, r"agent-n1\.key is not the key of .*agent-n1\.pem"),
    ],
    ids=["no key", "no authority", "no certificate", "no key in it", "encrypted", "another key"],
)
def test_files_that_are_no_good(pki: Pki, damage: Callable[[TlsSettings], object], said: str) -> None:
    files = pki.files("agent/n1")
    damage(files)
    with pytest.raises(TlsError, match=said) as caught:
        load(files, Role.AGENT, "n1")
    assert "\n" not in str(caught.value)


def test_certificates_that_are_no_good(pki: Pki, tmp_path: Path) -> None:
    files = pki.files("agent/n1")
    assert str(load(files, Role.AGENT, "n1").identity) == f"spiffe://{DOMAIN}/agent/n1"
    with pytest.raises(TlsError, match=r"of spiffe://test.internal/agent/n1: this process needs .*/agent/n2"):
        load(files, Role.AGENT, "n2")
    with pytest.raises(TlsError, match=r"this process needs spiffe://TRUST_DOMAIN/operator"):
        load(files, Role.OPERATOR)
    with pytest.raises(TlsError, match=r"expired .*: renew it"):
        load(files, Role.AGENT, "n1", datetime.now(UTC) + timedelta(days=2))
    with pytest.raises(TlsError, match=r"not valid before .*clock"):
        load(files, Role.AGENT, "n1", datetime.now(UTC) - timedelta(days=2))
    other = Pki.make(tmp_path / "other")
    with pytest.raises(TlsError, match=r"is not signed by"):
        load(TlsSettings(files.cert, files.key, other.files("operator").ca), Role.AGENT, "n1")


def test_a_replacement_is_seen_and_a_bad_one_is_not_used(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    certificates = Certificates(pki.files("agent/n1"), Role.AGENT, "n1")
    first = certificates.ends_s()
    assert not certificates.look()
    pki.files("agent/n1", days=EXPIRED)
    assert certificates.ends_s() == first
    assert "the certificate before stays in use" in caplog.text
    pki.files("agent/n1", days=30)
    assert certificates.ends_s() > first
    credentials, options = certificates.for_channel()
    assert (credentials is not None, options[0][1]) == (True, "controller.test.internal")


def test_plain_words_beyond_this_machine_have_to_be_meant() -> None:
    local = {one: is_loopback(one) for one in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/x", "10.0.0.1:1", "h:1")}
    assert list(local.values()) == [True, True, True, True, False, False]
    demand_tls("listen", "10.0.0.1:4800", TlsSettings(Path(), Path(), Path()), insecure=False)
    demand_tls("listen", "10.0.0.1:4800", None, insecure=True)
    demand_tls("listen", "127.0.0.1:4800", None, insecure=False)
    with pytest.raises(ConfigError, match=r"listen: 10\.0\.0\.1:4800 .* or write insecure: true"):
        demand_tls("listen", "10.0.0.1:4800", None, insecure=False)


def test_the_section_of_a_file() -> None:
    found = take_tls(Section({"cert": "a.pem", "key": "/k", "ca": "ca.pem"}, "tls"), Path("/etc"))
    assert found == TlsSettings(Path("/etc/a.pem"), Path("/k"), Path("/etc/ca.pem"))
    assert take_tls(Section(None, "tls")) is None
    with pytest.raises(ConfigError, match="go together"):
        take_tls(Section({"cert": "a.pem"}, "tls"))


@example("cert", 15, 128)  # a serial number below 1
@given(st.sampled_from(["cert", "key", "ca"]), st.integers(0, 2000), st.integers(0, 255))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_are_one_line_and_nothing_else(pki: Pki, which: str, place: int, byte: int) -> None:
    files = pki.files("agent/n1")
    path: Path = getattr(files, which)
    whole = path.read_bytes()
    damaged = bytearray(base64.b64decode(b"".join(whole.splitlines()[1:-1])))
    damaged[place % len(damaged)] = byte
    head, *_, tail = whole.splitlines(keepends=True)
    path.write_bytes(head + base64.encodebytes(bytes(damaged)) + tail)
    said = ""
    try:
        load(files, Role.AGENT, "n1")
    except TlsError as error:
        said = str(error)
    finally:
        path.write_bytes(whole)
    assert "\n" not in said
