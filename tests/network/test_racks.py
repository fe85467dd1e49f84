"""Racks with slow links between them: a bridge each that drops multicast, nodes that pass on to each other."""

from __future__ import annotations

import os

import pytest

from bmv2_testbed import client
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode
from bmv2_testbed.network.wired import have_mininet
from bmv2_testbed.spec import rack_name
from tests.e2e.traffic import await_traffic

pytestmark = [
    pytest.mark.network,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or not have_mininet(), reason="needs root and the Debian package mininet"),
]
PLAN = IncastPlan(readers=7, racks=4, size_bytes=4 << 20, chunk_bytes=512 << 10)


def test_a_prefix_crosses_each_link_between_racks_about_once() -> None:
    found, _ = IncastRun(PLAN, lambda _: None, lambda _: None).mode(Mode.RELAY)
    assert found.verified, found.problems
    assert found.origins == {"holder": PLAN.readers * PLAN.prefix.chunks}
    assert found.core_tx_S < 1.6, "unicast would be 6"
    assert found.holder_tx_S < 1.6, "unicast would be 7"


def test_a_link_between_racks_fails_and_the_other_racks_go_on() -> None:
    hosts = [reader + 1 for reader in range(PLAN.readers)]
    spec = PLAN.testbed(Mode.RELAY)
    with client.running(spec) as testbed:
        put_prefix(testbed, PLAN.prefix)
        with ReaderGroup(testbed, PLAN.prefix, hosts, deadline_s=15) as readers:
            readers.start()
            await_traffic(testbed, "h2", received_bytes=PLAN.size_bytes // 4, timeout_s=20)
            testbed.set_link(rack_name(1), False)
            reports = dict(zip(hosts, readers.reports(), strict=True))
    others = [reports[host] for host in hosts if spec.rack(host) != 1]
    assert len(others) == 5
    assert all(report is not None and report.verified for report in others), others
