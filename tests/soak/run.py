"""A soak on a real testbed: engines at work, and everything else going wrong, one thing after the other."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bmv2_testbed import client
from bmv2_testbed.bench.group import agent_socket
from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import CONTROLLER_PORT
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import CONTROLLER_MANAGEMENT_IP, NO_FAULTS, Faults, TestbedSpec, host_name
from tests.leftovers import leftovers
from tests.soak.load import DEADLINE_S, HUNG_S, LATE_S, Clock
from tests.soak.plan import HONEST, HOSTS, MEMBER, STRANGER, TURNS_SHARE, Trouble, Turn, troubles, turns
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
ATTACK_FRAMES_S: Final = 300.0
WARM_S: Final = 6.0
"""Before the first trouble: what daemons allocate once is not growth."""
_ATTACK_SPARE_S: Final = 90.0
"""What a busy machine may take to start and end an attacker."""
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
        self._notes: list[Note] = []
        self._inside: str = testbed.status()["directory"]
        self._looks = 0

    def run(self, moved: Callable[[float], None]) -> Report:
        """Until the time is over and all is calm again. Raises TestbedError where a daemon does not come back."""
        self._make_stranger()
        before = self._sizes()
        began_s = time.monotonic()
        until_s = began_s + WARM_S + self._duration_s
        with self._engines(until_s):
            time.sleep(WARM_S)
            warm = self._sizes()
            turns_s = self._duration_s * TURNS_SHARE
            for trouble in troubles(self._seed, self._duration_s - turns_s):
                if time.monotonic() >= until_s - turns_s:
                    break
                self._say(f"{trouble.name} ({host_name(trouble.host)})")
                moved(min(0.99, (time.monotonic() - began_s) / (until_s - began_s)))
                self._suffer(trouble)
                time.sleep(max(0.0, min(trouble.calm_s, until_s - turns_s - time.monotonic())))
            taken = [self._take_turn(turn) for turn in turns(self._seed, self._duration_s)]
            self._say("all is calm")
            ended_s = self._await_engines(until_s)
        lines = list(self._lines())
        report = made(lines, self._notes, ended_s)
        # On a busy machine the last ones may come after the engines' time.
        take_turns(report, [turn for turn in taken if turn.ended_s <= until_s], lines)
        # What liars joined stays in the switch until it expires, as what the dead joined.
        take_leftovers(report, leftovers(self._testbed, [MEMBER, STRANGER], patience_s=20.0))
        after = self._sizes()
        # Memory since the load began, descriptors since before it.
        begun = {
            name: Size(size.pid, size.rss_bytes, before[name].fds) for name, size in warm.items() if name in before
        }
        compare_sizes(report, begun, after)
        return report

    # ------------------------------------------------------------------ engines

    @contextmanager
    def _engines(self, until_s: float) -> Iterator[None]:
        names = [f"engine{host}" for host in range(HONEST)]
        clock = ["--began", str(self._clock.began_s), "--seed", str(self._seed), "--hosts", str(HONEST)]
        for host, name in enumerate(names):
            out = f"{self._inside}/{name}.lines"
            words = ["--socket", agent_socket(self._testbed, host), "--out", out, "--host", str(host)]
            argv = python_module("tests.soak.worker", *words, *clock, "--until", str(until_s))
            self._testbed.run(name, host_name(host), argv)
        try:
            yield
        finally:
            running = self._testbed.status()["processes"]
            for name in names:
                if running.get(name, 0) is None:
                    self._testbed.kill(name)

    def _await_engines(self, until_s: float) -> float:
        """When the last of them had ended, or nobody waited for it any more."""
        give_up_s = until_s + DEADLINE_S + LATE_S + HUNG_S + 5.0
        for host in range(HONEST):
            outcome = self._testbed.wait(f"engine{host}", max(0.1, give_up_s - time.monotonic()))
            if outcome is not None and outcome.status != 0:
                raise TestbedError(f"engine{host} broke: {outcome.stderr[-2000:]}")
        return time.monotonic()

    def _lines(self) -> list[dict[str, Any]]:
        found = []
        for host in range(HONEST):
            path = self._testbed.directory / f"engine{host}.lines"
            whole = path.read_text().rpartition("\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
        return sorted(found, key=lambda line: float(line["at_s"]))

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
        key = self._clock.prefix(self._clock.epoch(time.monotonic()), trouble.host).chunk_keys()[0]
        controller = f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_PORT}"
        words = ("evict", key.hex(), "--hosts", "--yes", "--controller", controller)
        self._testbed.run("evict", "switch", python_module("kvcast.cli", *words))
        self._testbed.wait("evict", DEADLINE_S)
        self._testbed.forget("evict")

    def _take_turn(self, turn: Turn) -> TurnTaken:
        """Both liars at once."""
        hosts = dict(zip((MEMBER, STRANGER), turn.sent, strict=True))
        self._say(f"turn: {', '.join(turn.sent)}{', as harmless frames' if turn.harmless else ''}")
        words = ("--harmless",) if turn.harmless else ()
        for host, kind in hosts.items():
            self._attack(f"attacker{host}", Trouble("turn", host, turn.lasts_s, 0.0, kind), *words)
        began_s, before = time.monotonic(), self._testbed.cpu_s()
        time.sleep(turn.lasts_s)
        ended_s, after = time.monotonic(), self._testbed.cpu_s()
        for host in hosts:
            self._testbed.finish(f"attacker{host}", turn.lasts_s + _ATTACK_SPARE_S)
        return TurnTaken(not turn.harmless, began_s, ended_s, sent=turn.sent, cpu_s=cpu_by_kind(before, after))

    def _attacked(self, trouble: Trouble) -> None:
        self._attack("attacker", trouble)
        outcome = self._testbed.finish("attacker", trouble.lasts_s + _ATTACK_SPARE_S)
        if not int(outcome.stdout):
            raise TestbedError("an attacker sent nothing")

    def _attack(self, name: str, trouble: Trouble, *more: str) -> None:
        """Begin; it ends by itself."""
        clock = ["--began", str(self._clock.began_s), "--seed", str(self._seed), "--hosts", str(HONEST)]
        words = ["--kind", trouble.detail, "--seconds", str(trouble.lasts_s), "--rate", str(ATTACK_FRAMES_S)]
        words += ["--port", str(trouble.host + 1)]
        argv = python_module("tests.soak.attacker", *words, *clock, *more)
        self._testbed.run(name, host_name(trouble.host), argv)

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
