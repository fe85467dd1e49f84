"""Command lines of the switch processes: kvcast-switch and bmv2's simple_switch_grpc."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from bmv2_testbed.configs import Endpoints
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import Target, TestbedSpec, Wiring, switch_port
from bmv2_testbed.switch_admin import port_options
from controlplane.core.limits import TICK_NS
from kvproto.programs import Architecture, program_for
from p4switch.bmv2.names import tool_of_bmv2

ADMIN_SOCKET: Final = "switch.sock"
_DROP_PORT: Final = 511
_ORBIT_LOST_TICKS: Final = 5 * 10**9 // TICK_NS
"""Of a Tofino's program in software: five seconds. An orbit takes some ten milliseconds, on a busy machine more."""


def program_of(target: Target) -> Path:
    """The data plane that a target runs."""
    return program_for(Architecture.TNA if target is Target.TNA else Architecture.V1MODEL)


def switch_command(spec: TestbedSpec, endpoints: Endpoints, directory: Path) -> list[str]:
    """What to run for the target of this spec."""
    if spec.target is Target.BMV2:
        return _bmv2_command(spec, endpoints)
    argv = python_module("p4switch.cli", str(program_of(spec.target)), "--grpc", endpoints.p4runtime)
    argv += [f"-D{name}={value}" for name, value in program_defines(spec).items()]
    argv += ["--admin", f"unix:{directory / ADMIN_SOCKET}"]
    for host in range(spec.hosts):
        port = switch_port(host)
        if spec.wiring is Wiring.NAMESPACES:
            argv += ["-i", f"{port}@sw-eth{port}"]
        else:
            argv += ["-i", f"{port}@udp:{endpoints.switch_datagram[host]},{endpoints.agent_datagram[host]}"]
        options = port_options(spec.faults, shaped_by_switch(spec, host), spec.seed)
        if options:
            argv += ["--port-option", f"{port}:{','.join(f'{name}={value}' for name, value in options.items())}"]
    return argv


def shaped_by_switch(spec: TestbedSpec, host: int) -> int | None:
    """Rate that the switch has to keep a host's port to; None: the kernel does, or the link is not shaped."""
    return None if spec.wiring is Wiring.NAMESPACES else spec.link_rate_bit_s(host)


def program_defines(spec: TestbedSpec) -> dict[str, str]:
    """Macros that size the switch program."""
    sizes = {"SEGMENT_BYTES": str(spec.segment_bytes), "SLOTS": str(spec.slots)}
    return sizes | ({"ORBIT_LOST_TICKS": str(_ORBIT_LOST_TICKS)} if spec.target is Target.TNA else {})


def _bmv2_command(spec: TestbedSpec, endpoints: Endpoints) -> list[str]:
    argv = ["simple_switch_grpc", "--no-p4", "--log-level", "warn", "--device-id", "1"]
    for host in range(spec.hosts):
        argv += ["-i", f"{switch_port(host)}@sw-eth{switch_port(host)}"]
    return [*argv, "--", "--grpc-server-addr", endpoints.p4runtime, "--drop-port", str(_DROP_PORT)]


def build_for_bmv2(spec: TestbedSpec, directory: Path) -> None:
    """Compile the program for bmv2 into the run's directory."""
    for tool in ("p4c-bm2-ss", "simple_switch_grpc"):
        if tool_of_bmv2(tool) is None:
            raise TestbedError(f"target bmv2 needs {tool} on PATH, bmv2's own; without it use --target p4switch")
    argv = [
        "p4c-bm2-ss",
        "--arch",
        "v1model",
        *(f"-D{name}={value}" for name, value in program_defines(spec).items()),
        str(program_of(spec.target)),
        "-o",
        str(directory / "kvcast.json"),
    ]
    argv += ["--p4runtime-files", str(directory / "kvcast.p4info.txtpb")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"p4c-bm2-ss refuses the program: {done.stderr.strip().splitlines()[0]}")
