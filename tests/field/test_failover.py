"""The leading controller is killed: nothing that an operator set is lost, and the commands go on."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.field.cluster_in_lab import CONTROLLERS, cluster_in
from tests.field.lab import Lab, wait_until

pytestmark = pytest.mark.field

CHUNKS = 4
FETCHES_PER_S = 1e-4
"""Above what a controller expects that has heard of no fetch: nothing."""


def test_what_operators_set_outlives_the_leader(lab: Callable[[], Lab]) -> None:
    cluster = cluster_in(lab(), lambda number: f"172.31.9.{number}/16", CONTROLLERS)
    machines = cluster.lab
    machines["n2"].say(f"python put.py {CHUNKS}")
    assert machines["n3"].say(f"python fetch.py {CHUNKS}").split() == [str(CHUNKS), "OK"]
    wait_until(lambda: len(cluster.json("ls")) == CHUNKS, "the directory")
    last = cluster.json("ls")[-1]["key"]
    cluster.kvcast(f"pin {last} --switch")
    cluster.kvcast("drain n1")
    before = cluster.json("ls")
    assert [chunk["switch"] for chunk in before] == ["serving"] * CHUNKS
    machines["n1"].say(f"python fetch.py {CHUNKS}")
    wait_until(lambda: all(one["fetches_per_s"] > FETCHES_PER_S for one in cluster.json("ls")), "what was fetched")
    # A terminal of its own, with somebody before it who types nothing.
    top = machines["n3"].start("sleep 900 | LINES=40 script -qfc 'kvcast top' /dev/null", "draining")
    leader = cluster.controllers[0]
    assert "this controller leads" in leader.said()
    leader.kill()
    cluster.controllers[1].wait_for("this controller leads")
    cluster.wait_for_agents()
    status = cluster.json("top --once")["status"]
    assert {node["name"]: node["state"] for node in status["nodes"]} == {
        "n1": "draining",
        "n2": "attached",
        "n3": "attached",
    }
    wait_until(
        lambda: [(one["pinned"], one["switch"]) for one in cluster.json("ls")] == [(True, "serving")] * CHUNKS,
        "the pins, in the pools and in the switch",
    )
    assert all(one["fetches_per_s"] > FETCHES_PER_S for one in cluster.json("ls")), "agents tell what they fetched"
    examined = cluster.json("doctor cluster")
    assert not examined["broken"], examined
    cluster.kvcast("drain n1 --cancel")
    shown = len(top.said())
    wait_until(lambda: re.search(r"n1[^\n]*attached", top.said()[shown:]) is not None, "news on a terminal", top.said)
