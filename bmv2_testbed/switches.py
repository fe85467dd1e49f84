"""Command lines of the switch processes: kvcast-switch and bmv2's simple_switch_grpc."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from bmv2_testbed.configs import Endpoints
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import REPOSITORY_ROOT, python_module
from bmv2_testbed.spec import Target, TestbedSpec, Wiring, switch_port

PROGRAM: Final = REPOSITORY_ROOT / "p4" / "v1model" / "kvcast.p4"
_DROP_PORT: Final = 511


def switch_command(spec: TestbedSpec, endpoints: Endpoints, directory: Path) -> list[str]:
    """What to run for the target of this spec."""
    if spec.target is Target.BMV2:
        return _bmv2_command(spec, endpoints)
    if not PROGRAM.is_file():
        raise TestbedError(f"no switch program at {PROGRAM}: run from a checkout of the project")
    argv = python_module("p4switch.cli", str(PROGRAM), *_defines(spec), "--grpc", endpoints.p4runtime)
    argv += ["--admin", str(directory / "switch.sock")]
    for host in range(spec.hosts):
        port = switch_port(host)
        if spec.wiring is Wiring.NAMESPACES:
            argv += ["-i", f"{port}@sw-eth{port}"]
        else:
            argv += ["-i", f"{port}@udp:{endpoints.switch_datagram[host]}:{endpoints.agent_datagram[host]}"]
    return argv


def _defines(spec: TestbedSpec) -> list[str]:
    return [f"-DSEGMENT_BYTES={spec.segment_bytes}", f"-DSLOTS={spec.slots}"]


def _bmv2_command(spec: TestbedSpec, endpoints: Endpoints) -> list[str]:
    argv = ["simple_switch_grpc", "--no-p4", "--log-level", "warn", "--device-id", "1"]
    for host in range(spec.hosts):
        argv += ["-i", f"{switch_port(host)}@sw-eth{switch_port(host)}"]
    return [*argv, "--", "--grpc-server-addr", endpoints.p4runtime, "--drop-port", str(_DROP_PORT)]


def build_for_bmv2(spec: TestbedSpec, directory: Path) -> None:
    """Compile the program for bmv2 into the run's directory."""
    for tool in ("p4c-bm2-ss", "simple_switch_grpc"):
        if shutil.which(tool) is None:
            raise TestbedError(f"target bmv2 needs {tool} on PATH; without it use --target p4switch")
    argv = ["p4c-bm2-ss", "--arch", "v1model", *_defines(spec), str(PROGRAM), "-o", str(directory / "kvcast.json")]
    argv += ["--p4runtime-files", str(directory / "kvcast.p4info.txtpb")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"p4c-bm2-ss refuses the program: {done.stderr.strip().splitlines()[0]}")
