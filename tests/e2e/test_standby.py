"""Two controllers on one switch: P4Runtime's arbitration says who leads, agents and operators find that one."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml

from bmv2_testbed import client
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import CONTROLLER_PORT
from bmv2_testbed.content import Prefix
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import CONTROLLER_MANAGEMENT_IP, TestbedSpec
from tests.leftovers import leftovers

pytestmark = pytest.mark.root

HOSTS = 3
DEADLINE_S = 30.0
PRIMARY, STANDBY = (f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_PORT + index}" for index in range(2))


def _start_standby(testbed: Testbed) -> None:
    """The primary's configuration, another port, a lower election id."""
    config = yaml.safe_load((testbed.directory / "controller.yaml").read_text())
    config["listen"], config["metrics"] = STANDBY, ""
    config["switch"]["election_id"] = 5
    (testbed.directory / "standby.yaml").write_text(yaml.safe_dump(config))
    seen_inside = f"{testbed.status()['directory']}/standby.yaml"
    testbed.run("standby", "switch", python_module("controlplane", "--config", seen_inside))
    testbed.await_ready("standby")


def _kvcast(testbed: Testbed, *words: str, controller: str = f"{PRIMARY},{STANDBY}") -> Any:
    argv = python_module("kvcast.cli", *words, "--json", "--controller", controller)
    testbed.run("kvcast", "switch", argv)
    return json.loads(testbed.finish("kvcast", DEADLINE_S).stdout)


def _fetch(testbed: Testbed, prefix: Prefix, *hosts: int) -> None:
    with ReaderGroup(testbed, prefix, hosts, deadline_s=DEADLINE_S) as readers:
        readers.start()
        for report in readers.reports():
            assert report is not None
            assert report.verified, report.reason


def _until(testbed: Testbed, address: str, state: str, nodes: int) -> None:
    """Wait until this controller is in this state at the switch, and so many agents are attached to it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        status = _kvcast(testbed, "top", controller=address)["status"]
        found = status["switch"]["state"], sum(node["state"] == "attached" for node in status["nodes"])
        if found == (state, nodes):
            return
        assert time.monotonic() < deadline_s, f"{address} is {found}, not {state, nodes}"


def test_a_standby_takes_over_and_the_other_after_it() -> None:
    spec = TestbedSpec(
        hosts=HOSTS,
        pool_bytes=64 * 2**20,
        slots=2048,
        controller_settings={"policy": {"admission": False}},
        agent_settings={"controller": {"address": [PRIMARY, STANDBY]}},
    )
    first, second = (Prefix(seed=seed, size_bytes=2**20, chunk_bytes=256 * 1024) for seed in (51, 52))
    with client.running(spec) as testbed:
        _start_standby(testbed)
        _until(testbed, STANDBY, "standby", 0)
        put_prefix(testbed, first)
        assert _kvcast(testbed, "pin", first.chunk_keys()[-1].hex(), "--switch")["chunks"] == first.chunks
        testbed.kill("controller")
        _until(testbed, STANDBY, "ready", HOSTS)
        # It knows what the first one knew, pins included, and goes on serving it.
        assert [chunk["pinned"] for chunk in _kvcast(testbed, "ls", "--limit", "0")] == [True] * first.chunks
        _fetch(testbed, first, 1)
        put_prefix(testbed, second, host=2)
        _fetch(testbed, second, 0, 1)
        # Who leads goes on leading: the first one comes back as the other's standby.
        testbed.restart("controller")
        testbed.await_ready("controller")
        _until(testbed, PRIMARY, "standby", 0)
        testbed.kill("standby")
        _until(testbed, PRIMARY, "ready", HOSTS)
        _fetch(testbed, second, 0, 1)
        assert leftovers(testbed) == []
