"""Network and daemons of one run, from inside the supervisor: the order in which things start, and what ready means."""

from __future__ import annotations

import functools
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import yaml

from bmv2_testbed.configs import TLS_FOLDER, agent_config, controller_config, namespace_endpoints, tls_section
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import START_DEADLINE_S, STOP_GRACE_S
from bmv2_testbed.network.counters import InterfaceCounters, passes_nothing
from bmv2_testbed.network.guests import GuestNetwork, guest_endpoints
from bmv2_testbed.network.wired import WiredNetwork
from bmv2_testbed.operator_calls import RECONNECT_AT_ONCE, ControllerCalls
from bmv2_testbed.processes import Launch, Supervisor, child_environment, last_line, python_module
from bmv2_testbed.spec import CONTROLLER, Faults, Target, TestbedSpec, Wiring, agent_name, host_name, switch_port
from bmv2_testbed.switch_admin import SwitchAdmin, port_options
from bmv2_testbed.switches import (
    ADMIN_SOCKET,
    build_for_bmv2,
    program_defines,
    program_of,
    shaped_by_switch,
    switch_command,
)

SWITCH: Final = "switch"


class Cluster:
    """Everything that runs. Requests may come from several threads; each is short."""

    def __init__(self, spec: TestbedSpec, directory: Path) -> None:
        self.spec = spec
        self.directory = directory
        self.processes = Supervisor(directory)
        self._admin = SwitchAdmin(str(directory / ADMIN_SOCKET))
        if spec.wiring is Wiring.NAMESPACES:
            self._endpoints = namespace_endpoints(spec)
            self.network: WiredNetwork | GuestNetwork = WiredNetwork(spec)
        else:
            self._endpoints = guest_endpoints(spec)
            self.network = GuestNetwork(spec, directory, self._endpoints, self._admin.port_statistics)

    def start(self, deadline_s: float) -> None:
        """Start switch, controller, agents; return when the whole is ready to be used."""
        if self._has_switch_process:
            self._start_switch(deadline_s)
        if not self.spec.daemons:
            return
        if self.spec.tls:
            self._make_certificates()
        self._start_controller(deadline_s)
        for host in range(self.spec.hosts):
            self._start_agent(host)
        for host in range(self.spec.hosts):
            self.await_ready(agent_name(host), deadline_s)
        self.await_cluster(deadline_s)

    @property
    def _has_switch_process(self) -> bool:
        return self.spec.target is not Target.BRIDGE

    @property
    def _programs_switch(self) -> bool:
        return self._has_switch_process and not self.spec.plain

    def _start_switch(self, deadline_s: float) -> None:
        if self.spec.target is Target.BMV2:
            build_for_bmv2(self.spec, self.directory)
        argv = switch_command(self.spec, self._endpoints, self.directory)
        self.processes.start(SWITCH, argv, self._place("switch"))
        self.await_ready(SWITCH, deadline_s)
        if self.spec.faults.any and not self.spec.target.is_p4switch:
            self.set_faults(None, self.spec.faults)

    def _make_certificates(self) -> None:
        nodes = ",".join(host_name(host) for host in range(self.spec.hosts))
        argv = python_module("kvcast.cli", "pki", "--dir", str(self.directory / TLS_FOLDER), "--nodes", nodes)
        made = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False)
        if made.returncode:
            raise TestbedError(f"no certificates: {made.stderr.strip()}")

    def _start_controller(self, deadline_s: float) -> None:
        config = controller_config(self.spec, self._endpoints, str(self.directory), str(self.directory / "kvcast"))
        path = self._write_config(CONTROLLER, config)
        self.processes.start(CONTROLLER, python_module("controlplane", "--config", path), self._place("switch"))
        self.await_ready(CONTROLLER, deadline_s)

    def _start_agent(self, host: int) -> None:
        config = agent_config(self.spec, host, self._endpoints, str(self.directory))
        path = self._write_config(agent_name(host), config)
        argv = python_module("hostagent", "--config", path)
        self.processes.start(agent_name(host), argv, self._place(host_name(host)))

    def _write_config(self, name: str, config: dict[str, object]) -> str:
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return str(path)

    def _place(self, place: str) -> Launch:
        return functools.partial(self.network.launch, place)

    def run(self, name: str, place: str, argv: Sequence[str]) -> int:
        """Start a process in a place of the network: a host's name, or `switch`."""
        return self.processes.start(name, argv, self._place(place))

    def restart(self, name: str, with_kept: bool = False) -> None:
        """Start a daemon again that has ended; `await_ready` waits until it is back. `with_kept`: with the files that
        it gave to be kept, an agent's pool; else it starts with nothing."""
        self.processes.restart(name, with_kept=with_kept)
        if name == SWITCH:
            self.await_ready(SWITCH, time.monotonic() + START_DEADLINE_S)

    def start_daemons_again(self, plain: bool, settings: Mapping[str, Any], deadline_s: float) -> None:
        """Start agents and the controller again, the latter with other settings and, unless `plain`, with the switch,
        which stays."""
        self.spec = replace(self.spec, plain=plain, controller_settings=dict(settings))
        daemons = [CONTROLLER, *(agent_name(host) for host in range(self.spec.hosts))]
        for daemon in daemons:
            self.processes.kill(daemon)
        config = controller_config(self.spec, self._endpoints, str(self.directory), str(self.directory / "kvcast"))
        self._write_config(CONTROLLER, config)
        for daemon in daemons:
            self.restart(daemon)
        for daemon in daemons:
            self.await_ready(daemon, deadline_s)
        self.await_cluster(deadline_s)

    def await_ready(self, name: str, deadline_s: float) -> None:
        """Wait until a process says that it does its work."""
        if name == SWITCH and self.spec.target is Target.BMV2:
            self._await_p4runtime(deadline_s)
        else:
            self.processes.await_ready(name, deadline_s)

    def _await_p4runtime(self, deadline_s: float) -> None:
        """bmv2 does not say when it listens: only a connection attempt shows it."""
        with grpc.insecure_channel(self._endpoints.p4runtime, RECONNECT_AT_ONCE) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=max(0.0, deadline_s - time.monotonic()))
            except grpc.FutureTimeoutError:
                said = last_line(self.processes.log_tail(SWITCH))
                raise TestbedError(f"{SWITCH} does not serve P4Runtime in time: {said}") from None

    def counters(self) -> dict[str, InterfaceCounters]:
        """What each host has sent and received: at its data interface or, of guests, at its switch port."""
        return self.network.counters()

    def agent_metrics(self, host: int) -> str:
        """An agent's metrics, in Prometheus' text format."""
        try:
            with urllib.request.urlopen(f"http://{self._endpoints.agent_http[host]}/metrics", timeout=2) as answer:
                text: bytes = answer.read()
        except (OSError, urllib.error.URLError) as error:
            raise TestbedError(f"{agent_name(host)} does not answer: {error}") from error
        return text.decode()

    def _calls(self) -> ControllerCalls:
        tls = tls_section(str(self.directory), "operator") if self.spec.tls else None
        return ControllerCalls(self._endpoints.controller, tls)

    def await_cluster(self, deadline_s: float) -> None:
        """Wait until every agent that runs is attached and the switch, if there is one, is programmed."""
        agents = sum(name.startswith("agent") for name in self.processes.pids())
        with self._calls() as calls:
            calls.await_ready(agents, self._programs_switch, deadline_s)

    def serve_from_switch(self, last_key: bytes, chunks: int, unpinned: bool, deadline_s: float) -> None:
        """Have the switch take in a prefix, and wait until it serves all of it."""
        try:
            with self._calls() as calls:
                calls.serve_from_switch(last_key, chunks, unpinned, deadline_s)
        except TestbedError as error:
            if not passes_nothing(self.network.counters()):
                raise
            raise TestbedError(
                "no packet comes through the switch: hosts have sent, and none has received any; its log says more"
                " (bmv2 with an unpatched libpcap is so)"
            ) from error

    def set_faults(self, port: int | None, faults: Faults) -> None:
        """Hurt the frames that leave a switch port (None: every port)."""
        if self.spec.target.is_p4switch:
            for host in range(self.spec.hosts):
                if port is None or port == switch_port(host):
                    rate_bit_s = shaped_by_switch(self.spec, host)
                    self._admin.set_port(switch_port(host), port_options(faults, rate_bit_s, self.spec.seed))
            return
        assert isinstance(self.network, WiredNetwork)
        for each in self.network.switch_interfaces() if port is None else (port,):
            self.network.set_netem(each, faults)

    def reboot(self, host: int) -> None:
        """Pull a guest's plug and start it again, with its agent; `await_ready` waits until the agent is back."""
        if not isinstance(self.network, GuestNetwork):
            raise TestbedError(f"wiring {self.spec.wiring} has no machines to reboot: use --roce")
        self.network.reboot(host_name(host))
        self.processes.wait(agent_name(host), STOP_GRACE_S)
        self.restart(agent_name(host))

    def reload_program(self) -> None:
        """Load the switch program again, with empty state."""
        if not self.spec.target.is_p4switch:
            raise TestbedError(f"target {self.spec.target} cannot reload a program: kill and restart the switch")
        self._admin.load(str(program_of(self.spec.target)), program_defines(self.spec))

    def stop(self) -> None:
        """End all processes, then the network."""
        self.processes.stop_all()
        self.network.stop()
