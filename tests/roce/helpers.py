"""What tests do with a cluster of guests: put, fetch, count."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import GUEST_AGENT_SOCKET
from bmv2_testbed.content import Prefix, prefix_arguments
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import host_name

FETCH_DEADLINE_S = 600.0
PROCESS_DEADLINE_S = 900.0
"""Seconds are enough on a machine with nothing else to do; these only end what hangs."""
GO = itertools.count()
"""Numbers of the files that start readers."""
COUNTED = re.compile(r"kvcast_agent_(cast|read|rdma|dropped|control)\w*_total")


def put(testbed: Testbed, host: int, prefix: Prefix) -> None:
    argv = python_module("bmv2_testbed.bench.holder", "put", "--address", GUEST_AGENT_SOCKET, *prefix_arguments(prefix))
    testbed.run("put", host_name(host), argv)
    testbed.finish("put", PROCESS_DEADLINE_S)


def fetch(testbed: Testbed, wanted: Mapping[int, Prefix]) -> dict[int, dict[str, Any]]:
    """Fetch at all these hosts at once, each a prefix; their reports by host, every byte verified."""
    go = f"go-{next(GO)}"
    inside = testbed.status()["directory"]
    names = {host: f"fetch{host}" for host in wanted}
    for host, prefix in wanted.items():
        argv = python_module("tests.roce.fetch_once", "--agent", GUEST_AGENT_SOCKET, "--go", f"{inside}/{go}")
        argv += ["--deadline", str(FETCH_DEADLINE_S), *prefix_arguments(prefix)]
        testbed.run(names[host], host_name(host), argv)
    for name in names.values():
        testbed.await_ready(name)
    (testbed.directory / go).touch()
    reports = {host: json.loads(testbed.finish(name, PROCESS_DEADLINE_S).stdout) for host, name in names.items()}
    assert all(report["verified"] for report in reports.values()), reports
    return reports


def restart(testbed: Testbed, host: int) -> None:
    """Kill an agent and start it again, empty."""
    name = f"agent{host}"
    testbed.kill(name)
    testbed.restart(name)
    testbed.await_ready(name)
    testbed.await_cluster()


def metric(testbed: Testbed, host: int, name: str) -> float:
    found = re.search(rf"^kvcast_agent_{re.escape(name)} (\S+)$", testbed.agent_metrics(host), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


class Reads:
    """What one node has got by reliable reads since this was made."""

    def __init__(self, testbed: Testbed, host: int) -> None:
        self._testbed, self._host = testbed, host
        self._before = self._totals()

    def _totals(self) -> tuple[float, float]:
        rdma, tcp = (
            metric(self._testbed, self._host, f'read_received_bytes_total{{transport="{transport}"}}')
            for transport in ("rdma", "tcp")
        )
        return rdma, tcp

    @property
    def bytes_by(self) -> tuple[float, float]:
        """One-sided, and over TCP."""
        now = self._totals()
        return now[0] - self._before[0], now[1] - self._before[1]


def dropped(testbed: Testbed, host: int) -> list[str]:
    """What an agent has counted, for whoever has to find out why a test failed."""
    return [line for line in testbed.agent_metrics(host).splitlines() if COUNTED.match(line)]
