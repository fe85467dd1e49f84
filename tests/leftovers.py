"""What must not be left behind when all fetches are over, whatever went wrong: in the switch, at the controller, at
agents. Reports each leftover in one line; waits a while for it to go, because agents and controller clean up when they
notice a fault.

Looks from beside the switch, where all of them can be reached: as a process of the testbed."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import finsy
from prometheus_client.parser import text_string_to_metric_families

from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import namespace_endpoints, tls_section
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.operator_calls import ControllerCalls
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import Target, agent_name, host_name
from controlplane.core.ids import Member, SwitchPort
from controlplane.core.switch.entries import (
    FLOOD_GROUP,
    FabricEntry,
    FillingEntry,
    GroupEntry,
    PortMemberEntry,
    ReplicateToGroupEntry,
    ReplicateToPortEntry,
    ServingEntry,
    SwitchContents,
)
from controlplane.core.switch.groups import ReplicationGroups
from controlplane.p4runtime.codec import V1ModelCodec, is_tofino
from controlplane.p4runtime.p4runtime_target import read_contents
from kvproto.ids import members_of
from kvproto.rpc import control_pb2

_INTEREST: Final = "interest_members"
_TOUCHED: Final = "interest_last_seen"
_ELECTION_ID: Final = 1
"""Below any controller's: the audit only looks and must never become primary in a controller's place."""
_POLL_S: Final = 0.05
_PROCESS: Final = "audit"
_CALL_S: Final = 180.0
"""To start, and to ask switch and controller once, on a machine that does ten other things."""
_ZERO: Final = {
    ("kvcast_agent_pool_pins", ""): "pins",
    ("kvcast_agent_pool_bytes", "filling"): "bytes of chunks that are being filled",
    ("kvcast_agent_led_chunks", ""): "chunks led",
    ("kvcast_agent_internal_errors_total", ""): "internal errors",
}
"""Metrics of an agent, with their label's value, that are 0 on an idle node."""


def agent_problems(name: str, metrics: str) -> list[str]:
    """What an idle agent's metrics should not show."""
    found = []
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            what = _ZERO.get((sample.name, next(iter(sample.labels.values()), "")))
            if what is not None and sample.value:
                found.append(f"{name}: {sample.value:.0f} {what}")
    return found


class InterestWatch:
    """Interest sets of a switch, looked at again and again. A set that nothing has touched for the switch's TTL is
    free: whoever is in it has left, and the LEAVE was lost. Pure."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._since_s: dict[int, tuple[int, float]] = {}
        """By index: when the set was last touched, as the switch's clock says, and since when it has looked so here."""

    def live(self, sets: Iterable[tuple[int, int, int]], now_s: float) -> list[int]:
        """Members (bits) of the sets that are in use, of (index, members, last touched)."""
        found = []
        for index, members, touched in sets:
            if self._since_s.get(index, (-1, 0.0))[0] != touched:
                self._since_s[index] = (touched, now_s)
            if members and now_s - self._since_s[index][1] <= self._ttl_s:
                found.append(members)
        return found


def interest_problems(interest: Iterable[int], dead: Collection[Member]) -> list[str]:
    """Members that are still in an interest set. The dead cannot leave: theirs end with the entry's expiry."""
    living = ~sum(1 << member for member in dead)
    counts: dict[Member, int] = {}
    for members in interest:
        for member in members_of(members & living):
            counts[member] = counts.get(member, 0) + 1
    return [f"switch: member {member} is in {count} interest sets" for member, count in sorted(counts.items())]


def contents_problems(contents: SwitchContents, status: control_pb2.SwitchView) -> list[str]:
    """Groups that nobody needs or that are missing, chunks half filled, slots that belong to nothing."""
    found = [f"switch: {key.hex()} is half filled" for key in _filling(contents)]
    served = [entry for entry in contents.values() if isinstance(entry, ServingEntry)]
    if len(served) != status.serving or status.filling:
        found.append(f"controller: {status.serving} chunks served, {status.filling} filling; switch: {len(served)}")
    slots_used = sum(entry.segments for entry in served)
    if status.slots_used != slots_used:
        found.append(f"controller: {status.slots_used} slots in use; the switch serves from {slots_used}")
    return found + group_problems(contents)


def _filling(contents: SwitchContents) -> list[bytes]:
    return [entry.key for entry in contents.values() if isinstance(entry, FillingEntry)]


def group_problems(contents: SwitchContents) -> list[str]:
    """Differences from the replication groups of exactly the members that the switch has."""
    ports: dict[Member, SwitchPort] = {
        entry.member: entry.port for entry in contents.values() if isinstance(entry, PortMemberEntry)
    }
    groups = ReplicationGroups()
    if len(ports) > 8:
        raise TestbedError("the audit knows which groups there should be for up to eight members")
    groups.set_members(ports)
    wanted = {entry.identity: entry for entry in groups.entries()}
    actual = {
        entry.identity: entry
        for entry in contents.values()
        if isinstance(entry, ReplicateToGroupEntry | ReplicateToPortEntry)
        or (isinstance(entry, GroupEntry) and entry.group != FLOOD_GROUP)
    }
    found = [f"switch: {kind} {which} is left over" for kind, which in sorted(actual.keys() - wanted.keys(), key=repr)]
    found += [f"switch: {kind} {which} is missing" for kind, which in sorted(wanted.keys() - actual.keys(), key=repr)]
    both = actual.keys() & wanted.keys()
    return found + [f"switch: {one} is {actual[one]}" for one in sorted(both, key=repr) if actual[one] != wanted[one]]


def leftovers(testbed: Testbed, dead: Sequence[int] = (), patience_s: float = 10.0) -> list[str]:
    """Leftovers after `patience_s` that should be gone once all fetches are over: pins, slots, groups, interest.

    `dead`: hosts whose agents died and were not started again. Returns early, with an empty list, once nothing is left.
    """
    spec, status = testbed.spec(), testbed.status()
    endpoints = namespace_endpoints(spec)
    has_switch = spec.target is not Target.BRIDGE and not spec.plain
    scene = Scene(
        p4runtime=endpoints.p4runtime if has_switch else None,
        controller=endpoints.controller,
        tls=tls_section(status["directory"], "operator") if spec.tls else None,
        agents={
            agent_name(host): http for host, http in endpoints.agent_http.items() if agent_name(host) in status["pids"]
        },
        dead=[host_name(host) for host in dead],
        patience_s=patience_s,
    )
    testbed.run(_PROCESS, "switch", python_module(__name__, json.dumps(asdict(scene))))
    found: list[str] = json.loads(testbed.finish(_PROCESS, patience_s + _CALL_S).stdout)
    return found


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to look at."""

    p4runtime: str | None
    """Address of the switch, if there is one of ours."""
    controller: str
    tls: Mapping[str, str] | None
    """Of an operator; None: the controller speaks plainly."""
    agents: Mapping[str, str]
    """Where those that run serve their metrics, by name."""
    dead: Sequence[str]
    """Nodes whose agents have died."""
    patience_s: float

    def look(self) -> list[str]:
        """The leftovers when patience ends, or an empty list once nothing is left."""
        with ControllerCalls(self.controller, self.tls) as calls:
            dead = [Member(node.member) for node in calls.status().nodes if node.name in self.dead]
            return asyncio.run(self._until_nothing_is_left(calls, dead))

    async def _until_nothing_is_left(self, calls: ControllerCalls, dead: Collection[Member]) -> list[str]:
        if self.p4runtime is None:
            return await self._look(None, calls, dead)
        options = finsy.SwitchOptions(initial_election_id=_ELECTION_ID)
        async with finsy.Switch("audit", self.p4runtime, options) as switch:
            if is_tofino(switch.p4info):
                raise TestbedError("the audit knows the groups and registers of v1model programs: use another target")
            return await self._look(switch, calls, dead)

    async def _look(self, switch: finsy.Switch | None, calls: ControllerCalls, dead: Collection[Member]) -> list[str]:
        watch: InterestWatch | None = None
        deadline_s = time.monotonic() + self.patience_s
        while True:
            found = [problem for name, http in self.agents.items() for problem in agent_problems(name, _metrics(http))]
            if switch is not None:
                contents = await read_contents(switch, V1ModelCodec())
                watch = watch or _watch(contents)
                found += contents_problems(contents, calls.status().switch_view)
                found += interest_problems(await _interest(switch, watch), dead)
            if not found or time.monotonic() > deadline_s:
                return found
            await asyncio.sleep(_POLL_S)


def _metrics(http: str) -> str:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=2) as answer:
        return answer.read().decode()


def _watch(contents: SwitchContents) -> InterestWatch:
    """With the TTL that the switch was programmed with."""
    ttl_us = max((one.interest_ttl_us for one in contents.values() if isinstance(one, FabricEntry)), default=0)
    return InterestWatch(ttl_us / 1e6)


async def _interest(switch: finsy.Switch, watch: InterestWatch) -> list[int]:
    """Members of the sets that are in use."""
    cells: dict[str, list[Any]] = {}
    for name in (_INTEREST, _TOUCHED):
        entities: Any = switch.read([finsy.P4RegisterEntry(name)])
        cells[name] = [int(one.data or 0) async for one in entities]
    sets = zip(range(len(cells[_INTEREST])), cells[_INTEREST], cells[_TOUCHED], strict=True)
    return watch.live(((index, members, touched) for index, members, touched in sets if members), time.monotonic())


if __name__ == "__main__":
    print(json.dumps(Scene(**json.loads(sys.argv[1])).look()))
