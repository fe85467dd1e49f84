"""The running controller with certificates: who gets in, who may call what, and files that are replaced under it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import yaml

from bmv2_testbed.processes import child_environment
from controlplane.config import parse
from controlplane.daemon import Controller
from controlplane.rpc.peers import CALLERS
from kvcast.cli import main as kvcast
from kvdaemon.tls import TlsError
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from tests.certificates import DOMAIN, EXPIRED, Pki
from tests.unit.controlplane.fake_agent import DEADLINE_S, FakeAgent
from tests.unit.controlplane.helpers import key, record
from tests.unit.controlplane.test_daemon import QUICK, run


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki.make(tmp_path / "tls")


@contextlib.asynccontextmanager
async def secured(pki: Pki) -> AsyncIterator[Controller]:
    one = Controller(parse(QUICK | {"tls": pki.section("controller")}, Path()))
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


async def outcome(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError | None:
    """How a call of one method ends."""
    operator = control_pb2_grpc.OperatorStub(channel)
    try:
        match method:
            case "Status":
                await operator.Status(rpc.StatusRequest(), timeout=DEADLINE_S)
            case "Evict":
                await operator.Evict(rpc.EvictRequest(key_hex="00", hosts=True), timeout=DEADLINE_S)
            case "Leader":
                await control_pb2_grpc.CoordinatorStub(channel).Leader(rpc.LeaderRequest(), timeout=DEADLINE_S)
            case "List":
                async for _ in operator.List(rpc.ListRequest(), timeout=DEADLINE_S):
                    pass
            case "Attach" | "Attach with an empty message":
                call = control_pb2_grpc.CoordinatorStub(channel).Attach(timeout=DEADLINE_S)
                if method != "Attach":  # who is refused at once may not get to write: that is another error, by chance
                    await call.write(rpc.FromAgent())
                async for _ in call:
                    pass
    except grpc.aio.AioRpcError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("certificate", "method", "code"),
    [
        ("operator", "Status", None),
        ("operator", "List", None),
        ("operator", "Evict", grpc.StatusCode.NOT_FOUND),
        ("operator", "Attach", grpc.StatusCode.PERMISSION_DENIED),
        ("operator", "Leader", grpc.StatusCode.PERMISSION_DENIED),
        ("agent/n1", "Leader", None),
        ("agent/n1", "Attach with an empty message", grpc.StatusCode.INVALID_ARGUMENT),
        ("agent/n1", "Status", grpc.StatusCode.PERMISSION_DENIED),
        ("agent/n1", "Evict", grpc.StatusCode.PERMISSION_DENIED),
        ("agent/n1", "List", grpc.StatusCode.PERMISSION_DENIED),
        ("engine", "Status", grpc.StatusCode.PERMISSION_DENIED),
        ("switch", "Attach", grpc.StatusCode.PERMISSION_DENIED),
        (None, "Status", grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_who_may_call_what(pki: Pki, certificate: str | None, method: str, code: grpc.StatusCode | None) -> None:
    async def steps() -> None:
        async with secured(pki) as one, pki.channel(one.grpc_address, certificate) as channel:
            error = await outcome(channel, method)
            assert (error.code() if error else None) is code
            if code is grpc.StatusCode.PERMISSION_DENIED:
                assert f"spiffe://{DOMAIN}/{certificate} may not call {method}" in error.details()

    run(steps())


def test_what_an_operator_sets_is_kept_with_the_name_in_the_certificate(
    pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps() -> None:
        async with secured(pki) as one, pki.channel(one.grpc_address, "operator") as channel:
            operator = control_pb2_grpc.OperatorStub(channel)
            for cancel, node in ((False, "n9"), (True, "n8\nnot a line of ours")):
                await operator.Expel(rpc.ExpelRequest(node=node, cancel=cancel), timeout=DEADLINE_S)
            (mark,) = one.core.operator_state.message().marks
            assert mark.by == f"spiffe://{DOMAIN}/operator at 127.0.0.1"
            assert abs(mark.at_ms / 1000 - time.time()) < DEADLINE_S

    with caplog.at_level(logging.INFO):
        run(steps())
    said = [record.getMessage() for record in caplog.records if "/operator at" in record.getMessage()]
    assert said == [f"spiffe://{DOMAIN}/operator at 127.0.0.1: expel n9"], "what changes nothing is no line"


def test_every_service_of_the_controller_says_who_may_call_it() -> None:
    services = [service.full_name for service in rpc.DESCRIPTOR.services_by_name.values()]
    assert sorted(services) == sorted(CALLERS)


def test_strangers_do_not_get_in(pki: Pki, tmp_path: Path) -> None:
    other = Pki.make(tmp_path / "other")
    another_domain = Pki(pki.folder, type(pki.signer)(pki.signer.cert, pki.signer.key, "elsewhere"))

    async def steps() -> None:
        async with secured(pki) as one:
            ca = (pki.folder / "ca.pem").read_bytes()
            theirs = other.files("operator")
            forged = grpc.ssl_channel_credentials(ca, theirs.key.read_bytes(), theirs.cert.read_bytes())
            for channel in (
                grpc.aio.insecure_channel(one.grpc_address),
                grpc.aio.secure_channel(one.grpc_address, forged, options=pki.options),
                pki.channel(one.grpc_address, "operator", days=EXPIRED),
            ):
                async with channel:
                    error = await outcome(channel, "Status")
                    assert error is not None
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
            operator = another_domain.credentials("operator", days=2)
            async with grpc.aio.secure_channel(one.grpc_address, operator, options=pki.options) as channel:
                error = await outcome(channel, "Status")
                assert error is not None
                assert error.code() is grpc.StatusCode.PERMISSION_DENIED

    run(steps())


def test_an_agent_speaks_for_its_own_node_only(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    async def steps() -> None:
        async with secured(pki) as one:
            address = one.grpc_address
            async with FakeAgent(address, 1, [record("a")], channel=pki.channel(address, "agent/n1")) as first:
                await first.attached()
                async with FakeAgent(address, 1, channel=pki.channel(address, "agent/n2"), incarnation=9) as liar:
                    await liar.ended.wait()
                    assert liar.error is not None
                    assert liar.error.code() is grpc.StatusCode.PERMISSION_DENIED
                    said = f"spiffe://{DOMAIN}/agent/n2 does not speak for node 'n1'"
                    assert said in (liar.error.details() or "")
                    assert said in caplog.text
                async with FakeAgent(address, 2, channel=pki.channel(address, "agent/n2")) as second:
                    await second.until(lambda: second.holders(key("a")) == {"n1"}, "the first, which was left alone")
                # Its own second stream, as after a restart, takes over.
                async with FakeAgent(address, 1, channel=pki.channel(address, "agent/n1"), incarnation=2) as again:
                    await again.attached()
                    await first.ended.wait()

    run(steps())


def test_certificates_are_replaced_while_streams_are_under_load(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    async def steps() -> None:
        async with secured(pki) as one, contextlib.AsyncExitStack() as stack:
            address = one.grpc_address

            async def attach(number: int) -> FakeAgent:
                agent = FakeAgent(address, number, channel=pki.channel(address, f"agent/n{number}"))
                return await (await stack.enter_async_context(agent)).attached()

            attached = [await attach(1), await attach(2)]
            before = await asyncio.to_thread(serial, address, pki)
            for turn in range(3):
                files = pki.files("controller")
                old = files.key.read_bytes()
                pki.files("controller", renew=True)
                new = files.key.read_bytes()
                files.key.write_bytes(old)  # half of a replacement
                assert await asyncio.to_thread(serial, address, pki) == before
                assert "is not the key of" in caplog.text
                files.key.write_bytes(new)
                after = await asyncio.to_thread(serial, address, pki)
                assert after != before
                before = after
                attached[0].announce(*(record(f"{turn}-{count}") for count in range(50)))
                attached.append(await attach(3 + turn))
                last = key(f"{turn}-49")
                for agent in attached:
                    await agent.until(lambda agent=agent, last=last: agent.holders(last) == {"n1"}, "what was said")
            assert not any(agent.ended.is_set() for agent in attached)

    run(steps())


def serial(address: str, pki: Pki, name: str = "operator") -> str:
    """Of the certificate that the controller shows now."""
    files = pki.files(name)
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    context.set_alpn_protocols(["h2"])
    host, port = address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=f"controller.{DOMAIN}") as secured,
    ):
        return str((secured.getpeercert() or {})["serialNumber"])


def test_health_says_when_the_certificate_has_expired(pki: Pki) -> None:
    async def steps() -> None:
        async with secured(pki) as one:
            assert (one.health().facts["security"], list(one.health().missing)) == ("tls", [])
            pki.files("controller", days=EXPIRED)
            assert list(one.health().missing) == [], "an expired one is not taken"

    run(steps())
    with pytest.raises(TlsError, match=r"controller\.pem .* expired .*: renew it"):
        Controller(parse(QUICK | {"tls": pki.section("controller")}, Path()))


def test_commands_with_the_right_the_wrong_and_no_certificate(pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    def words(name: str) -> list[str]:
        files = pki.section(name)
        return [word for item in files.items() for word in (f"--tls-{item[0]}", item[1])]

    async def steps() -> None:
        async with secured(pki) as one:

            async def command(*more: str) -> tuple[int, str]:
                status = await asyncio.to_thread(kvcast, ["top", "--once", "--controller", one.grpc_address, *more])
                return status, capsys.readouterr().err

            assert await command(*words("operator")) == (0, "")
            status, said = await command(*words("agent/n1"))
            assert (status, said.count("\n")) == (2, 1)
            assert "is the certificate of spiffe://test.internal/agent/n1" in said
            status, said = await command()
            assert (status, said.count("\n")) == (2, 1)
            assert "it speaks TLS: name the operator's certificate with --tls-cert" in said
            status, said = await command("--tls-cert", "a")
            assert (status, "--tls-cert, --tls-key and --tls-ca go together" in said) == (2, True)

    run(steps())


def test_a_command_with_tls_for_a_controller_without(pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    async def steps() -> None:
        one = Controller(parse(QUICK, Path()))
        await one.start()
        files = pki.section("operator")
        options = [word for item in files.items() for word in (f"--tls-{item[0]}", item[1])]
        status = await asyncio.to_thread(kvcast, ["ls", "--controller", one.grpc_address, *options])
        assert status == 2
        assert "it does not speak TLS" in capsys.readouterr().err
        await one.stop()

    run(steps())


def test_nothing_before_tls_1_3(pki: Pki, tmp_path: Path) -> None:
    config = tmp_path / "controller.yaml"
    config.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", "metrics": "", "tls": pki.section("controller")}))
    process = subprocess.Popen(
        [sys.executable, "-m", "controlplane", "--config", str(config)],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = next(word for word in line.split() if word.startswith("grpc=")).removeprefix("grpc=")
        files = pki.files("operator")
        context = ssl.create_default_context(cafile=str(files.ca))
        context.load_cert_chain(files.cert, files.key)
        context.set_alpn_protocols(["h2"])
        versions = {}
        host, port = address.rsplit(":", 1)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context.maximum_version = version
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                try:
                    with context.wrap_socket(plain, server_hostname=f"controller.{DOMAIN}") as one:
                        versions[version] = one.version()
                except OSError:
                    versions[version] = "refused"
        assert versions == {ssl.TLSVersion.TLSv1_2: "refused", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert "ssl_transport_security" not in errors, "gRPC's own lines leak"
