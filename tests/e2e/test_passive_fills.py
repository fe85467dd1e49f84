"""A fill that rides on a cast, with real agents, a real switch and a real controller."""

from __future__ import annotations

import json
import re
import time

import pytest

from bmv2_testbed import client
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import CONTROLLER_PORT
from bmv2_testbed.content import Prefix
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import CONTROLLER_MANAGEMENT_IP, Target, TestbedSpec

pytestmark = pytest.mark.root

DEADLINE_S = 60.0
RODE = re.compile(r'^kvcast_agent_cast_sent_segments_total\{target="both"\} (\S+)$', re.MULTILINE)
PREFIX = Prefix(seed=731, size_bytes=2 * 2**20, chunk_bytes=2**20)
"""Two chunks: a holder fills two at a time."""


def served(testbed: Testbed) -> bool:
    """Whether the switch serves the prefix, as `kvcast ls` says."""
    address = f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_PORT}"
    testbed.run(
        "kvcast", "switch", python_module("kvcast.cli", "ls", "--limit", "0", "--json", "--controller", address)
    )
    chunks = json.loads(testbed.finish("kvcast", DEADLINE_S).stdout)
    return len(chunks) == 2 and all(chunk["switch"] == "serving" for chunk in chunks)


def read_everything(testbed: Testbed, *hosts: int) -> None:
    """These hosts fetch the prefix at once and compare every byte."""
    with ReaderGroup(testbed, PREFIX, hosts, deadline_s=DEADLINE_S) as readers:
        readers.start()
        for report in readers.reports():
            assert report is not None
            assert report.verified, report.reason


@pytest.mark.parametrize("target", ["p4switch", "tna"])
def test_a_prefix_comes_into_the_switch_while_it_is_cast(target: str) -> None:
    spec = TestbedSpec(
        hosts=5,
        target=Target(target),
        pool_bytes=16 * 2**20,
        slots=1024,
        rate_bit_s=50_000_000,
        controller_settings={"policy": {"price_fills": False}},
    )
    with client.running(spec) as testbed:
        put_prefix(testbed, PREFIX)
        read_everything(testbed, 1, 2, 3)
        deadline_s = time.monotonic() + DEADLINE_S
        while not served(testbed):
            assert time.monotonic() < deadline_s, "the switch never served the prefix"
        rode = RODE.search(testbed.agent_metrics(0))
        assert rode is not None
        assert float(rode[1]) > 0, "every segment was filled by itself"
        read_everything(testbed, 4)
