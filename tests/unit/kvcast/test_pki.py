"""`kvcast pki`: certificates that others' tools accept, made once, added to, renewed."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from kvcast.cli import main
from kvdaemon.identity import Role
from kvdaemon.tls import load
from kvdaemon.tls_settings import TlsSettings


def files(folder: Path, name: str) -> TlsSettings:
    return TlsSettings(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


def openssl(*words: str | Path) -> str:
    return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True).stdout


def test_certificates_that_openssl_and_the_daemons_accept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tls"
    assert main(["pki", "--dir", str(folder), "--nodes", "n1,n2", "--trust-domain", "a.example"]) == 0
    assert "spiffe://a.example/agent/n2" in capsys.readouterr().out
    ca = folder / "ca.pem"
    for name, role, node in (
        ("controller", Role.CONTROLLER, ""),
        ("operator", Role.OPERATOR, ""),
        ("switch", Role.SWITCH, ""),
        ("engine", Role.ENGINE, ""),
        ("agent-n2", Role.AGENT, "n2"),
    ):
        purposes = ["sslclient", *(["sslserver"] if role in (Role.CONTROLLER, Role.SWITCH) else [])]
        for purpose in purposes:
            openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", ca, folder / f"{name}.pem")
        assert load(files(folder, name), role, node).identity.role is role
        assert stat.S_IMODE((folder / f"{name}.key").stat().st_mode) == 0o600
    with pytest.raises(subprocess.CalledProcessError):
        openssl("verify", "-purpose", "sslserver", "-CAfile", ca, folder / "agent-n1.pem")


def test_more_and_newer_ones_from_the_same_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pki", "--dir", str(tmp_path), "--nodes"]
    assert main([*words, "n1"]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main([*words, "n1,n2"]) == 0
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert "spiffe://kvcast.internal/agent/n1 (was there)" in capsys.readouterr().out
    assert main([*words, "n1", "--renew"]) == 0
    after = {name: (tmp_path / name).read_bytes() for name in before}
    assert [name for name in sorted(before) if after[name] == before[name]] == ["ca.key", "ca.pem"]
    load(files(tmp_path, "agent-n1"), Role.AGENT, "n1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "a b"], "'a b' is not a node's name"),
        (["--trust-domain", "A"], "'A' is not a trust domain"),
        (["--trust-domain", "other"], "is the authority of spiffe://kvcast.internal"),
        (["--days", "0"], "0 is below 1"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pki", "--dir", str(tmp_path)]) == 0
    capsys.readouterr()
    try:
        status = main(["pki", "--dir", str(tmp_path), *words])
    except SystemExit as end:
        status = int(str(end.code))
    assert (status, said in capsys.readouterr().err) == (2, True)


def test_an_authority_without_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pki", "--dir", str(tmp_path)]) == 0
    (tmp_path / "ca.key").unlink()
    assert main(["pki", "--dir", str(tmp_path), "--renew"]) == 2
    assert "ca.key is missing: nothing can be signed here" in capsys.readouterr().err
