"""A group of readers, one process in each of some hosts: they get ready together, start at their times, and report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from bmv2_testbed.bench.figures import ReaderReport
from bmv2_testbed.bench.rendezvous import Rendezvous
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix, prefix_arguments
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import FETCH_DEADLINE_S, START_DEADLINE_S
from bmv2_testbed.processes import last_line, python_module
from bmv2_testbed.spec import CONTROLLER, host_name

_HEAD_START_S = 0.2
_SPARE_S = 5.0
WAY_DEADLINE_S = 45.0
"""A bridge that snoops filters some time after it has heard a querier; a controller looks every ten seconds."""
_LOOK_S = 0.5
_WAY = re.compile(r"casts go by (\w+) from now on")


class ReaderGroup:
    """Use as a context manager: readers are ready inside, and have ended after it."""

    def __init__(
        self,
        testbed: Testbed,
        prefix: Prefix,
        hosts: Sequence[int],
        *,
        source: str = "pool",
        address: Callable[[int], str] | None = None,
        deadline_s: float = FETCH_DEADLINE_S,
    ) -> None:
        """`address` of a host's source; default: the socket of the host's own agent. `deadline_s` of each fetch."""
        self._testbed = testbed
        self._prefix = prefix
        self._hosts = hosts
        self._source = source
        self._address = address or (lambda host: agent_socket(testbed, host))
        self._deadline_s = deadline_s
        self._names = {host: f"reader{host}" for host in hosts}
        self._start_s = 0.0
        self._last_offset_s = 0.0

    def __enter__(self) -> Self:
        testbed = self._testbed
        self._rendezvous = Rendezvous(testbed.directory, testbed.status()["directory"])
        try:
            for host, name in self._names.items():
                testbed.run(name, host_name(host), self._command(host, name))
            self._rendezvous.await_ready(len(self._hosts), time.monotonic() + START_DEADLINE_S, self._check_alive)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._rendezvous.__exit__(None, None, None)
        known = self._testbed.status()["processes"]
        for name in self._names.values():
            if name in known:
                self._testbed.kill(name)
                self._testbed.forget(name)

    def _command(self, host: int, name: str) -> list[str]:
        argv = python_module("bmv2_testbed.bench.reader", "--name", name, "--rendezvous", self._rendezvous.address)
        argv += ["--source", self._source, "--address", self._address(host), "--deadline", str(self._deadline_s)]
        return argv + prefix_arguments(self._prefix)

    def _check_alive(self) -> None:
        processes = self._testbed.status()["processes"]
        for name in self._names.values():
            if processes.get(name) is not None:
                raise TestbedError(f"{name} ended before the start: {last_line(self._testbed.log(name))}")

    def start(self, offsets_s: Sequence[float] | None = None) -> None:
        """Start them: each `offsets_s[i]` after the first (default: all at once). Returns at once."""
        offsets = list(offsets_s) if offsets_s is not None else [0.0] * len(self._hosts)
        self._start_s = time.monotonic() + _HEAD_START_S
        self._last_offset_s = max(offsets)
        starts = (self._start_s + offset for offset in offsets)
        self._rendezvous.start(dict(zip(self._names.values(), starts, strict=True)))

    def reports(self, tick: Callable[[], None] = lambda: None, tick_s: float = 0.2) -> list[ReaderReport | None]:
        """Wait for every reader's report (None: it ended without one), in the order of `hosts`; meanwhile call `tick`
        at least so often."""
        deadline_s = self._start_s + self._last_offset_s + self._deadline_s + _SPARE_S
        found = self._rendezvous.results(deadline_s, tick, tick_s)
        return [ReaderReport(**found[name]) if name in found else None for name in self._names.values()]


def agent_socket(testbed: Testbed, host: int) -> str:
    """Where the agent of a host listens, as processes inside the run see it."""
    return f"{testbed.status()['directory']}/{host_name(host)}.sock"


def put_prefix(testbed: Testbed, prefix: Prefix, host: int = 0) -> None:
    """Put a prefix into the pool through a host's agent."""
    _do(testbed, "put", prefix, host)


def await_prefix(testbed: Testbed, prefix: Prefix, host: int) -> None:
    """Wait until a host's agent knows of a prefix, and of its twins if there are to be any."""
    _do(testbed, "await", prefix, host)


def await_way(testbed: Testbed) -> str:
    """How casts go where the controller finds that out, once it has; `relay` as long as it knows nothing better."""
    until_s = time.monotonic() + WAY_DEADLINE_S
    while time.monotonic() < until_s:
        if said := _WAY.findall(testbed.log(CONTROLLER)):
            return str(said[-1])
        time.sleep(_LOOK_S)
    return "relay"


def _do(testbed: Testbed, job: str, prefix: Prefix, host: int) -> None:
    words = [job, "--address", agent_socket(testbed, host), *prefix_arguments(prefix)]
    testbed.run(f"{job}{host}", host_name(host), python_module("bmv2_testbed.bench.holder", *words))
    testbed.finish(f"{job}{host}", START_DEADLINE_S)
