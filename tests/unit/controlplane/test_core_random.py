"""Whatever happens in whatever order: nothing leaks, and once everything is calm all pictures agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.events import Requested, StreamEnded
from controlplane.core.ids import SwitchPort
from controlplane.core.switch.entries import FillingEntry, ServingEntry
from controlplane.core.switch.target import Down, Operation
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import FABRIC, SECOND, Scene, key, record
from tests.unit.controlplane.test_core_switch import assert_consistent

NAMES = ["a", "b", "c", "d", "e"]
RECORDS = [record(name, NAMES[at - 1] if at else None, at, size=4096 * (3 + at)) for at, name in enumerate(NAMES)]
SLOTS = 16
"""Room for two or three of the five."""

steps = st.lists(
    st.one_of(
        st.tuples(st.just("heat"), st.sampled_from(NAMES), st.sampled_from([0b11, 0b110, 0b1])),
        st.tuples(st.just("fetch"), st.sampled_from(NAMES), st.integers(1, 3)),
        st.tuples(st.just("finish"), st.sampled_from([rpc.TaskResult.DONE, rpc.TaskResult.FAILED]), st.integers(0, 3)),
        st.tuples(st.just("announce"), st.sampled_from(NAMES), st.integers(1, 3)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.none(), st.integers(1, 3)),
        st.tuples(st.just("attach"), st.none(), st.integers(1, 3)),
        st.tuples(st.just("evict"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("pin"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("bad"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("reload"), st.none(), st.none()),
        st.tuples(st.just("serve"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("move"), st.integers(1, 4), st.integers(1, 3)),
        st.tuples(st.just("restart"), st.none(), st.booleans()),
        st.tuples(st.just("down"), st.none(), st.none()),
        st.tuples(st.just("up"), st.none(), st.none()),
        st.tuples(st.just("refuse"), st.sampled_from(list(Operation)), st.booleans()),
        st.tuples(st.just("wait"), st.none(), st.sampled_from([0.2, 1.5, 6.0])),
    ),
    max_size=40,
)


class Player:
    """Carries the steps out on a scene."""

    def __init__(self) -> None:
        self.scene = self.controller(1000)
        self.here = {1, 2, 3}
        for number in self.here:
            self.scene.attach(number, RECORDS if number == 1 else [])
        self.scene.up()
        self.finished: set[int] = set()

    def controller(self, incarnation: int) -> Scene:
        return Scene(
            SLOTS, incarnation=incarnation, check_switch_ns=SECOND, fill_timeout_ms=3000, transfer_timeout_ms=3000
        )

    def restart(self, agents_first: bool) -> None:
        """A new controller finds the switch and the agents of the one before, in either order."""
        old, self.scene = self.scene, self.controller(self.scene.core.options.incarnation + 1000)
        self.scene.switch, self.scene.now, self.scene.cabled = old.switch, old.now, old.cabled
        held = {number: self.held(old, number) for number in sorted(self.here)}
        state = old.core.operator_state.message()
        if old.connected and not agents_first:
            self.scene.up()
            self.scene.wait(0.2)
        for number, records in held.items():
            self.scene.attach(number, records, operator_state=state)
            self.scene.wait(0.2)
        if old.connected and agents_first:
            self.scene.up()

    def held(self, scene: Scene, number: int) -> list[rpc.ChunkRecord]:
        node = scene.core.nodes.named(f"n{number}")
        assert node is not None
        return [
            one
            for one in RECORDS
            if (chunk := scene.core.directory.get(one.key)) is not None and node.index in chunk.holders
        ]

    def play(self, what: str, one: object, two: object) -> None:
        scene = self.scene
        match what:
            case "heat":
                scene.heat(one, two)
            case "fetch" if two in self.here:
                fetch = rpc.FetchEvent(key=key(one), source=rpc.SOURCE_HOLDER, bytes=1)
                scene.say(two, usage=rpc.Usage(fetches=[fetch]))
            case "finish":
                self.finish(one, two)
            case "announce" if two in self.here:
                scene.announce(two, [RECORDS[NAMES.index(one)]])
            case "remove" if two in self.here:
                scene.announce(two, removed=[key(one)])
            case "leave" if two in self.here:
                self.here.discard(two)
                scene.handle(StreamEnded(two))
                scene.advance()
            case "attach" if two not in self.here:
                self.here.add(two)
                scene.attach(two)
            case "evict":
                scene.core.switch_cache.evict(key(one))
                scene.advance()
            case "pin" if key(one) in scene.core.directory:
                asked = rpc.PinRequest(key_hex=key(one).hex(), in_switch=True)
                if two:
                    scene.ask(Requested("pin", asked))
                else:
                    scene.ask(Requested("unpin", asked))
                scene.advance()
            case "bad" if self.here:
                report = rpc.BadCopy(key=key(one), expected=RECORDS[NAMES.index(one)].digest, from_switch=True)
                scene.say(min(self.here), bad_copy=report)
            case "reload":
                scene.switch.contents.clear()
            case "move":
                scene.cabled[f"n{two}"] = SwitchPort(one)
                scene.wait(0.1)
            case "serve":
                self.play("pin", one, True)
                for _ in NAMES:
                    self.finish(rpc.TaskResult.DONE, 0)
            case "restart":
                self.restart(bool(two))
            case "down" if scene.connected:
                scene.connected = False
                scene.handle(Down("gone"))
                scene.advance()
            case "up" if not scene.connected:
                scene.up()
            case "refuse":
                (scene.switch.refuse.add if two else scene.switch.refuse.discard)((one, "kv_cache"))
            case "wait":
                scene.wait(two)

    def finish(self, status: int, which: int) -> None:
        """An agent ends one of its tasks, or one that ended long ago."""
        given = [(session, task) for session in sorted(self.here) for task in self.scene.tasks(session)]
        if given:
            session, task = given[-1 - which % len(given)]
            if task.task not in self.finished or which == 3:
                self.finished.add(task.task)
                self.scene.finish(session, task, status)

    def calm_down(self) -> None:
        """Faults end; every task given is done."""
        self.scene.switch.refuse.clear()
        for number in self.here:
            self.scene.cabled[f"n{number}"] = SwitchPort(number)
        if not self.scene.connected:
            self.scene.up()
        for _ in range(6):
            self.scene.wait(6)
            for session in sorted(self.here):
                for task in self.scene.tasks(session):
                    if task.task not in self.finished:
                        self.finished.add(task.task)
                        self.scene.finish(session, task)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(steps)
def test_what_residents_are_worth_is_never_outdated(script: list[tuple[str, object, object]]) -> None:
    player = Player()
    for what, one, two in script:
        player.play(what, one, two)
        residents, directory = player.scene.core.switch_cache.residents, player.scene.core.directory
        now = player.scene.now
        residents.refresh(now)
        anew = residents.worked_out_anew(now)
        assert set(anew) == set(player.scene.core.switch_cache.chunks)
        for key_, resident in anew.items():
            kept = residents.layout.get(key_)
            assert kept is not None
            assert kept.value == pytest.approx(resident.value, rel=1e-6), (what, one, two, directory.get(key_))
            assert replace(kept, value=0.0) == replace(resident, value=0.0)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(steps)
def test_nothing_leaks_and_everything_agrees_in_the_end(script: list[tuple[str, object, object]]) -> None:
    player = Player()
    for what, one, two in script:
        player.play(what, one, two)
    player.calm_down()
    scene = player.scene
    assert_consistent(scene)
    assert len(scene.core.tasks) == 0
    assert not any(isinstance(entry, FillingEntry) for entry in scene.switch.contents.values())
    assert scene.switch.contents["fabric", None] == FABRIC.entry
    assert scene.switch.contents == scene.core.programmer.desired
    held = scene.core.switch_cache.slots.used_count
    assert held == sum(entry.segments for entry in scene.switch.contents.values() if isinstance(entry, ServingEntry))
    for node in scene.core.nodes:
        if node.attached:
            assert (node.seen_port, node.port, node.port_problem) == (
                node.facts.switch_port,
                node.facts.switch_port,
                "",
            )
    for session in player.here:
        served = {entry.key for entry in scene.replica(session).values() if entry.served}
        assert served == {one for one in scene.served() if scene.core.directory.get(one) is not None}
        for entry in scene.replica(session).values():
            assert entry.holders or entry.served
