"""Controllers that stand still, are cut off, or lose etcd: their agents find who leads, and nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcast.cli import main
from p4switch.testing import memory_switch
from tests.growth.controllers import ControllerProcess, controllers
from tests.growth.etcd_server import EtcdServer
from tests.growth.troubled_link import TroubledLink, leading_to
from tests.unit.hostagent.agent_harness import Cluster, cluster, key
from tests.waiting import until

pytestmark = pytest.mark.growth

P4 = Path(__file__).resolve().parents[2] / "p4"
STILL_S = pytest.mark.parametrize("still_s", [pytest.param(0, id="shortly"), pytest.param(50, marks=pytest.mark.long)])
"""So long at least a leader stands still; and until another one leads."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.kill()


def by_etcd(address: str) -> dict[str, Any]:
    return {"election": {"by": "etcd", "etcd": {"endpoints": [address]}}}


@contextlib.contextmanager
def agents_of(*made: ControllerProcess) -> Iterator[Cluster]:
    """Two agents, attached; each holds a chunk."""
    with cluster(0) as nodes:
        for number in range(2):
            nodes.add(controllers=[one.address for one in made])
            nodes.client(number).put(key(number), None, b"x" * 1000)
        until(lambda: attached(made[0]) == 2, "the agents are attached")
        yield nodes


def attached(one: ControllerProcess) -> int:
    health = one.health()
    return 0 if health is None else int(health["nodes"])


def kvcast(*words: str, controller: ControllerProcess) -> int:
    return main([*words, "--controller", controller.address])


@contextlib.contextmanager
def link_to(address: str) -> Iterator[TroubledLink]:
    """A link of a loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = contextlib.AsyncExitStack()
    link = asyncio.run_coroutine_threadsafe(stack.enter_async_context(leading_to(address)), loop).result(10)
    try:
        yield link
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def standing_still(first: ControllerProcess, second: ControllerProcess, still_s: float) -> Iterator[None]:
    """Until it ends, `first` stands still; `second` leads then, and has the two agents. Says how long that took."""
    began_s = time.monotonic()
    first.stand_still()
    until(lambda: second.ready() == "ok", "c2 leads")
    leads_s = time.monotonic() - began_s
    until(lambda: attached(second) == 2, "its agents are there")
    agents_s = time.monotonic() - began_s
    print(f"another controller leads after {leads_s:.1f} s, and has its agents after {agents_s:.1f} s")
    yield
    time.sleep(max(0.0, began_s + still_s - time.monotonic()))
    first.wake()


@STILL_S
def test_a_leader_that_stands_still_is_replaced_and_wakes_as_a_standby(
    etcd: EtcdServer, tmp_path: Path, still_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = by_etcd(etcd.address)
    with controllers(tmp_path, settings, settings) as (first, second), agents_of(first, second) as nodes:
        assert "another one, c1." in (second.ready() or "")
        epoch = first.metric("epoch")
        with standing_still(first, second, still_s):
            assert second.metric("epoch") > epoch
            capsys.readouterr()
            assert kvcast("ls", "--json", controller=second) == 0
            assert key(0).hex() in capsys.readouterr().out
        until(lambda: "another one, c2." in (first.ready() or ""), "c1 knows that it does not lead")
        assert attached(first) == 0
        assert kvcast("pin", key(0).hex(), controller=first) == 2
        assert "c2." in capsys.readouterr().err
        assert attached(second) == 2
        assert nodes.call(lambda: all(agent.core.connected for agent in nodes.agents))


def test_a_leader_that_stops_in_order_hands_over_at_once(etcd: EtcdServer, tmp_path: Path) -> None:
    settings = by_etcd(etcd.address)
    with controllers(tmp_path, settings, settings) as (first, second), agents_of(first, second):
        first.stop()
        until(lambda: attached(second) == 2, "c2 has the agents")
        assert second.ready() == "ok"


def test_without_etcd_a_leader_serves_what_it_knows_and_starts_nothing(
    etcd: EtcdServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = by_etcd(etcd.address)
    with controllers(tmp_path, settings, settings) as (first, second), agents_of(first, second) as nodes:
        before = first.metric("leadership_lapses_total")  # a machine with much to do may have brought one about
        etcd.stand_still()
        until(lambda: "lease has run out" in (first.ready() or ""), "c1 is not ready")
        assert first.metric('leadership{standing="lapsed"}') == 1
        until(lambda: first.metric("leadership_lapses_total") > before, "it is counted")
        assert first.log().count("serves what it knows, and starts nothing") == before + 1
        assert first.health()["status"] == "degraded"
        assert kvcast("warm", "--prefix", key(0).hex(), controller=first) == 2
        assert kvcast("evict", key(0).hex(), "--hosts", "--yes", controller=first) == 2
        assert kvcast("expel", "n1", controller=first) == 2
        assert capsys.readouterr().err.count("lease has run out") == 3
        # What agents tell is still passed on.
        nodes.client(0).put(key(7), None, b"y" * 1000)
        nodes.until(lambda: nodes.agents[1].core.directory.find(key(7)) is not None)
        assert attached(first) == 2
        assert attached(second) == 0
        etcd.go_on()
        until(lambda: "ok" in (first.ready(), second.ready()), "one of both leads")
        until(lambda: attached(first) + attached(second) == 2, "it has the agents")


def test_what_operators_set_outlives_all_controllers_and_agents(
    etcd: EtcdServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = by_etcd(etcd.address)
    with controllers(tmp_path, settings) as (first,), agents_of(first):
        assert kvcast("drain", "n0", controller=first) == 0
        assert kvcast("expel", "n1", controller=first) == 0
        until(lambda: attached(first) == 1, "n1 is put out")
    assert "127.0.0.1: drain n0" in first.log()
    assert "127.0.0.1: expel n1" in first.log()
    later = tmp_path / "later"
    later.mkdir()
    capsys.readouterr()
    with controllers(later, settings) as (second,), cluster(0) as nodes:
        until(lambda: "1 nodes drained, 1 put out" in second.log(), "it has read what was set")
        nodes.add(controllers=[second.address])
        until(lambda: attached(second) == 1, "n0 is attached")
        assert kvcast("top", "--once", "--json", controller=second) == 0
        assert '"draining"' in capsys.readouterr().out
        assert kvcast("expel", controller=second) == 0
        assert "n1" in capsys.readouterr().out


def test_agents_leave_a_leader_that_is_cut_off_for_the_one_that_leads(etcd: EtcdServer, tmp_path: Path) -> None:
    with link_to(etcd.address) as link:
        settings = by_etcd(link.address), by_etcd(etcd.address)
        with controllers(tmp_path, *settings) as (first, second), agents_of(first, second):
            link.cut()
            until(lambda: attached(second) == 2, "c2 has the agents")
            assert "lease has run out" in (first.ready() or "")
            link.mend()
            until(lambda: "another one, c2." in (first.ready() or ""), "c1 hears who leads")


@contextlib.contextmanager
def programmed_switch() -> Iterator[dict[str, Any]]:
    defines = {"SLOTS": "64", "SEGMENT_BYTES": "256", "INTEREST": "256", "HEAT_CELLS": "256"}
    with memory_switch(P4 / "v1model" / "kvcast.p4", ports=2, defines=defines, flood_group=1) as switch:
        yield {"switch": {"target": "p4switch", "address": switch.address, "reconnect_ms": 100}}


@STILL_S
def test_the_switch_replaces_a_primary_that_stands_still_and_takes_none_of_its_writes(
    tmp_path: Path, still_s: float
) -> None:
    with (
        programmed_switch() as settings,
        controllers(tmp_path, settings, settings) as (first, second),
        agents_of(first, second),
    ):
        with standing_still(first, second, still_s):
            pass
        until(lambda: "on standby" in (first.ready() or ""), "c1 knows that it does not lead")
        assert (second.ready(), attached(second)) == ("ok", 2)


def test_with_a_lease_the_switch_takes_writes_under_its_epoch_only(etcd: EtcdServer, tmp_path: Path) -> None:
    with programmed_switch() as switch:
        settings = {**switch, **by_etcd(etcd.address)}
        with controllers(tmp_path, settings, settings) as (first, second), agents_of(first, second):
            with standing_still(first, second, 0):
                pass
            until(lambda: "another one, c2." in (first.ready() or ""), "c1 knows that it does not lead")
            assert (second.ready(), attached(second)) == ("ok", 2)
