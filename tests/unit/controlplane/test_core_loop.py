"""The core's one entry: what `handle` returns, and when it wants the timer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from controlplane.core.effects import Answer, RequestRefused, SendTo
from controlplane.core.events import MessageReceived, Requested, TimerFired
from controlplane.core.operations import OperatorError
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import MILLISECOND, SECOND, Scene, key, record

CONTROLPLANE = Path(__file__).resolve().parents[3] / "controlplane"
ARGUMENTS_MAX = 7


def scene() -> Scene:
    """Changes wait 5 ms, and the core looks every 50 ms."""
    made = Scene(with_switch=False, publish_ns=5 * MILLISECOND, look_ns=50 * MILLISECOND)
    for number in (1, 2):
        made.attach(number)
    made.now += SECOND
    made.handle(TimerFired())
    return made


def deltas(effects: list[object]) -> list[rpc.DirectoryDelta]:
    messages = [effect.message for effect in effects if isinstance(effect, SendTo)]
    return [message.directory for message in messages if message.WhichOneof("message") == "directory"]


def test_changes_that_come_together_are_published_together() -> None:
    made = scene()
    began = made.now
    for name in ("a", "b"):
        announce = rpc.Announce(added=[record(name)])
        effects = made.handle(MessageReceived(1, rpc.FromAgent(announce=announce)))
        assert deltas(list(effects)) == []
        assert made.core.next_timeout_ns() == began + 5 * MILLISECOND, "the first change says when"
        made.now += MILLISECOND
    assert made.handle(TimerFired()) == [], "it is not time yet"
    made.now = made.core.next_timeout_ns()
    found = deltas(list(made.handle(TimerFired())))
    assert [{entry.key for entry in delta.chunks} for delta in found] == [{key("a"), key("b")}] * 2
    assert made.core.next_timeout_ns() > made.now, "nothing waits any more"


def test_where_nothing_happens_the_core_looks_now_and_then() -> None:
    made = scene()
    assert made.core.next_timeout_ns() == made.now + 50 * MILLISECOND
    made.now += 50 * MILLISECOND
    made.handle(TimerFired())
    assert made.core.next_timeout_ns() == made.now + 50 * MILLISECOND


def test_an_operator_gets_one_answer_or_one_refusal() -> None:
    made = scene()
    made.announce(1, [record("a")])
    wanted = Requested("pin", rpc.PinRequest(key_hex=key("a").hex()))
    answers = [effect for effect in made.handle(wanted) if isinstance(effect, Answer | RequestRefused)]
    assert answers == [Answer(rpc.PinReply(chunks=1, bytes=record("a").size_bytes))]
    unknown = Requested("warm", rpc.WarmRequest(key_hex=key("z").hex()))
    refusals = [effect for effect in made.handle(unknown) if isinstance(effect, Answer | RequestRefused)]
    assert [type(one) for one in refusals] == [RequestRefused]
    with pytest.raises(OperatorError):
        made.ask(unknown)


def test_no_part_of_the_controller_needs_more_arguments_than_a_person_can_hold_in_mind() -> None:
    too_many = {
        f"{path.name}: {part.name}": count
        for path in CONTROLPLANE.rglob("*.py")
        for part in ast.walk(ast.parse(path.read_text()))
        if isinstance(part, ast.ClassDef)
        for made in part.body
        if isinstance(made, ast.FunctionDef) and made.name == "__init__"
        if (count := len(made.args.args) + len(made.args.kwonlyargs) - 1) > ARGUMENTS_MAX
    }
    assert too_many == {}
