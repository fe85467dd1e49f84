"""`kvcast.pool`: replicate and delete of a running controller, with agents that pretend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from controlplane.config import parse
from controlplane.daemon import Controller
from kvcast.pool import ControllerAt, Deleted, PoolError, delete, replicate
from kvchunk.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from tests.unit.controlplane.fake_agent import FakeAgent, agents
from tests.unit.controlplane.helpers import key, record
from tests.unit.controlplane.test_daemon import PREFIX, QUICK, run

FORK = record("d", "a", 1)
A, B, C, D = (key(name) for name in "abcd")


def scene(tmp_path: Path, steps: Callable[[list[FakeAgent], Callable[..., Any]], Any]) -> None:
    """A controller and three nodes; the first has a - b - c, and d below a. `steps(agents, ask)`: `ask(verb, ...)`."""

    async def told() -> None:
        one = Controller(parse(QUICK, tmp_path))
        await one.start()
        try:
            async with agents(one.grpc_address, [*PREFIX, FORK], [], []) as nodes:
                for node in nodes:
                    await node.until(lambda node=node: len(node.entries) == 4, "all chunks")

                async def ask(verb: Callable[..., Any], *args: Any, **terms: Any) -> Any:
                    at = ControllerAt(one.grpc_address)
                    return await asyncio.to_thread(verb, *args, at=at, **terms)

                await steps(nodes, ask)
        finally:
            await one.stop()

    run(told())


def pinned(key: ChunkKey, at: ControllerAt) -> None:
    assert at.addresses is not None
    with grpc.insecure_channel(at.addresses) as channel:
        control_pb2_grpc.OperatorStub(channel).Pin(rpc.PinRequest(key_hex=key.hex()))


def test_nodes_by_name_get_a_prefix_once(tmp_path: Path) -> None:
    async def steps(nodes: list[FakeAgent], ask: Callable[..., Any]) -> None:
        done = await ask(replicate, [A, B, C], ["n3"])
        assert (done.nodes, done.chunks) == (("n3",), 3)
        await nodes[0].until(lambda: nodes[0].holders(C) == {"n1", "n3"}, "the copies")
        assert nodes[0].holders(D) == {"n1"}
        assert (await ask(replicate, [C], ["n3"])).chunks == 0, "it is there"
        assert [task.WhichOneof("work") for task in nodes[1].tasks] == []

    scene(tmp_path, steps)


def test_so_many_nodes_have_it_those_count_that_had_it(tmp_path: Path) -> None:
    async def steps(nodes: list[FakeAgent], ask: Callable[..., Any]) -> None:
        assert (await ask(replicate, [A, B], 1)).nodes == ("n1",)
        done = await ask(replicate, [C, D], 2)
        assert "n1" in done.nodes
        assert (len(done.nodes), done.chunks) == (2, 4)
        other = next(name for name in done.nodes if name != "n1")
        await nodes[0].until(lambda: all(nodes[0].holders(one) == {"n1", other} for one in (A, B, C, D)), "both")
        with pytest.raises(PoolError, match="4 nodes are asked for, and 3 are attached: ask for 1 to 3"):
            await ask(replicate, [C], 4)

    scene(tmp_path, steps)


def test_what_is_deleted_is_nowhere_and_what_comes_before_it_stays(tmp_path: Path) -> None:
    async def steps(nodes: list[FakeAgent], ask: Callable[..., Any]) -> None:
        await ask(replicate, [C], ["n2"])
        await nodes[2].until(lambda: nodes[2].holders(C) == {"n1", "n2"}, "the copies")
        assert await ask(delete, [B, C]) == Deleted(0, 4)
        await nodes[2].until(lambda: not nodes[2].holders(B) | nodes[2].holders(C), "they are gone")
        assert nodes[2].holders(A) == {"n1", "n2"}
        assert nodes[2].holders(D) == {"n1"}

    scene(tmp_path, steps)


def test_a_pin_is_named_with_the_remedy_before_anything_is_gone(tmp_path: Path) -> None:
    async def steps(nodes: list[FakeAgent], ask: Callable[..., Any]) -> None:
        await ask(pinned, C)
        with pytest.raises(PoolError, match=r"is pinned: take the pin back \(kvcast unpin "):
            await ask(delete, [D, A])
        assert nodes[0].holders(D) == {"n1"}

    scene(tmp_path, steps)


def test_what_is_wrong_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    unknown = ChunkKey(bytes(16))

    async def steps(nodes: list[FakeAgent], ask: Callable[..., Any]) -> None:
        for verb in (lambda keys, at: replicate(keys, 1, at=at), lambda keys, at: delete(keys, at=at)):
            with pytest.raises(PoolError, match=r"no chunk 0{32} is in the pool: put it first"):
                await ask(verb, [unknown])
            with pytest.raises(PoolError, match="no keys: name at least one"):
                await ask(verb, [])
            with pytest.raises(PoolError, match="is no key: take 16 bytes"):
                await ask(verb, ["abc"])
        with pytest.raises(PoolError, match="n9"):
            await ask(replicate, [C], ["n9"])
        with pytest.raises(PoolError, match="replicate to no nodes"):
            await ask(replicate, [C], [])

    scene(tmp_path, steps)


def test_a_node_that_cannot_take_it_is_named(tmp_path: Path) -> None:
    async def steps(nodes: list[FakeAgent], ask: Callable[..., Any]) -> None:
        nodes[1].work = lambda task: rpc.TaskResult(task=task.task, status=rpc.TaskResult.FAILED, detail="pool full")
        with pytest.raises(PoolError, match=r"n2: .*free room there, or ask again"):
            await ask(replicate, [C], ["n2"])

    scene(tmp_path, steps)


def test_without_a_controller_the_remedy_is_the_commands(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=r"no controller answers at 127.0.0.1:1 .*start kvcast-controller"):
        delete([C], at=ControllerAt("127.0.0.1:1"))
