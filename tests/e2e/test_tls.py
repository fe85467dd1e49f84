"""Switch, controller, agents and commands with certificates on every connection between them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bmv2_testbed.processes import child_environment
from tests.certificates import DOMAIN, Pki
from tests.ports import free_port

START_S = 120.0
"""The switch compiles its program where nobody has before."""


@contextlib.contextmanager
def daemon(*words: str, ready: str) -> Iterator[str]:
    """A process that has printed `ready`; gives that line."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if ready in line), None)
        if line is None:
            pytest.fail(process.communicate()[1])
        yield line
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()


def kvcast(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "kvcast.cli", *words]
    return subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False)


def word(line: str, name: str) -> str:
    return next(one for one in line.split() if one.startswith(name)).removeprefix(name)


def write(path: Path, content: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(content))
    return str(path)


def agent_config(pki: Pki, folder: Path, node: str, certificate: str, controller: str) -> dict[str, Any]:
    return {
        "node": node,
        "tls": pki.section(certificate),
        "controller": {"address": controller},
        "data": {
            "transport": "sockets",
            "address": "127.0.0.1",
            "read_port": 0,
            "cast_port": free_port(),
            "control_port": free_port(),
            "segment_bytes": 4096,
        },
        "pool": {"size": "4MiB"},
        "api": {"socket": str(folder / f"{node}.sock")},
        "http": {"port": 0},
    }


def options(pki: Pki, name: str) -> list[str]:
    return [word for key, path in pki.section(name).items() for word in (f"--tls-{key}", path)]


def test_certificates_on_every_connection(tmp_path: Path) -> None:
    pki = Pki.make(tmp_path / "tls")
    port = free_port()
    switch = ["kvcast.cli", "switch", "-i", f"1@udp:127.0.0.1:{port},127.0.0.1:{free_port()}"]
    switch += ["--grpc", "127.0.0.1:0", *options(pki, "switch"), "--tls-controller", f"spiffe://{DOMAIN}/controller"]
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(daemon(*switch, ready="listening on "))
        p4runtime = line.split("listening on ")[1].split()[0]
        config = {
            "listen": "127.0.0.1:0",
            "metrics": "",
            "tls": pki.section("controller"),
            "switch": {"target": "p4switch", "address": p4runtime, "tls": True},
        }
        line = stack.enter_context(
            daemon("controlplane", "--config", write(tmp_path / "controller.yaml", config), ready="ready")
        )
        controller = word(line, "grpc=")
        for node, certificate in (("n1", "agent/n1"), ("n2", "agent/n2")):
            made = write(tmp_path / f"{node}.yaml", agent_config(pki, tmp_path, node, certificate, controller))
            stack.enter_context(daemon("hostagent", "--config", made, ready="ready"))
        asked = ["top", "--json", "--controller", controller, *options(pki, "operator")]
        end = time.monotonic() + START_S
        while True:
            done = kvcast(*asked)
            assert done.returncode == 0, done.stderr
            status = json.loads(done.stdout)["status"]
            attached = sorted(node["name"] for node in status["nodes"] if node["state"] == "attached")
            if (attached, status["switch"]["state"]) == (["n1", "n2"], "ready"):
                break
            assert time.monotonic() < end, status
        assert status["security"] == "tls"
        made = write(tmp_path / "n4.yaml", agent_config(pki, tmp_path, "n4", "agent/n4", controller))
        findings = json.loads(kvcast("doctor", "agent", "--json", "--config", made).stdout)
        (found,) = [one["found"] for one in findings if one["check"] == "controller"]
        assert found == f"{controller}: answers"
        # An agent with another node's certificate says so itself before it asks anybody.
        made = write(tmp_path / "n3.yaml", agent_config(pki, tmp_path, "n3", "agent/n1", controller))
        liar = subprocess.run(
            [sys.executable, "-m", "hostagent", "--config", made],
            env=child_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )
        assert liar.returncode == 1
        assert f"is the certificate of spiffe://{DOMAIN}/agent/n1" in liar.stderr
