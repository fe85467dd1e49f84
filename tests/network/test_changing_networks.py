"""Networks that change under a running cluster, and one without IPv4: no kvcast switch, three nodes on one bridge."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.processes import python_module
from tests.e2e.test_own_network import Place, started
from tests.waiting import until

pytestmark = [
    pytest.mark.network,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]

NODES = (1, 2, 3)
CONTROLLER = "192.168.78.9:4800"


@dataclass
class Cluster:
    middle: Place
    nodes: dict[int, Place]
    folder: Path
    shape: tuple[str, ...] = ()
    """Of prefixes: chunks, and bytes of each."""

    def put(self, node: int, model: str) -> None:
        """A prefix that no test before has; returns when the others can know it."""
        done = self._work(node, "put", model)
        assert done.returncode == 0, done.stderr
        until(lambda: self.fetch(node, model)[0] == self.count, "the holder to have it")

    @property
    def count(self) -> str:
        """Chunks of a prefix."""
        return self.shape[0] if self.shape else "4"

    def fetch(self, node: int, model: str) -> tuple[str, str, float]:
        """(chunks, outcome, seconds)."""
        done = self._work(node, "fetch", model)
        assert done.returncode == 0, done.stderr
        count, outcome, took_s = done.stdout.split()
        return count, outcome, float(took_s)

    def fetches(self, node: int, model: str) -> None:
        """Once the directory knows it, and the path is there."""
        until(
            lambda: self.fetch(node, model)[:2] == (self.count, "OK"),
            lambda: f"n{node} to fetch {model}: {self.logs()}",
        )

    def fetch_at_once(self, nodes: Sequence[int], model: str) -> list[tuple[str, str]]:
        """(chunks, outcome) of each."""
        with ThreadPoolExecutor(len(nodes)) as threads:
            return [found[:2] for found in threads.map(lambda node: self.fetch(node, model), nodes)]

    def _work(self, node: int, what: str, model: str) -> subprocess.CompletedProcess[str]:
        path = str(self.folder / f"n{node}.sock")
        return self.nodes[node].run(*python_module("tests.network.work", what, path, model, *self.shape))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def logs(self) -> str:
        return "\n".join(self.log(f"n{node}")[-1500:] for node in NODES) + self.log("controller")[-1500:]

    def states(self) -> dict[str, str]:
        """Of the nodes, as `kvcast top` shows them."""
        return {one["name"]: one["state"] for one in self._status()["nodes"]}

    def way(self) -> str:
        """How casts go, and why."""
        switch = self._status()["switch"]
        return f"{switch['fanout']}: {switch['fanout_why']}"

    def _status(self) -> Any:
        shown = self.middle.run(*python_module("kvcast.cli", "top", "--once", "--json", "--controller", CONTROLLER))
        return json.loads(shown.stdout)["status"]


@contextlib.contextmanager
def cluster(
    folder: Path, address: str, *rails: str, shape: tuple[str, ...] = (), fanout: str = "switch"
) -> Iterator[Cluster]:
    """`address`: of a node on the data network, with {} for its number; `rails`: the same of further rails."""
    networks = {"data": ("data0", address), "mgmt": ("mgmt0", "192.168.78.{}/24")}
    networks |= {f"rail{k}_": (f"data{k}", one) for k, one in enumerate(rails, 1)}
    interfaces = ", ".join(far for far, _ in networks.values() if far != "mgmt0")
    with contextlib.ExitStack() as stack:

        def place(name: str) -> Place:
            made = Place(f"kv{os.getpid()}{name}")
            subprocess.run(["ip", "netns", "add", made.name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "delete", made.name], check=False)
            made.ip("link", "set", "lo", "up")
            return made

        middle, nodes = place("c"), {node: place(f"c{node}") for node in NODES}
        for bridge in networks:
            middle.ip("link", "add", bridge, "type", "bridge")
            middle.ip("link", "set", bridge, "up")
        middle.ip("address", "add", "192.168.78.9/24", "dev", "mgmt")
        for node, there in nodes.items():
            for bridge, (far, form) in networks.items():
                own = form.format(node)
                here = f"{bridge}{node}"
                middle.ip("link", "add", here, "type", "veth", "peer", "name", far, "netns", there.name)
                middle.ip("link", "set", here, "master", bridge, "up")
                there.ip("address", "add", own, "dev", far, *(["nodad"] if ":" in own else []))
                there.ip("link", "set", far, "up")
        made = Cluster(middle, nodes, folder, shape)
        (folder / "controller.yaml").write_text(
            f"{{listen: '{CONTROLLER}', insecure: true, ready_file: {folder}/controller.ready,"
            f" fabric: {{fanout: {fanout}}}}}"
        )
        run = python_module("controlplane", "--config", str(folder / "controller.yaml"))
        started(stack, middle, folder / "controller.ready", folder / "controller.log", run)
        for node, there in nodes.items():
            config = folder / f"n{node}.yaml"
            config.write_text(
                f"{{node: n{node}, insecure: true, pool: {{size: 64MiB}},"
                f" data: {{interfaces: [{interfaces}], transport: sockets}},"
                f" controller: {{address: '{CONTROLLER}'}}, api: {{socket: {folder}/n{node}.sock}},"
                f" ready_file: {folder}/n{node}.ready}}"
            )
            run = python_module("hostagent", "--config", str(config))
            started(stack, there, folder / f"n{node}.ready", folder / f"n{node}.log", run)
        yield made


def test_a_changing_network_is_followed(tmp_path: Path) -> None:
    with cluster(tmp_path, "192.168.77.{}/24") as made:
        made.put(3, "a")
        made.fetches(1, "a")
        holder = made.nodes[3]
        # Another address; then the interface is made anew, with that one.
        holder.ip("address", "add", "192.168.77.33/24", "dev", "data0")
        holder.ip("address", "delete", "192.168.77.3/24", "dev", "data0")
        holder.ip("address", "replace", "192.168.77.33/24", "dev", "data0")
        made.fetches(2, "a")
        until(lambda: "the data address is 192.168.77.33 on data0, no longer 192.168.77.3" in made.log("n3"), made.logs)
        holder.ip("link", "delete", "data0")
        until(lambda: "the data network is lost" in made.log("n3"), made.logs)
        middle = made.middle
        middle.ip("link", "add", "data3", "type", "veth", "peer", "name", "data0", "netns", holder.name)
        middle.ip("link", "set", "data3", "master", "data", "up")
        holder.ip("address", "add", "192.168.77.33/24", "dev", "data0")
        holder.ip("link", "set", "data0", "up")
        until(lambda: "data0 was made anew: sockets are bound to it again" in made.log("n3"), made.logs)
        made.put(3, "b")
        made.fetches(1, "b")


def test_a_dead_link_of_the_only_holder(tmp_path: Path) -> None:
    with cluster(tmp_path, "192.168.77.{}/24") as made:
        made.put(3, "a")
        made.put(3, "b")
        made.fetches(2, "a")
        until(lambda: set(made.states().values()) == {"attached"}, made.logs)
        # The carrier stays: only the bridge forwards nothing any more.
        made.middle.ip("link", "set", "data3", "nomaster")
        for node in (1, 2):
            until(lambda node=node: made.fetch(node, "b")[1] == "UNAVAILABLE", made.logs)
            count, outcome, took_s = made.fetch(node, "b")
            assert (count, outcome) == ("0", "UNAVAILABLE")
            assert took_s < 10, "of a deadline of 30 s"
        until(lambda: made.states() == {"n1": "attached", "n2": "attached", "n3": "unreached"}, made.logs)
        made.middle.ip("link", "set", "data3", "master", "data")
        for node in (1, 2):
            made.fetches(node, "b")
        until(lambda: set(made.states().values()) == {"attached"}, made.logs)


def test_two_rails_of_which_each_fails(tmp_path: Path) -> None:
    rails = "192.168.77.{}/24", "192.168.79.{}/24"
    with cluster(tmp_path, *rails, shape=("16", "1048576")) as made:
        holder = made.nodes[3]
        made.put(3, "a")
        before = [holder.sent_bytes(f"data{rail}") for rail in (0, 1)]
        made.fetches(1, "a")
        sent = [holder.sent_bytes(f"data{rail}") - was for rail, was in zip((0, 1), before, strict=True)]
        assert min(sent) > 1 << 20, sent
        # The carrier stays: only the bridge forwards nothing any more.
        for model, port, bridge in (("b", "rail1_3", "rail1_"), ("c", "data3", "data")):
            made.put(3, model)
            made.fetches(1, model)  # the directory knows it
            made.middle.ip("link", "set", port, "nomaster")
            made.fetches(2, model)
            made.middle.ip("link", "set", port, "master", bridge)
            until(lambda: made.log("n2").count("is read at") == made.log("n2").count("nothing comes from"), made.logs)
        assert "nothing comes from" in made.log("n2")
        assert set(made.states().values()) == {"attached"}


def test_casts_by_two_rails_of_which_each_fails(tmp_path: Path) -> None:
    """Two readers at once: each byte leaves about once, on either rail, whatever fails."""
    rails = "192.168.77.{}/24", "192.168.79.{}/24"
    with cluster(tmp_path, *rails, shape=("16", "1048576"), fanout="multicast") as made:
        holder = made.nodes[3]
        for port in ("data", "rail1_"):
            for node, there in made.nodes.items():
                made.middle.ip("link", "set", f"{port}{node}", "mtu", "9000")
                there.ip("link", "set", "data0" if port == "data" else "data1", "mtu", "9000")
        for model, port, bridge in (("a", "", ""), ("b", "rail1_3", "rail1_"), ("c", "data3", "data")):
            made.put(3, model)
            before = [holder.sent_bytes(f"data{rail}") for rail in (0, 1)]
            if port:
                made.middle.ip("link", "set", port, "nomaster")  # the carrier stays
            # Until the directory knows it.
            until(lambda model=model: made.fetch_at_once((1, 2), model) == [("16", "OK")] * 2, made.logs)
            sent = [holder.sent_bytes(f"data{rail}") - was for rail, was in zip((0, 1), before, strict=True)]
            if port:
                made.middle.ip("link", "set", port, "master", bridge)
            else:
                assert min(sent) > 4 << 20, sent
        assert set(made.states().values()) == {"attached"}


def test_a_data_network_without_ipv4(tmp_path: Path) -> None:
    with cluster(tmp_path, "fd77::{}/64") as made:
        made.put(3, "a")
        for node in (1, 2):
            made.fetches(node, "a")
        assert made.log("n3").count("no IPv4 on the data network: no casts, all chunks are read at fd77::3") == 1
        holder = made.nodes[3]
        holder.ip("address", "add", "fd77::33/64", "dev", "data0", "nodad")
        holder.ip("address", "delete", "fd77::3/64", "dev", "data0")
        made.put(3, "b")
        made.fetches(1, "b")


def test_what_a_network_does_with_groups_is_found(tmp_path: Path) -> None:
    """Ports take no large datagrams; then a bridge floods groups until it snoops and hears a querier, and carries them
    to members alone."""
    with cluster(tmp_path, "192.168.77.{}/24", fanout="auto") as made:
        cut = "relay: datagrams as large as a segment to groups do not reach n1, n3: MTU 9000 on all ports"
        until(lambda: made.way() == cut, lambda: made.way() + made.logs())
        for node, there in made.nodes.items():
            made.middle.ip("link", "set", f"data{node}", "mtu", "9000")
            there.ip("link", "set", "data0", "mtu", "9000")
        floods = "relay: what goes to a group comes to n2, too, unasked: is IGMP snooping off?"
        until(lambda: made.way() == floods, lambda: made.way() + made.logs())
        made.put(3, "a")
        made.fetches(1, "a")
        made.middle.ip("address", "add", "192.168.77.254/24", "dev", "data")
        asks = ("mcast_query_use_ifaddr", "1", "mcast_query_response_interval", "100", "mcast_querier", "1")
        made.middle.ip("link", "set", "data", "type", "bridge", *asks)
        until(lambda: made.way() == "multicast: groups reach their members, and none of 1 others", made.logs)
        made.put(3, "b")
        made.fetches(1, "b")
        assert "casts go by multicast from now on" in made.log("controller")
