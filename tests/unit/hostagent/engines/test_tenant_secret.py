"""The secret of an engine's tenant: read from a file that nobody else may read, and shown to nobody."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvclient.engines.core.identity import EngineIdentity, RequestBinding, Shard
from kvclient.engines.settings import SettingsError, parse_settings, tenant_secret

SECRET = b"correct horse battery staple"
IDENTITY = EngineIdentity("m", "r", "w", "bfloat16", "auto", 16, 32, "vllm 1", "{}", (Shard(0, 1, 0, 1, "layout", 9),))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o640)
    return path


def test_the_file_s_line_is_the_secret(file: Path) -> None:
    assert tenant_secret(str(file)) == SECRET
    assert tenant_secret("") == b""


def test_the_setting_comes_before_the_environment() -> None:
    environment = {"KVCAST_TENANT_SECRET_FILE": "/run/one"}
    assert parse_settings({}, environment).tenant_secret_file == "/run/one"
    assert parse_settings({"tenant_secret_file": "/run/other"}, environment).tenant_secret_file == "/run/other"


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (SECRET, 0o644, "every user may read or write .*chmod o-rw"),
        (b"short\n", 0o600, "has 5 bytes, not 16 to 4096"),
        (bytes(5000), 0o600, "not 16 to 4096"),
        (None, 0, "cannot read .*: No such file"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_shown(
    file: Path, content: bytes | None, mode: int, complaint: str
) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(SettingsError, match=complaint) as refused:
        tenant_secret(str(file))
    assert "horse" not in str(refused.value)
    assert "short" not in str(refused.value)


def test_secret_and_salt_decide_the_names_together() -> None:
    tenant = dataclasses.replace(IDENTITY, tenant_secret=SECRET)
    other = dataclasses.replace(IDENTITY, tenant_secret=SECRET + b"!")
    digests = [one.digests(RequestBinding(salt=salt)) for one in (IDENTITY, tenant, other) for salt in ("", "s")]
    assert len(set(digests)) == len(digests)
    assert "horse" not in repr(tenant)
    assert "horse" not in repr(tenant.of_shard(tenant.shards[0], RequestBinding()))
