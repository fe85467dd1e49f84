"""Network and daemons of one run, from inside the keeper: what is started in which order, and what ready means."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from bmv2_testbed.network.wired import WiredNetwork
from bmv2_testbed.processes import Supervisor
from bmv2_testbed.spec import TestbedSpec


class Cluster:
    """Everything that runs. Not thread-safe beyond what the keeper's requests need."""

    def __init__(self, spec: TestbedSpec, directory: Path) -> None:
        self.spec = spec
        self.directory = directory
        self.processes = Supervisor(directory)
        self.network = WiredNetwork(spec)

    def start(self, deadline_s: float) -> None:
        pass

    def run(self, name: str, place: str, argv: Sequence[str]) -> int:
        """Start a process in a place of the network."""
        return self.processes.start(name, argv, functools.partial(self.network.launch, place))

    def restart(self, name: str) -> None:
        self.processes.restart(name)

    def await_ready(self, name: str, deadline_s: float) -> None:
        pass

    def set_faults(self, port: int | None, faults: dict[str, float]) -> None:
        pass

    def reload_program(self) -> None:
        pass

    def stop(self) -> None:
        self.processes.stop_all()
        self.network.stop()
