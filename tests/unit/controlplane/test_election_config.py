"""The section `election`: what it takes, and what it says of what it does not take."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from controlplane.config import parse
from controlplane.election.choice import NoElection, SwitchElection, election_of
from controlplane.election.election_config import EtcdConfig, EtcdUser
from controlplane.election.lease_election import LeaseElection
from kvdaemon.errors import CannotRunError, ConfigError
from kvdaemon.tls_settings import TlsSettings

SWITCH = {"target": "p4switch", "address": "127.0.0.1:9559"}

FAR = {"endpoints": ["e1:2379"]}
LOGIN = {"user": "controllers", "password_file": "password"}


def test_a_switch_elects_where_there_is_one_and_nobody_elsewhere() -> None:
    alone, behind = parse({}, Path()), parse({"switch": SWITCH}, Path())
    assert (alone.election.by, alone.core.silence_ms) == ("none", 0)
    assert (behind.election.by, behind.core.silence_ms) == ("switch", 3000)
    assert isinstance(election_of(alone.election, with_switch=False), NoElection)
    assert isinstance(election_of(behind.election, with_switch=True), SwitchElection)


def test_etcd_elects_with_and_without_a_switch() -> None:
    section = {"by": "etcd", "lease_ms": 5000, "name": "c1", "etcd": {"endpoints": ["127.0.0.1:2379"], "prefix": "/a/"}}
    for switch in ({}, {"switch": SWITCH}):
        config = parse({"election": section, **switch}, Path())
        assert config.election.etcd == EtcdConfig(("127.0.0.1:2379",), "/a", None)
        assert config.core.silence_ms == 5000
        assert isinstance(election_of(config.election, with_switch=bool(switch)), LeaseElection)


def test_a_user_with_a_password_needs_no_certificate_to_show() -> None:
    folder, user = Path("/etc/kvcast"), EtcdUser("controllers", Path("/etc/kvcast/password"))
    for files, tls in (
        ({"ca": "ca.pem"}, folder / "ca.pem"),
        (dict.fromkeys(("cert", "key", "ca"), "f"), TlsSettings(folder / "f", folder / "f", folder / "f")),
    ):
        found = parse({"election": {"by": "etcd", "etcd": {**FAR, **LOGIN, **files}}}, folder).election.etcd
        assert found == EtcdConfig(("e1:2379",), "/kvcast", tls, user)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"election": {"by": "raft"}}, "election.by"),
        ({"election": {"by": "switch"}}, "election.by: switch needs switch.target"),
        ({"election": {"by": "none"}, "switch": SWITCH}, "a switch elects by itself"),
        ({"election": {"by": "etcd"}}, "election.etcd.endpoints is missing"),
        ({"election": {"by": "etcd", "etcd": {"endpoints": "e1:2379"}}}, "not a list of HOST:PORT"),
        ({"election": {"by": "etcd", "etcd": {"endpoints": ["e1"]}}}, "election.etcd.endpoints"),
        ({"election": {"by": "etcd", "etcd": {"endpoints": ["e1:2379"]}}}, "give election.etcd.cert, key and ca"),
        ({"election": {"by": "etcd", "etcd": {"endpoints": ["127.0.0.1:1"], "cert": "c"}}}, "go together"),
        (
            {"election": {"by": "etcd", "etcd": {"endpoints": ["127.0.0.1:1"], "user": "c"}}},
            "password_file go together",
        ),
        ({"election": {"by": "etcd", "etcd": {**FAR, **LOGIN}}}, "with a user ca alone"),
        ({"election": {"by": "etcd", "etcd": {**FAR, **LOGIN, "ca": "a", "key": "k"}}}, "go together"),
        ({"election": {"lease_ms": 100}}, "election.lease_ms"),
        ({"election": {"name": "a b"}}, "'a b' is not a name"),
        ({"election": {"by": "kubernetes", "kubernetes": {"lease": "a/b"}}}, "'a/b' is not a name"),
        ({"election": {"who": "me"}}, "election.who"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_key(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(settings, Path())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_client_of_kubernetes_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refusing(name: str, *rest: Any) -> Any:
        if name.startswith("controlplane.election.kubernetes"):
            raise ImportError("No module named 'kubernetes'", name="kubernetes")
        return real(name, *rest)

    config = parse({"election": {"by": "kubernetes"}}, Path()).election
    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(CannotRunError, match=r"pip install 'kvcast\[kubernetes\]'"):
        election_of(config, with_switch=False)
