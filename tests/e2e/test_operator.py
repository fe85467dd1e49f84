"""The operator's commands on real agents, switch and controller: what they promise is what happens."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bmv2_testbed import client
from bmv2_testbed.bench.group import ReaderGroup, agent_socket, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import CONTROLLER_PORT
from bmv2_testbed.content import Prefix
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import CONTROLLER_MANAGEMENT_IP, TestbedSpec, host_name

pytestmark = pytest.mark.root

DEADLINE_S = 30.0
SEEDS = itertools.count(21)
DROP = """
import sys
from kvclient.client import AgentClient
with AgentClient(sys.argv[1]) as agent:
    assert all(agent.drop([bytes.fromhex(key) for key in sys.argv[2:]]))
"""


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    spec = TestbedSpec(hosts=4, pool_bytes=64 * 2**20, slots=2048, controller_settings={"policy": {"admission": False}})
    with client.running(spec) as running:
        yield running


class Pool:
    """A prefix of four chunks, put into the pool by host 0, and the commands."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.prefix = Prefix(seed=next(SEEDS), size_bytes=4 * 256 * 1024, chunk_bytes=256 * 1024)
        self.keys = [key.hex() for key in self.prefix.chunk_keys()]

    def kvcast(self, *words: str) -> Any:
        """Run a command; returns what its --json says."""
        address = f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_PORT}"
        argv = python_module("kvcast.cli", *words, "--json", "--controller", address)
        self.testbed.run("kvcast", "switch", argv)
        return json.loads(self.testbed.finish("kvcast", DEADLINE_S).stdout)

    def until(self, condition: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
        """Wait until `kvcast ls` shows it of the prefix."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition(chunks := [one for one in self.kvcast("ls", "--limit", "0") if one["key"] in self.keys]):
            assert time.monotonic() < deadline_s, f"never seen: {what}; there is {chunks}"

    def drop(self, host: int, *keys: str) -> None:
        """Have an agent drop its own copies."""
        argv = [sys.executable, "-c", DROP, agent_socket(self.testbed, host), *keys]
        self.testbed.run("drop", host_name(host), argv)
        self.testbed.finish("drop", DEADLINE_S)

    def read_everything(self, *hosts: int) -> None:
        """These hosts fetch the whole prefix and compare every byte."""
        with ReaderGroup(self.testbed, self.prefix, hosts, deadline_s=DEADLINE_S) as readers:
            readers.start()
            for report in readers.reports():
                assert report is not None
                assert report.verified, report.reason


@pytest.fixture
def pool(testbed: Testbed) -> Pool:
    pool = Pool(testbed)
    put_prefix(testbed, pool.prefix)
    pool.until(lambda chunks: [chunk["holders"] for chunk in chunks] == [["h0"]] * 4, "the prefix at h0")
    return pool


def test_warm_brings_a_prefix_to_the_nodes_named(pool: Pool) -> None:
    done = pool.kvcast("warm", "--prefix", pool.keys[-1][:12], "--nodes", "h1,h3")
    assert done["problems"] == {}
    assert {name: node["done"] for name, node in done["nodes"].items()} == {"h1": 4, "h3": 4}
    pool.until(lambda chunks: all(chunk["holders"] == ["h0", "h1", "h3"] for chunk in chunks), "three holders")


def test_drain_moves_last_copies_to_others(pool: Pool) -> None:
    pool.kvcast("warm", "--prefix", pool.keys[1], "--nodes", "h1")
    assert pool.kvcast("drain", "h0")["problems"] == {}
    pool.until(lambda chunks: all(set(chunk["holders"]) - {"h0"} for chunk in chunks), "no last copy at h0")
    pool.testbed.kill("agent0")
    try:
        pool.read_everything(2)
    finally:
        pool.kvcast("drain", "h0", "--cancel")
        pool.testbed.restart("agent0")
        pool.testbed.await_ready("agent0")
        pool.testbed.await_cluster()


def test_the_last_copy_comes_out_of_the_switch(pool: Pool) -> None:
    pool.kvcast("pin", pool.keys[-1], "--switch")
    pool.until(lambda chunks: all(chunk["switch"] == "serving" for chunk in chunks), "four chunks served")
    pool.kvcast("unpin", pool.keys[-1])
    pool.read_everything(1)
    pool.drop(1, pool.keys[-1])
    pool.drop(0, pool.keys[-1])
    pool.until(lambda chunks: chunks[-1]["holders"] == [], "a chunk that only the switch has")
    assert pool.kvcast("evict", pool.keys[-1])["chunks_from_switch"] == 1
    pool.until(lambda chunks: chunks[-1]["switch"] == "absent", "the chunk out of the switch")
    pool.until(lambda chunks: len(chunks) == 4 and len(chunks[-1]["holders"]) == 1, "the chunk saved at a host")
    pool.read_everything(2, 3)


def test_a_new_controller_takes_over_what_the_switch_serves(pool: Pool) -> None:
    pool.kvcast("pin", pool.keys[-1], "--switch")
    pool.until(lambda chunks: all(chunk["switch"] == "serving" for chunk in chunks), "four chunks served")
    pool.testbed.kill("controller")
    pool.read_everything(1)
    pool.testbed.restart("controller")
    pool.testbed.await_cluster()
    pool.until(lambda chunks: len(chunks) == 4 and all(c["switch"] == "serving" for c in chunks), "taken over")
    pool.until(lambda chunks: all(chunk["pinned"] for chunk in chunks), "pins that came back with the agents")
    decisions = pool.kvcast("top")["status"]["decisions"]
    assert decisions["adopted"] >= 4
    assert "admitted" not in decisions
