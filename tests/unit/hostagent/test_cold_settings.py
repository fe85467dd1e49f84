"""The section `cold`: what it takes, and that no credential gets into it, into a message, or into a repr."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig, SecretPlace
from hostagent.cold.credentials import one_line
from hostagent.config import parse
from kvdaemon.errors import CannotRunError, ConfigError
from kvpolicy.tiers.form_costs import FormChoice


def cold(**values: Any) -> ColdConfig | None:
    return parse({"node": "n", "data": {"address": "127.0.0.1"}, "cold": values}).cold


def test_without_the_section_there_is_none() -> None:
    assert cold() is None
    assert parse({"node": "n", "data": {"address": "127.0.0.1"}}).cold is None


def test_options_become_text() -> None:
    found = cold(
        scheme="s3",
        options={"bucket": "kv", "endpoint": "https://s3.example", "enable_virtual_host_style": True, "part": 5},
        secrets={"access_key_id": {"file": "/etc/kvcast/id"}, "secret_access_key": {"environment": "S3_SECRET"}},
        timeout_s=3,
        lookup_wait_s=0.1,
        write_rate="64MiB",
        form="lossless",
    )
    assert found == ColdConfig(
        "s3",
        {"bucket": "kv", "endpoint": "https://s3.example", "enable_virtual_host_style": "true", "part": "5"},
        {"access_key_id": SecretPlace(file="/etc/kvcast/id"), "secret_access_key": SecretPlace(variable="S3_SECRET")},
        3.0,
        0.1,
        64 << 20,
        FormChoice.LOSSLESS,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"options": {"root": "/x"}}, "cold.scheme is missing"),
        ({"scheme": "redis://:hunter2@x"}, "cold.scheme: not the name of a service"),
        ({"scheme": "redis", "options": {"password": "hunter2"}}, "cold.options: password is a credential"),
        ({"scheme": "s3", "options": {"secret_access_key": "hunter2"}}, "give cold.secrets.secret_access_key"),
        ({"scheme": "redis", "options": {"endpoint": "redis://me:hunter2@x"}}, "endpoint has a password in it"),
        ({"scheme": "redis", "options": ["hunter2"]}, "cold.options: not a mapping"),
        ({"scheme": "redis", "options": {"db": ["hunter2"]}}, "cold.options: db: not text"),
        ({"scheme": "redis", "secrets": {"password": "hunter2"}}, "password needs one of 'file' and 'environment'"),
        ({"scheme": "redis", "secrets": {"password": {"value": "hunter2"}}}, "never the credential itself"),
        ({"scheme": "redis", "options": {"db": 1}, "secrets": {"db": {"file": "x"}}}, "stands in cold.options as well"),
        ({"scheme": "fs", "timeout_s": 0}, "cold.timeout_s"),
        ({"scheme": "fs", "form": "zip"}, "cold.form: 'zip' is not one of auto, raw, lossless"),
        ({"scheme": "fs", "timeout": 1}, "unknown key 'cold.timeout'"),
    ],
)
def test_what_is_wrong_is_named_without_its_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cold(**values)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_opendal_the_agent_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(CannotRunError) as refused:
        open_store(ColdConfig("fs"), {})
    assert str(refused.value) == (
        "cold.scheme is fs, and the package opendal is not installed: pip install 'kvcast[cold]'"
    )


def test_errors_are_one_line_without_credentials() -> None:
    text = (
        "Unexpected (temporary) at read => send: hunter2-secret\n\nContext:\n   uri: x\n\nSource:\n   hunter2 refused\n"
    )
    assert (
        one_line(text, ("hunter2", "", "hunter2-secret")) == "Unexpected (temporary) at read => send: ***; *** refused"
    )
