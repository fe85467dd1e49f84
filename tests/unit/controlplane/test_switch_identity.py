"""The controller and a switch with TLS: who is let in, and the line that says why not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from controlplane.config import parse
from controlplane.p4runtime import p4runtime_target as p4runtime
from controlplane.p4runtime.codec import V1ModelCodec
from controlplane.p4runtime.p4runtime_target import P4RuntimeOptions, P4RuntimeTarget
from kvdaemon.errors import ConfigError
from p4switch.server.tls import TlsFiles
from p4switch.switch import Switch, SwitchOptions
from tests.certificates import DOMAIN, Pki

WAIT_S = 30.0


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki.make(tmp_path / "tls")


@pytest.fixture
def switch(pki: Pki) -> Iterator[Switch]:
    files = pki.files("switch")
    tls = TlsFiles(files.cert, files.key, files.ca, frozenset({f"spiffe://{DOMAIN}/controller"}))
    with Switch(SwitchOptions(tls=tls)) as one:
        yield one


def why_not(address: str, tls: dict[str, str], caplog: pytest.LogCaptureFixture, **options: object) -> str:
    """What the controller's log says of a switch that it cannot get on with."""
    config = parse({"tls": tls, "switch": {"target": "p4switch", "address": address, "tls": True, **options}}, Path())
    assert config.switch.reach is not None
    return complaint(config.switch.reach, caplog)


def complaint(reach: P4RuntimeOptions, caplog: pytest.LogCaptureFixture) -> str:
    """The first line of the log about this switch."""
    target = P4RuntimeTarget(reach, V1ModelCodec())

    def said() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == p4runtime.LOG.name]

    async def until_it_complains() -> None:
        running = asyncio.create_task(target.run(lambda event: None))
        async with asyncio.timeout(WAIT_S):
            while not said():
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(until_it_complains())
    return said()[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p4runtime, "HANDSHAKE_TIMEOUT_S", 0.5)


def test_a_switch_with_another_authority(
    switch: Switch, pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Pki.make(tmp_path / "other")
    said = why_not(switch.address, other.section("controller"), caplog)
    assert f"its certificate is not that of switch.{DOMAIN}" in said


def test_a_switch_with_another_name(switch: Switch, pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    said = why_not(switch.address, pki.section("controller"), caplog, server_name="tofino.example.org")
    assert "its certificate is not that of tofino.example.org: Hostname mismatch" in said


def test_a_switch_without_tls(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    with Switch(SwitchOptions()) as plain:
        assert "it does not speak TLS" in why_not(plain.address, pki.section("controller"), caplog)


def test_a_controller_that_is_none(switch: Switch, pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    said = why_not(switch.address, pki.section("operator"), caplog)
    assert f"is the certificate of spiffe://{DOMAIN}/operator" in said


def test_what_has_to_be_written(pki: Pki) -> None:
    away = {"target": "p4switch", "address": "10.0.0.1:9559"}
    near = {"target": "p4switch", "address": "127.0.0.1:9559"}
    tls = pki.section("controller")
    for values, security in (
        ({"switch": near}, "loopback"),
        ({"switch": near, "tls": tls}, "tls"),
        ({"switch": away, "tls": tls}, "tls"),
        ({"switch": away, "insecure": True}, "insecure"),
        ({"switch": away | {"tls": False}, "tls": tls, "insecure": True}, "insecure"),
        ({"listen": "0.0.0.0:4800", "tls": tls}, "tls"),
        ({"listen": "0.0.0.0:4800", "insecure": True}, "insecure"),
    ):
        assert parse(values, Path()).security == security
    for values, said in (
        ({"switch": away}, r"switch\.address: 10\.0\.0\.1:9559"),
        ({"switch": away | {"tls": False}, "tls": tls}, r"switch\.address: 10\.0\.0\.1:9559"),
        ({"listen": "0.0.0.0:4800"}, r"listen: 0\.0\.0\.0:4800"),
        ({"switch": near | {"tls": True}}, r"switch\.tls needs the controller's own certificate"),
        ({"tls": {"cert": "a"}}, r"go together"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse(values, Path())


def test_what_is_no_switch_is_named(caplog: pytest.LogCaptureFixture) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        said = complaint(P4RuntimeOptions(f"127.0.0.1:{port}"), caplog)
    finally:
        server.stop(None).wait()
    assert "a gRPC server without P4Runtime answers there: is it a kvcast-controller?" in said


def test_what_says_nothing_is_no_bare_timeout(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = complaint(P4RuntimeOptions(f"127.0.0.1:{silent.getsockname()[1]}"), caplog)
    assert said.endswith("cannot be reached or programmed: it did not answer within 0.5 s")
