"""A controller dies, another one takes over: nothing that an operator set is lost."""

from __future__ import annotations

import pytest

from controlplane.core.events import HelloReceived, Requested, StreamEnded
from controlplane.core.operator_state import OperatorState
from hostagent.controller.convert import message_of
from hostagent.core.effects import ReportUsage
from kvpolicy.value import FetchTally
from kvproto.rpc import control_pb2 as rpc
from tests.contracts.switch_target.memory_target import MemorySwitch
from tests.unit.controlplane.fake_agent import agents
from tests.unit.controlplane.helpers import SECOND, Scene, hello, key, record
from tests.unit.controlplane.test_daemon import PREFIX, controller, operator, run


def test_drains_and_pins_into_the_switch_survive_the_leader() -> None:
    async def steps() -> None:
        switch, later = MemorySwitch(), MemorySwitch()
        async with (
            controller(switch) as old,
            agents(old.grpc_address, PREFIX, [], []) as (holder, other, _),
            operator(old.grpc_address) as ask,
        ):
            await other.until(lambda: other.switch.present and len(other.entries) == 3, "everything")
            await ask.Pin(rpc.PinRequest(key_hex=key("b").hex(), in_switch=True))
            async for _progress in ask.Drain(rpc.DrainRequest(node="n3")):
                pass
            await holder.until(lambda: holder.operator_state.revision == 2, "the operators' state")
            kept = other.operator_state
        async with (
            controller(later) as new,
            agents(new.grpc_address, PREFIX, [], [], operator_state=kept) as (_, _, third),
            operator(new.grpc_address) as ask,
        ):
            await third.until(lambda: third.node_named("n3").draining, "the drain")
            await third.until(
                lambda: {k for k, one in third.entries.items() if one.served} == {key("a"), key("b")}, "pins"
            )
            await ask.Unpin(rpc.PinRequest(key_hex=key("b").hex()))
            await third.until(lambda: third.operator_state.revision == 3, "news")
            assert list(third.operator_state.drained) == ["n3"]
            assert not third.operator_state.switch_pins

    run(steps())


def state(revision: int, drained: str = "", *pins: str) -> rpc.OperatorState:
    return rpc.OperatorState(revision=revision, drained=drained.split(), switch_pins=map(key, pins))


def test_the_highest_revision_counts_and_what_is_said_here_stands_above_it() -> None:
    here = OperatorState()
    assert here.take_repeated(state(4, "a b", "x"))
    assert not here.take_repeated(state(3, "c"))
    assert here.drained == {"a", "b"}
    here.set_drained("b", False)
    here.set_switch_pins([key("y")], True)
    assert here.revision == 6
    assert here.take_repeated(state(9, "b d", "z"))
    assert here.drained == {"d"}, "it was taken back here"
    assert here.switch_pins == {key("y"), key("z")}
    assert here.revision == 10
    assert not here.take_repeated(here.message())


@pytest.mark.parametrize("bad", [state(1 << 63), rpc.OperatorState(revision=1, switch_pins=[b"short"])])
def test_a_state_that_makes_no_sense_is_refused(bad: rpc.OperatorState) -> None:
    scene = Scene()
    greeting = hello(1)
    greeting.operator_state.CopyFrom(bad)
    scene.handle(HelloReceived(1, greeting))
    scene.advance()
    assert scene.closed[1].code == "INVALID_ARGUMENT"
    assert "operator_state" in scene.closed[1].reason


def test_a_node_that_was_drained_and_forgotten_is_drained_when_it_comes_back() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1, [record("a")])
    scene.attach(2)
    scene.ask(Requested("drain", rpc.DrainRequest(node="n1")))
    scene.advance()
    scene.handle(StreamEnded(1))
    scene.wait(120)
    assert scene.core.nodes.named("n1") is None
    scene.attach(1)
    node = scene.core.nodes.named("n1")
    assert node is not None
    assert node.draining


def test_what_was_fetched_survives_the_leader() -> None:
    """Three nodes fetch a chunk again and again, another one hardly ever; then they tell somebody new."""
    old, new = Scene(with_switch=False), Scene(with_switch=False, incarnation=2000)
    tallies = {node: FetchTally(100) for node in (1, 2, 3)}
    for scene in (old, new):
        for node in tallies:
            scene.attach(node, [record("hot"), record("cold"), record("never")])
    for _ in range(10):
        old.wait(4)
        for node, tally in tallies.items():
            names = ["hot", "cold"] if node == 1 and len(tally) < 2 else ["hot"]
            fetches = [rpc.FetchEvent(key=key(name), source=rpc.SOURCE_HOLDER, bytes=10) for name in names]
            old.say(node, usage=rpc.Usage(fetches=fetches))
            for name in names:
                tally.fetched(key(name), old.now)
    new.now = old.now + 10 * SECOND
    for node, tally in tallies.items():
        past = tuple(tally.past(new.now))
        new.say(node, usage=message_of(ReportUsage((), (), (), new.now, past)).usage)
    rates = [scene.core.values.cache.rate(key("hot"), new.now) for scene in (old, new)]
    assert rates[1] == pytest.approx(rates[0], rel=0.1)
    assert rates[1] > 10 * new.core.values.cache.rate(key("cold"), new.now) > 0
    assert new.replica(1)[key("hot")].value > new.replica(1)[key("cold")].value > new.replica(1)[key("never")].value
    assert new.core.values.cache.touched_again(key("hot"), new.now)
    assert not new.core.accounting.fetched_chunks, "they are no fetches of this controller's time"
