"""`kvcast bench switch` over interfaces: that it measures what it says, not how fast that is."""

from __future__ import annotations

import os
import shutil

import pytest

from bmv2_testbed.bench import switch_get
from p4switch.bench import sockets, wire

pytestmark = [
    pytest.mark.root,
    pytest.mark.enters_namespace,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root (for a network namespace)"),
]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(wire, "SECONDS", 0.2)
    monkeypatch.setattr(wire, "WARM_UP_SECONDS", 0.05)
    monkeypatch.setattr(sockets, "FRAMES", 500)


def test_the_switch_beside_the_bare_loop():
    compared = {(f.name, f.against) for f in wire.forwarding()}
    for size in wire.SIZES:
        one, copies = f"veth, {size} B, switch", f"veth, {size} B, switch to eight ports"
        assert {(one, f"veth, {size} B, bare loop"), (copies, f"veth, {size} B, bare loop to eight ports")} <= compared


def test_ways_to_send():
    assert all(f.ns_per_packet > 0 for f in sockets.sending())


@pytest.mark.bmv2
def test_both_switches_answer_a_get_with_the_same_bytes():
    if shutil.which(switch_get.COMPILER) is None or shutil.which(switch_get.PEER) is None:
        pytest.skip(f"bmv2: {switch_get.COMPILER} and {switch_get.PEER} are not on PATH")
    theirs, ours, by_processor_time = switch_get.run_get_comparison()
    assert {ours.against, by_processor_time.against} == {theirs.name}
