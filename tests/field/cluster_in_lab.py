"""A running cluster on the machines of a lab, as an operator has it: for tests of what comes after the first day."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.field.lab import Daemon, Lab, wait_until

CONTROLLERS = ("10.0.0.1:4800", "10.0.0.11:4800")
"""On sw, and, where there is a second one, on n1."""
PUT = """
import sys
from kvclient import AgentClient
from kvchunk.ids import KvIdentity, prefix_keys
keys = prefix_keys(KvIdentity(model="field"), range(256 * int(sys.argv[1])))
with AgentClient("/run/kvcast/agent.sock") as agent:
    parent = None
    for key in keys:
        agent.put(key, parent, key * 4096)
        parent = key
"""
FETCH = """
import sys
from kvclient import AgentClient
from kvchunk.ids import KvIdentity, prefix_keys
keys = prefix_keys(KvIdentity(model="field"), range(256 * int(sys.argv[1])))
with AgentClient("/run/kvcast/agent.sock") as agent:
    with agent.fetch(keys, deadline_s=20.0) as got:
        assert all(bytes(view) == key * 4096 for key, view in zip(keys, got.views)), "wrong bytes"
        print(got.count, got.outcome.name)
"""


@dataclass(slots=True)
class Cluster:
    """Switch, one or two controllers, agents on n1, n2, n3."""

    lab: Lab
    switch: Daemon
    controllers: list[Daemon]
    agents: dict[str, Daemon]

    def kvcast(self, words: str, machine: str = "sw") -> str:
        """What an operator's command says that must succeed."""
        return self.lab[machine].say(f"kvcast {words}")

    def json(self, words: str, machine: str = "sw") -> Any:
        """The same for --json."""
        status, said = self.lab[machine].run(f"kvcast {words} --json 2>/dev/null")
        assert status in (0, 1), said
        return json.loads(said)

    def wait_for_agents(self) -> None:
        """All are attached, and the switch is ready."""
        wait_until(self._is_whole, "all agents at a controller with its switch", self.lab.logs)

    def _is_whole(self) -> bool:
        status, said = self.lab["sw"].run("kvcast top --once --json 2>/dev/null")
        if status != 0:
            return False
        state = json.loads(said)["status"]
        attached = [node for node in state["nodes"] if node["state"] in ("attached", "draining")]
        return state["switch"]["state"] == "ready" and len(attached) == len(self.agents)


def cluster_in(lab: Lab, data: Callable[[int], str], controllers: Sequence[str] = CONTROLLERS[:1]) -> Cluster:
    """Start everything. `data(number)`: address and prefix of a host's data interface."""
    ports = ""
    for number in (1, 2, 3):
        lab["sw"].say(f"ip link set eth{number} mtu 9000 up")
        lab[f"n{number}"].say(f"ip addr add {data(number)} dev eth1 && ip link set eth1 mtu 9000 up")
        ports += f" -i {number}@eth{number}"
    for machine in lab.machines.values():
        machine.environment["KVCAST_CONTROLLER"] = ",".join(controllers)
    switch = lab["sw"].start(f"kvcast switch{ports} --grpc 10.0.0.1:9559 --insecure", "listening on")
    started = []
    for machine, address in zip(("sw", "n1"), controllers, strict=False):
        election = 10 - len(started)
        (lab[machine].home / "controller.yaml").write_text(
            f"listen: {address}\ninsecure: true\n"
            f"switch: {{target: p4switch, address: '10.0.0.1:9559', election_id: {election}}}\n"
        )
        started.append(lab[machine].start("kvcast-controller --config controller.yaml", "ready"))
    agents = {}
    for number in (1, 2, 3):
        machine = lab[f"n{number}"]
        (machine.home / "agent.yaml").write_text(
            "insecure: true\ndata: {interface: eth1}\npool: {size: 256MiB}\n"
            f"controller: {{address: [{', '.join(map(repr, controllers))}]}}\n"
        )
        agents[machine.name] = machine.start("kvcast-agent --config agent.yaml", "")
        for name, text in (("put.py", PUT), ("fetch.py", FETCH)):
            (machine.home / name).write_text(text)
    for agent in agents.values():
        agent.wait_for("ready")
    made = Cluster(lab, switch, started, agents)
    made.wait_for_agents()
    return made
