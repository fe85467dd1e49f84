"""What no agent should send: the running controller refuses it by name and goes on with everybody else."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from controlplane.core.directory import AddOutcome, Directory
from controlplane.core.events import HelloReceived
from controlplane.core.ids import NodeIndex, SwitchPort
from controlplane.core.limits import CHUNK_BYTES_MAX, SWITCH_PORT_MAX
from controlplane.core.switch.entries import AddressEntry
from controlplane.core.switch.target import Operation, Up, Update
from controlplane.p4runtime.codec import V1ModelCodec
from controlplane.p4runtime.p4runtime_target import P4RuntimeOptions, P4RuntimeTarget
from kvproto.rpc import control_pb2 as rpc
from tests.contracts.switch_target.memory_target import MemorySwitch
from tests.unit.controlplane.fake_agent import FakeAgent, agents
from tests.unit.controlplane.helpers import Scene, facts, hello, key, record
from tests.unit.controlplane.test_daemon import PREFIX, controller, operator, run
from tests.unit.controlplane.test_with_p4switch import V1MODEL, running

A, B = NodeIndex(0), NodeIndex(1)


@pytest.mark.parametrize("port", [SWITCH_PORT_MAX + 1, 2**32 - 1])
def test_a_port_that_no_switch_has_is_refused_and_the_controller_goes_on(port: int) -> None:
    async def steps() -> None:
        async with controller(MemorySwitch()) as one, agents(one.grpc_address, PREFIX) as (watcher,):
            async with FakeAgent(one.grpc_address, 2, switch_port=port) as bad:
                await bad.ended.wait()
                assert bad.error is not None
                assert bad.error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert f"switch_port {port} is not in 1..510" in (bad.error.details() or "")
            async with FakeAgent(one.grpc_address, 3) as good:
                await good.attached()
                await good.until(lambda: good.holders(key("c")) == {"n1"}, "the directory")
            assert not watcher.ended.is_set()
            assert not one.failed.is_set()

    run(steps())


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "n" * 100_000},
        {"version": "v" * 100_000},
        {"read_endpoint": "e" * 100_000},
        {"node": "n" * 100_000, "version": "v" * 100_000, "protocol": 99},
    ],
    ids=["node", "version", "endpoint", "skew"],
)
def test_a_hello_of_long_texts_is_refused_in_a_short_one(changes: dict[str, object]) -> None:
    scene = Scene()
    scene.handle(HelloReceived(1, hello(1, **changes)))
    scene.advance()
    assert scene.closed[1].code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
    assert 20 < len(scene.closed[1].reason) < 500
    assert not list(scene.core.nodes)


def test_a_fetch_of_more_bytes_than_a_chunk_has_is_refused() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX) as (bad,):
            event = rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_HOLDER, bytes=CHUNK_BYTES_MAX + 1)
            bad.say(usage=rpc.Usage(fetches=[event]))
            await bad.until(lambda: bad.refused, "its refusal")
            assert bad.refused[0].what == "fetch"
            assert not bad.ended.is_set()
            async with operator(one.grpc_address) as ask:
                assert (await ask.Status(rpc.StatusRequest())).bytes_kept_off_uplinks == 0

    run(steps())


def test_parents_that_lead_in_a_circle_do_not() -> None:
    async def steps() -> None:
        circle = [record("x", "y", 0), record("y", "x", 0)]
        async with controller() as one, agents(one.grpc_address, circle, PREFIX) as (mad, sane):
            mad.say(usage=rpc.Usage(hints=[rpc.ReuseHint(key=key("x"), kind=rpc.ReuseHint.SESSION_ENDED)]))
            await sane.until(lambda: sane.holders(key("c")) == {"n2"}, "the directory")
            async with operator(one.grpc_address) as ask:
                assert [view.key async for view in ask.List(rpc.ListRequest(key_hex=key("x").hex()))] == [key("x")]
            assert one.core.decisions["cyclic_copy"] == 1

    run(steps())


def test_a_circle_is_refused_whichever_way_it_closes() -> None:
    directory = Directory()
    for name, parent in (("a", "c"), ("b", "a")):
        assert directory.add_copy(A, facts(name, parent)) is AddOutcome.NEW_CHUNK
    assert directory.add_copy(A, facts("c", "b")) is AddOutcome.CYCLE
    assert directory.add_disk_copy(A, facts("c", "b")) is AddOutcome.CYCLE
    assert directory.add_copy(A, facts("c")) is AddOutcome.NEW_CHUNK
    assert directory.add_copy(A, facts("c", "b", size=1)) is AddOutcome.CONFLICT, "it replaces nothing"
    assert directory.subtree(key("c")) == [key("c"), key("a"), key("b")]


def test_a_dissenter_that_would_close_a_circle_does_not_take_over() -> None:
    directory = Directory()
    directory.add_copy(A, facts("c"))
    assert directory.add_copy(B, facts("c", "b", size=1)) is AddOutcome.CONFLICT
    for name, parent in (("a", "c"), ("b", "a")):
        directory.add_copy(A, facts(name, parent))
    directory.remove_copy(A, key("c"))
    assert key("c") not in directory


def test_an_entry_that_the_program_cannot_have_is_refused_alone() -> None:
    async def steps() -> None:
        with running(V1MODEL) as switch:
            target = P4RuntimeTarget(P4RuntimeOptions(switch.address), V1ModelCodec())
            up = asyncio.Event()
            session = asyncio.create_task(target.run(lambda event: up.set() if isinstance(event, Up) else None))
            await up.wait()
            bad = AddressEntry(b"\x02\x00\x00\x00\x00\x01", SwitchPort(2**32 - 1))
            good = AddressEntry(b"\x02\x00\x00\x00\x00\x02", SwitchPort(3))
            refused = await target.write([Update(Operation.INSERT, bad), Update(Operation.INSERT, good)])
            assert list(refused) == [0]
            assert "no such entry is possible" in refused[0]
            assert good in (await target.read()).values()
            session.cancel()
            await asyncio.gather(session, return_exceptions=True)

    run(steps())


def test_copies_without_end_are_not_taken_and_what_a_node_really_has_stays() -> None:
    scene = Scene(copies_max=3)
    for number in (1, 2):
        scene.attach(number)
    scene.announce(1, [record(name) for name in "abcde"])
    assert set(scene.replica(2)) == {key(name) for name in "abc"}
    assert scene.core.decisions["too_many_copies"] == 2
    scene.announce(1, [record("a")])
    assert scene.core.decisions["too_many_copies"] == 2, "known already"
    scene.announce(1, [record("d")], removed=[key("a")])
    scene.announce(1, [record("d")])
    assert set(scene.replica(2)) == {key(name) for name in "bcd"}
    scene.announce(2, [record("e")])
    assert key("e") in scene.replica(1), "each node for itself"
