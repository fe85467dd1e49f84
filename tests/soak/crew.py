"""The processes of a soak beside the daemons: engines and loaders at work, probes, those who say nothing, liars."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from bmv2_testbed.bench.group import agent_socket
from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import (
    AGENT_HTTP_PORT,
    CONTROLLER_METRICS_PORT,
    CONTROLLER_PORT,
    P4RUNTIME_PORT,
)
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import CONTROLLER_MANAGEMENT_IP, agent_name, data_ip, host_name, management_ip
from hostagent.config import DataConfig
from tests.soak.load import DEADLINE_S, HUNG_S, LATE_S, Clock
from tests.soak.looks import HANGS_S
from tests.soak.plan import HONEST, STRANGER

CONTROLLER: Final = f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_PORT}"
CONTROLLER_PAGES: Final = f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_METRICS_PORT}"
PAGES: Final = {
    "controller": CONTROLLER_PAGES,
    **{agent_name(host): f"{management_ip(host)}:{AGENT_HTTP_PORT}" for host in range(HONEST)},
}
FROM_STRANGER: Final = (
    CONTROLLER,
    *PAGES.values(),
    *(f"{data_ip(host)}:{DataConfig().read_port}" for host in range(HONEST)),
)
FROM_BESIDE_SWITCH: Final = (f"127.0.0.1:{P4RUNTIME_PORT}",)
ENGINES: Final = tuple(f"engine{host}" for host in range(HONEST))
LOADERS: Final = tuple(f"loader{host}" for host in range(HONEST))
PROBE: Final = "probe"
_SILENT: Final = {"silence_stranger": FROM_STRANGER, "silence_switch": FROM_BESIDE_SWITCH}
_DISCARD_PORT: Final = 9
"""Nobody listens there: what says nothing to nobody is harmless."""
ATTACK_FRAMES_S: Final = 300.0
ATTACK_SPARE_S: Final = 90.0
"""What a busy machine may take to start and end an attacker."""


class Crew:
    """`inside`: the run's directory as its processes see it."""

    def __init__(self, testbed: Testbed, clock: Clock) -> None:
        self._testbed, self._clock = testbed, clock
        self._inside: str = testbed.status()["directory"]
        self.silent: dict[str, Counter[str]] = {}
        """Connections that said nothing so far, by what became of them."""

    @property
    def _clock_words(self) -> list[str]:
        clock = self._clock
        return ["--began", str(clock.began_s), "--seed", str(clock.seed), "--hosts", str(clock.hosts)]

    # ------------------------------------------------------------------ at work

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Engines, loaders and probes; whoever has not been stopped at the end is killed."""
        for name, module in {**dict.fromkeys(ENGINES, "worker"), **dict.fromkeys(LOADERS, "loader")}.items():
            host = int(name[-1])
            words = ["--socket", agent_socket(self._testbed, host), "--out", self._out(name), "--host", str(host)]
            argv = python_module(f"tests.soak.{module}", *words, *self._clock_words)
            self._testbed.run(name, host_name(host), argv)
        pages = [f"{name}={address}" for name, address in PAGES.items()]
        self._testbed.run(PROBE, "switch", python_module("tests.soak.probe", "--out", self._out(PROBE), *pages))
        try:
            yield
        finally:
            running = self._testbed.status()["processes"]
            for name in (*ENGINES, *LOADERS, PROBE):
                if running.get(name, 0) is None:
                    self._testbed.kill(name)

    def stop(self, names: Sequence[str]) -> float:
        """They finish what is under way. When the last of them had ended, or nobody waited for it any more."""
        for name in names:
            self._testbed.kill(name, signal.SIGTERM)
        give_up_s = time.monotonic() + DEADLINE_S + LATE_S + HUNG_S + 5.0
        for name in names:
            outcome = self._testbed.wait(name, max(0.1, give_up_s - time.monotonic()))
            if outcome is not None and outcome.status != 0:
                raise TestbedError(f"{name} broke: {outcome.stderr[-2000:]}")
        return time.monotonic()

    def lines(self) -> list[dict[str, Any]]:
        """What they did, in order."""
        found = []
        for name in (*ENGINES, *LOADERS, PROBE):
            path = self._testbed.directory / f"{name}.lines"
            whole = path.read_text().rpartition("\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
        return sorted(found, key=lambda line: float(line["at_s"]))

    def _out(self, name: str) -> str:
        return f"{self._inside}/{name}.lines"

    # ------------------------------------------------------------------ strangers

    @contextmanager
    def silence(self, opened_s: float, *, harmless: bool = False) -> Iterator[None]:
        """Strangers who open so many connections to each port in a second; `harmless`: where nobody listens."""
        for name, addresses in _SILENT.items():
            ports = [_nobody_at(address) for address in addresses] if harmless else addresses
            argv = python_module("tests.soak.silent", "--rate", str(opened_s), *ports)
            self._testbed.run(name, host_name(STRANGER) if name == "silence_stranger" else "switch", argv)
        try:
            for name in _SILENT:
                self._testbed.await_ready(name)
            yield
        finally:
            for name in _SILENT:
                self._testbed.kill(name, signal.SIGTERM)
        for name in _SILENT:
            said = json.loads(self._testbed.finish(name, ATTACK_SPARE_S).stdout)
            for what, ports in said.items() if not harmless else ():
                self.silent.setdefault(what, Counter()).update(ports)

    def attack(self, name: str, host: int, kind: str, lasts_s: float, *more: str) -> None:
        """A host begins to send frames of a kind; it ends by itself."""
        words = ["--kind", kind, "--seconds", str(lasts_s), "--rate", str(ATTACK_FRAMES_S), "--port", str(host + 1)]
        argv = python_module("tests.soak.attacker", *words, *self._clock_words, *more)
        self._testbed.run(name, host_name(host), argv)

    def end_attack(self, name: str) -> None:
        """Of one that has begun and is not to end by itself. Raises TestbedError where it had broken."""
        if self._testbed.status()["processes"][name] is not None:
            self._testbed.finish(name, ATTACK_SPARE_S)
            raise TestbedError(f"{name} ended too early")
        self._testbed.kill(name)
        self._testbed.forget(name)

    # ------------------------------------------------------------------ looks

    def looks(self) -> list[str]:
        """What is wrong with what operators see."""
        self._testbed.run("looks", "switch", python_module("tests.soak.looks", CONTROLLER, CONTROLLER_PAGES))
        found: list[str] = json.loads(self._testbed.finish("looks", 3 * HANGS_S).stdout)
        return found

    def evict(self, key: bytes) -> None:
        """An operator deletes a prefix, whoever has it."""
        words: Sequence[str] = ("evict", key.hex(), "--hosts", "--yes", "--controller", CONTROLLER)
        self._testbed.run("evict", "switch", python_module("kvcast.cli", *words))
        self._testbed.wait("evict", DEADLINE_S)
        self._testbed.forget("evict")


def _nobody_at(address: str) -> str:
    return f"{address.rpartition(':')[0]}:{_DISCARD_PORT}"
