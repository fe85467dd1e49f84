"""The incast: N readers fetch the same prefix from one holder, at once or staggered, by kvcast and by its peers."""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from bmv2_testbed import client
from bmv2_testbed.bench.figures import IncastFigures, ReaderReport, incast_figures
from bmv2_testbed.bench.rendezvous import Rendezvous
from bmv2_testbed.bench.sources import REDIS_PORT, TCP_PEER_PORT
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import FETCH_DEADLINE_S, START_DEADLINE_S
from bmv2_testbed.processes import last_line, python_module
from bmv2_testbed.spec import NO_FAULTS, Faults, Target, TestbedSpec, Wiring, data_ip, host_name

Say = Callable[[str], None]


class Mode(StrEnum):
    """How kvcast brings the prefix to its readers."""

    UNICAST = "unicast"
    """The pool on a plain bridge: what a pool without the switch can do."""
    CAST = "cast"
    """Replicated by the switch while it is in flight."""
    CACHE = "cache"
    """Served by the switch itself."""


class Peer(StrEnum):
    """What else brings the prefix to its readers, on the same links."""

    TCP = "tcp"
    REDIS = "redis"


@dataclass(frozen=True, slots=True)
class IncastPlan:
    """One incast benchmark; sizes in bytes, rates in bit/s, reader indices from 0."""

    readers: int = 8
    rate_bit_s: int = 100_000_000
    size_bytes: int = 16 * 2**20
    chunk_bytes: int = 2**20
    stagger: bool = False
    seed: int = 1
    slow: Mapping[int, int] = field(default_factory=dict)
    """Rates of the readers whose link differs, by reader index."""
    faults: Faults = NO_FAULTS
    target: Target = Target.P4SWITCH
    wiring: Wiring = Wiring.NAMESPACES

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.seed, self.size_bytes, self.chunk_bytes)

    @property
    def ideal_s(self) -> float:
        return self.size_bytes * 8 / self.rate_bit_s

    def offsets_s(self) -> list[float]:
        """Each reader's start after the first one's: zeros, or random within one transfer time."""
        if not self.stagger:
            return [0.0] * self.readers
        rng = random.Random(self.seed)
        return [0.0, *(rng.random() * self.ideal_s for _ in range(self.readers - 1))]

    def testbed(self, mode: Mode) -> TestbedSpec:
        """The testbed that a mode runs on: host 0 holds, host i + 1 is reader i."""
        return TestbedSpec(
            target=Target.BRIDGE if mode is Mode.UNICAST and self.wiring is Wiring.NAMESPACES else self.target,
            wiring=self.wiring,
            hosts=self.readers + 1,
            rate_bit_s=self.rate_bit_s,
            slow_bit_s={reader + 1: rate for reader, rate in self.slow.items()},
            faults=self.faults,
            seed=self.seed,
            segment_bytes=256 if self.target is Target.BMV2 and mode is not Mode.UNICAST else 4096,
        )


class IncastRun:
    """Runs the modes and peers of a plan, each mode on a testbed of its own, all with the same links."""

    def __init__(self, plan: IncastPlan, say: Say, moved: Callable[[float], None]) -> None:
        """`say`: what happens now, for the screen. `moved`: share of all bytes that arrived so far, in [0, 1]."""
        self._plan = plan
        self._say = say
        self._moved = moved

    def mode(self, mode: Mode, peers: Sequence[Peer] = ()) -> tuple[IncastFigures, dict[str, IncastFigures]]:
        """Figures of a mode and, on the same links in the same run, of the peers."""
        plan = self._plan
        self._say(f"{mode}: network of {plan.readers + 1} hosts")
        with client.running(plan.testbed(mode)) as testbed:
            found = {peer.value: self._peer(testbed, peer) for peer in peers}
            self._say(f"{mode}: the holder puts the prefix")
            _run_holder(testbed, plan, "put", agent_socket(testbed, 0))
            if mode is Mode.CACHE:
                self._say(f"{mode}: the switch takes the prefix in")
                raise TestbedError("later")
            figures = self._incast(testbed, mode.value, "pool", lambda reader: agent_socket(testbed, reader + 1))
        return figures, found

    def peers(self, peers: Sequence[Peer]) -> dict[str, IncastFigures]:
        """Only the peers, on a plain bridge."""
        plan = self._plan
        with client.running(_without_daemons(plan.testbed(Mode.UNICAST))) as testbed:
            return {peer.value: self._peer(testbed, peer) for peer in peers}

    def _peer(self, testbed: Testbed, peer: Peer) -> IncastFigures:
        self._say(f"peer {peer}: the holder loads the prefix")
        holder = data_ip(0)
        server = f"{peer.value}-server"
        start_peer(testbed, peer, self._plan.prefix)
        try:
            return self._incast(testbed, peer.value, peer.value, lambda _reader: holder)
        finally:
            testbed.kill(server)
            testbed.forget(server)

    def _incast(self, testbed: Testbed, mode: str, source: str, address: Callable[[int], str]) -> IncastFigures:
        plan = self._plan
        status = testbed.status()
        names = [f"reader{reader}" for reader in range(plan.readers)]
        with Rendezvous(testbed.directory, status["directory"]) as rendezvous:
            for reader, name in enumerate(names):
                argv = python_module("bmv2_testbed.bench.reader", "--name", name, "--rendezvous", rendezvous.address)
                argv += ["--source", source, "--address", address(reader), *_prefix_arguments(plan.prefix)]
                testbed.run(name, host_name(reader + 1), argv)
            self._say(f"{mode}: readers get ready")
            rendezvous.await_ready(
                plan.readers, time.monotonic() + START_DEADLINE_S, lambda: _check_alive(testbed, names)
            )
            cpu_before = testbed.cpu_s()
            before = testbed.counters()
            self._say(f"{mode}: {plan.readers} readers fetch")
            start_s = time.monotonic() + 0.2
            offsets = plan.offsets_s()
            rendezvous.start({name: start_s + offset for name, offset in zip(names, offsets, strict=True)})
            reports = rendezvous.results(
                start_s + max(offsets) + FETCH_DEADLINE_S + 5, lambda: self._show_progress(testbed, before)
            )
            after = testbed.counters()
            cpu = {
                name: used - cpu_before.get(name, 0.0) for name, used in testbed.cpu_s().items() if name not in names
            }
        for name in names:
            outcome = testbed.wait(name, 5)
            if outcome is None:
                testbed.kill(name)
            elif outcome.status != 0:
                self._say(f"{name}: {outcome.stderr.strip()[-500:]}")
            testbed.forget(name)
        grown = {host: after[host].since(before[host]) for host in after}
        parsed = [ReaderReport(**reports[name]) if name in reports else None for name in names]
        cpu["readers"] = sum(report.cpu_s for report in parsed if report is not None)
        return incast_figures(
            mode=mode,
            target=status["spec"]["target"],
            size_bytes=plan.size_bytes,
            rate_bit_s=plan.rate_bit_s,
            slow_readers=frozenset(plan.slow),
            offsets_s=offsets,
            reports=parsed,
            holder=grown[host_name(0)],
            readers=[grown[host_name(reader + 1)] for reader in range(plan.readers)],
            cpu_s=cpu,
            counters="interfaces" if plan.wiring is Wiring.NAMESPACES else "switch ports and TCP byte counts",
        )

    def _show_progress(self, testbed: Testbed, before: Mapping[str, object]) -> None:
        counters = testbed.counters()
        arrived = sum(
            counters[name].rx_bytes - before[name].rx_bytes  # type: ignore[attr-defined]
            for name in (host_name(reader + 1) for reader in range(self._plan.readers))
        )
        self._moved(min(1.0, arrived / (self._plan.readers * self._plan.size_bytes)))


def start_peer(testbed: Testbed, peer: Peer, prefix: Prefix) -> None:
    """Start a peer's server at the holder and load the prefix into it."""
    holder = data_ip(0)
    name = f"{peer.value}-server"
    if peer is Peer.TCP:
        directory = testbed.status()["directory"]
        words = ["serve", "--address", holder, "--file", f"{directory}/served", *_prefix_arguments(prefix)]
        testbed.run(name, host_name(0), python_module("bmv2_testbed.bench.holder", *words))
        _await_listening(testbed, name, TCP_PEER_PORT)
        return
    if shutil.which("redis-server") is None:
        raise TestbedError(
            "no redis-server on PATH: install the Debian package redis-server, or leave out --peer redis"
        )
    words = ["--bind", holder, "--port", str(REDIS_PORT), "--protected-mode", "no", "--save", "", "--appendonly", "no"]
    testbed.run(name, host_name(0), ["redis-server", *words])
    _await_listening(testbed, name, REDIS_PORT)
    testbed.run("redis-load", host_name(0), _holder_command(prefix, "redis", holder))
    testbed.finish("redis-load", START_DEADLINE_S)


_AWAIT_LISTENING: Final = """
import socket, sys, time
end = time.monotonic() + 20
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()
        break
    except OSError as error:
        if time.monotonic() > end:
            sys.exit(f"nothing listens on {sys.argv[1]}:{sys.argv[2]}: {error}")
        time.sleep(0.02)
"""


def _await_listening(testbed: Testbed, server: str, port: int) -> None:
    testbed.run("await-listening", host_name(0), [sys.executable, "-c", _AWAIT_LISTENING, data_ip(0), str(port)])
    try:
        testbed.finish("await-listening", START_DEADLINE_S)
    except TestbedError as error:
        raise TestbedError(f"{error}; {server} said: {testbed.log(server)[-300:]}") from error


def agent_socket(testbed: Testbed, host: int) -> str:
    """Where the agent of a host listens, as processes inside the run see it."""
    return f"{testbed.status()['directory']}/{host_name(host)}.sock"


def _run_holder(testbed: Testbed, plan: IncastPlan, job: str, address: str) -> None:
    testbed.run(f"holder-{job}", host_name(0), _holder_command(plan.prefix, job, address))
    testbed.finish(f"holder-{job}", START_DEADLINE_S)


def _holder_command(prefix: Prefix, job: str, address: str) -> list[str]:
    return python_module("bmv2_testbed.bench.holder", job, "--address", address, *_prefix_arguments(prefix))


def _prefix_arguments(prefix: Prefix) -> list[str]:
    return ["--seed", str(prefix.seed), "--size", str(prefix.size_bytes), "--chunk", str(prefix.chunk_bytes)]


def _check_alive(testbed: Testbed, names: Sequence[str]) -> None:
    processes = testbed.status()["processes"]
    for name in names:
        if processes.get(name) is not None:
            raise TestbedError(f"{name} ended before the start: {last_line(testbed.log(name))}")


def _without_daemons(spec: TestbedSpec) -> TestbedSpec:
    return replace(spec, daemons=False)
