"""p4lang's shell on a switch that runs kvcast's program under a controller, by TLS, as docs/how-to/p4runtime-shell.md
says it; and scapy with kvcast's layers on what that switch sends. The shell has an environment of its own: it pins
protobuf < 3.21."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from scapy.utils import wrpcap

from controlplane.config import parse
from controlplane.daemon import Controller
from p4switch.ports import Memory, PortSpec
from p4switch.server.tls import TlsFiles
from p4switch.switch import Switch, SwitchOptions
from p4switch.testing import TestSwitch
from tests.certificates import DOMAIN, Pki
from tests.dataplane.frames import Host, here_frame
from tests.engines.followed import blocks_of, on_this_machine
from tests.unit.controlplane.fake_agent import CABLES, FakeAgent
from tests.unit.controlplane.helpers import key
from tests.unit.controlplane.test_daemon import run
from tests.unit.controlplane.test_with_p4switch import (
    CHUNK,
    SEGMENTS,
    V1MODEL,
    Filler,
    RunningSwitch,
    get,
    make_hot_and_wait,
)

ROOT = Path(__file__).resolve().parents[3]
CONTROLLER = f"spiffe://{DOMAIN}/controller"
NAME = f"switch.{DOMAIN}"
PORTS = (1, 2, 3)
SESSION_S = 120


def shell_python() -> Path:
    """The interpreter that has p4runtime-shell; skips the test when there is none."""
    named = os.environ.get("P4SWITCH_SHELL_PYTHON")
    python = Path(named) if named else ROOT / "p4switch" / ".venv-p4rt-shell" / "bin" / "python"
    if not python.is_file():
        pytest.skip(
            f"no p4runtime-shell: make -C p4switch {python.parents[1].name}/.installed, or P4SWITCH_SHELL_PYTHON"
        )
    return python


@contextmanager
def secured_switch(pki: Pki) -> Iterator[RunningSwitch]:
    """kvcast's program on ports of memory; who wants to program it shows a controller's certificate."""
    files = pki.files("switch")
    options = SwitchOptions(
        program=V1MODEL.source,
        ports=tuple(PortSpec(number, Memory()) for number in PORTS),
        flood_group=V1MODEL.flood_group,
        tls=TlsFiles(files.cert, files.key, files.ca, frozenset({CONTROLLER})),
    )
    with Switch(options) as switch:
        yield RunningSwitch(V1MODEL, TestSwitch(switch, PORTS))


def session(python: Path, pki: Pki, address: str, who: str) -> subprocess.CompletedProcess[str]:
    """What the page's shell says to the page's lines, with somebody's certificate."""
    command, lines, _ = blocks_of("p4runtime-shell.md", "test_p4runtime_shell")
    files = pki.section(who)
    changes = {
        "shell/bin/python": str(python),
        "switch.kvcast.internal:9559": f"{NAME}:{address.rpartition(':')[2]}",
        "ca.pem": files["ca"],
        "controller.pem": files["cert"],
        "controller.key": files["key"],
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    hosts = pki.folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {NAME}\n")
    seen = f"mount --bind {hosts} /etc/hosts; exec {on_this_machine(command, changes)}"
    return subprocess.run(
        ["unshare", "--mount", "bash", "-euc", seen],
        input=lines,
        env={**environment, "IPYTHONDIR": str(pki.folder), "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=SESSION_S,
        check=False,
    )


@pytest.mark.root
def test_the_pages_session_beside_a_controller_that_works(tmp_path: Path) -> None:
    python, pki = shell_python(), Pki.make(tmp_path / "tls")

    async def steps(switch: RunningSwitch) -> None:
        settings = {
            "listen": "127.0.0.1:0",
            "metrics": "",
            "tls": pki.section("controller"),
            "switch": {"address": switch.address, "tls": True, "reconcile_ms": 50, **V1MODEL.settings},
            "membership": {"heartbeat_ms": 60_000},
            "fabric": {"segment_bytes": 256},
            "policy": {"price_fills": False},
        }
        controller = Controller(parse(settings, Path()))
        await controller.start()
        address = controller.grpc_address
        CABLES[address] = lambda said, here: switch.send(said.switch_port, here_frame(Host(said.switch_port), here))
        try:
            agents = [
                FakeAgent(address, number, chunks, pki.channel(address, f"agent/n{number}"))
                for number, chunks in ((1, [CHUNK]), (2, []), (3, []))
            ]
            async with agents[0] as holder, agents[1] as reader, agents[2]:
                Filler(holder, switch)
                await make_hot_and_wait(switch, reader)
                frames = get(switch, 2)
                looked = await asyncio.to_thread(session, python, pki, switch.address, "controller")
                refused = await asyncio.to_thread(session, python, pki, switch.address, "operator")
        finally:
            CABLES.pop(address)
            await controller.stop()
        look_at(looked)
        assert "PERMISSION_DENIED" in refused.stdout + refused.stderr, refused
        with_scapy(tmp_path, frames)

    with secured_switch(pki) as switch:
        run(steps(switch))


def look_at(session: subprocess.CompletedProcess[str]) -> None:
    """Nodes, the chunk that is served and asked for, groups, drops: all are there."""
    said = session.stdout
    octets = said.replace("\\x", "").replace("\\", "")
    assert session.returncode == 0, session
    assert "You are not the primary client" in said, session
    assert all(Host(port).mac.hex() in octets for port in PORTS), said
    assert key("a").hex() in octets, said
    assert "serving" in said, said
    assert "multicast_group_id: " in said, said
    for what in ("chunk_cache.kv_cache", "ingress_drops"):
        assert re.search(rf"{what}.*packet_count: [1-9]", said, re.DOTALL), f"{what}: {said}"


def with_scapy(folder: Path, frames: list[bytes]) -> None:
    """The page's other session, on what the switch has sent."""
    *_, code = blocks_of("p4runtime-shell.md", "test_p4runtime_shell")
    wrpcap(str(folder / "casts.pcap"), frames, linktype=1)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(on_this_machine(code, {"casts.pcap": str(folder / "casts.pcap")}), {})
    lines = printed.getvalue().splitlines()
    assert [line.rpartition("kvcast segment ")[2] for line in lines] == [
        f"{key('a').hex()} {number}/{SEGMENTS} / Raw" for number in range(SEGMENTS)
    ]
