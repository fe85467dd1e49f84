"""A soak on a real testbed: engines at work, and everything else going wrong, one thing after the other."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Final

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import NO_FAULTS, Faults, TestbedSpec, host_name
from tests.leftovers import leftovers
from tests.soak.crew import ATTACK_SPARE_S, ENGINES, LOADERS, PROBE, Crew
from tests.soak.load import DEADLINE_S, Clock
from tests.soak.plan import (
    HONEST,
    HOSTS,
    MEMBER,
    RESTARTS,
    STRANGER,
    TURN_S,
    TURNS_SHARE,
    Trouble,
    Turn,
    troubles,
    turns,
)
from tests.soak.report import (
    Note,
    Report,
    Size,
    TurnTaken,
    compare_sizes,
    cpu_by_kind,
    made,
    take_leftovers,
    take_turns,
)

MIB: Final = 1 << 20
_HURT: Final = {
    "loss": Faults(loss=0.03),
    "duplicate": Faults(duplicate=0.1),
    "reorder": Faults(reorder=0.1),
    "corrupt": Faults(corrupt=0.03),
}
SILENT_OPENED_S: Final = 4.0
"""Connections to each port in a second, throughout: 44 to all of them, four times what once shut everybody out."""
WARM_S: Final = 6.0
"""Before the first trouble: what daemons allocate once is not growth."""
Say = Callable[[str], None]


def spec(seed: int) -> TestbedSpec:
    """Six hosts at 200 Mbit/s. Pools and switch hold a part of what is fetched: they are full and evict all the time;
    disks take 2 MiB a second and are behind all the time."""
    return TestbedSpec(
        hosts=HOSTS,
        rate_bit_s=200_000_000,
        seed=seed,
        pool_bytes=8 * MIB,
        disk_bytes=64 * MIB,
        slots=1024,
        agent_settings={"disk": {"write_rate": "2MiB"}},
        controller_settings={"membership": {"member_grace_ms": 3000}},
    )


class Soak:
    """One soak; `testbed` is running."""

    def __init__(self, testbed: Testbed, seed: int, duration_s: float, say: Say) -> None:
        self._testbed, self._seed, self._duration_s, self._say = testbed, seed, duration_s, say
        self._clock = Clock(time.monotonic(), seed, HONEST)
        self._crew = Crew(testbed, self._clock)
        self._notes: list[Note] = []
        self._looks = 0

    def run(self, moved: Callable[[float], None]) -> Report:
        """Until the time is over and all is calm again. Raises TestbedError where a daemon does not come back."""
        self._make_stranger()
        before = self._sizes()
        began_s = time.monotonic()
        troubles_s = self._duration_s * (1 - TURNS_SHARE)
        with self._crew.at_work():
            time.sleep(WARM_S)
            warm = self._sizes()
            with self._crew.silence(SILENT_OPENED_S):
                for trouble in troubles(self._seed, troubles_s):
                    passed_s = time.monotonic() - began_s
                    if passed_s >= WARM_S + troubles_s:
                        break
                    self._say(f"{trouble.name} ({host_name(trouble.host)})")
                    moved(passed_s / (WARM_S + self._duration_s))
                    self._suffer(trouble)
                    time.sleep(trouble.calm_s)
                self._say("what operators see")
                shown = self._crew.looks()
            self._crew.stop(LOADERS)
            taken = [self._take_turn(turn) for turn in turns(self._seed, self._duration_s)]
            self._say("all is calm")
            ended_s = self._crew.stop((*ENGINES, PROBE))
        lines = self._crew.lines()
        report = made(lines, self._notes, ended_s)
        report.shown = shown
        report.silent = {what: dict(ports) for what, ports in self._crew.silent.items()}
        take_turns(report, taken, lines)
        # What liars joined stays in the switch until it expires, as what the dead joined.
        take_leftovers(report, leftovers(self._testbed, [MEMBER, STRANGER], patience_s=20.0))
        after = self._sizes()
        # Memory since the load began, descriptors since before it.
        begun = {
            name: Size(size.pid, size.rss_bytes, before[name].fds) for name, size in warm.items() if name in before
        }
        compare_sizes(report, begun, after)
        return report

    # ------------------------------------------------------------------ troubles

    def _make_stranger(self) -> None:
        """Its agent ends; the controller takes its membership away."""
        self._testbed.kill(f"agent{STRANGER}", signal.SIGTERM)
        self._testbed.wait(f"agent{STRANGER}", DEADLINE_S)

    def _suffer(self, trouble: Trouble) -> None:
        began_s = time.monotonic()
        self._what_happens(trouble)
        ended_s = time.monotonic()
        self._testbed.await_cluster()
        self._notes.append(Note(trouble.name, trouble.kind, trouble.host, began_s, ended_s, time.monotonic()))

    def _what_happens(self, trouble: Trouble) -> None:
        match trouble.kind:
            case "agent killed":
                self._killed(f"agent{trouble.host}", trouble.lasts_s)
            case "agent restarted":
                self._restarted(f"agent{trouble.host}", RESTARTS[trouble.detail])
            case "agent frozen":
                self._frozen(f"agent{trouble.host}", trouble.lasts_s)
            case "controller killed":
                self._killed("controller", trouble.lasts_s)
            case "controller frozen":
                self._frozen("controller", trouble.lasts_s)
            case "switch killed":
                self._killed("switch", trouble.lasts_s)
            case "program reloaded":
                self._testbed.reload_program()
            case "link cut":
                self._link_cut(trouble)
            case "port hurt":
                self._port_hurt(trouble)
            case "prefix evicted":
                self._evicted(trouble)
            case "member sends" | "stranger sends":
                self._attacked(trouble)
            case other:
                raise ValueError(f"no such trouble: {other}")

    def _killed(self, name: str, lasts_s: float) -> None:
        self._testbed.kill(name)
        self._testbed.wait(name, DEADLINE_S)
        time.sleep(lasts_s)
        self._testbed.restart(name)
        self._testbed.await_ready(name)

    def _restarted(self, name: str, end: signal.Signals) -> None:
        """At once, and with the pool that it had."""
        self._testbed.kill(name, end)
        self._testbed.wait(name, DEADLINE_S)
        self._testbed.restart(name, with_kept=True)
        self._testbed.await_ready(name)
        if "is taken over" not in self._testbed.log(name):
            raise TestbedError(f"{name} did not take its pool over")

    def _frozen(self, name: str, lasts_s: float) -> None:
        self._testbed.kill(name, signal.SIGSTOP)
        time.sleep(lasts_s)
        self._testbed.kill(name, signal.SIGCONT)

    def _link_cut(self, trouble: Trouble) -> None:
        self._testbed.set_link(host_name(trouble.host), up=False)
        time.sleep(trouble.lasts_s)
        self._testbed.set_link(host_name(trouble.host), up=True)

    def _port_hurt(self, trouble: Trouble) -> None:
        self._testbed.set_faults(_HURT[trouble.detail])
        time.sleep(trouble.lasts_s)
        self._testbed.set_faults(NO_FAULTS)

    def _evicted(self, trouble: Trouble) -> None:
        """An operator deletes a prefix that is being fetched, whoever has it."""
        self._crew.evict(self._clock.prefix(self._clock.epoch(time.monotonic()), trouble.host).chunk_keys()[0])

    def _take_turn(self, turn: Turn) -> TurnTaken:
        """Both liars at once, and those who say nothing; it begins when all of them have."""
        attackers = {f"attacker{host}": host for host in (MEMBER, STRANGER)}
        self._say(f"turn: {', '.join(turn.sent)}{', as harmless frames' if turn.harmless else ''}")
        words = ("--harmless",) if turn.harmless else ()
        for (name, host), kind in zip(attackers.items(), turn.sent, strict=True):
            self._crew.attack(name, host, kind, TURN_S + ATTACK_SPARE_S, *words)
        with self._crew.silence(SILENT_OPENED_S, harmless=turn.harmless):
            for name in attackers:
                self._testbed.await_ready(name)
            began_s, before = time.monotonic(), self._testbed.cpu_s()
            time.sleep(TURN_S)
            ended_s, after = time.monotonic(), self._testbed.cpu_s()
        for name in attackers:
            self._crew.end_attack(name)
        return TurnTaken(not turn.harmless, began_s, ended_s, sent=turn.sent, cpu_s=cpu_by_kind(before, after))

    def _attacked(self, trouble: Trouble) -> None:
        self._crew.attack("attacker", trouble.host, trouble.detail, trouble.lasts_s)
        outcome = self._testbed.finish("attacker", trouble.lasts_s + ATTACK_SPARE_S)
        if not int(outcome.stdout):
            raise TestbedError("an attacker sent nothing")

    # ------------------------------------------------------------------ looks

    def _sizes(self) -> dict[str, Size]:
        pids = {
            name: pid
            for name, pid in self._testbed.status()["pids"].items()
            if name.startswith(("agent", "controller", "switch"))
        }
        self._looks += 1
        name = f"sizes{self._looks}"
        words = [f"{one}={pid}" for one, pid in pids.items()]
        self._testbed.run(name, "switch", python_module("tests.soak.sizes", *words))
        found = json.loads(self._testbed.finish(name, DEADLINE_S * 3).stdout)
        return {one: Size(pids[one], *values) for one, values in found.items()}


def soak(seed: int, duration_s: float, say: Say, moved: Callable[[float], None]) -> Report:
    """A whole soak on a testbed of its own. Raises TestbedError where there can be none, or a daemon stays away."""
    say("starting switch, controller and agents")
    with client.running(spec(seed)) as testbed:
        return Soak(testbed, seed, duration_s, say).run(moved)
