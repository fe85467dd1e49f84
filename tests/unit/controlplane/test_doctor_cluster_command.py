"""`kvcast doctor cluster` against a running controller with agents of the test."""

from __future__ import annotations

import asyncio
import json

import grpc.aio
import pytest

from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from tests.unit.controlplane.fake_agent import FakeAgent, agents
from tests.unit.controlplane.test_daemon import controller, run
from tests.unit.controlplane.test_operator_commands import Command, on_a_pool


def test_findings_as_a_table_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    async def steps(kvcast: Command, *nodes: FakeAgent) -> None:
        assert await kvcast("doctor", "cluster") == 0
        said = capsys.readouterr().out
        assert "nothing is broken" in said
        assert all(len(line) <= 80 for line in said.splitlines())
        nodes[1].work = lambda task: rpc.TaskResult(task=task.task, status=rpc.TaskResult.FAILED, detail="no room")
        assert await kvcast("doctor", "cluster", "--json") == 1
        examined = json.loads(capsys.readouterr().out)
        broken = [one for one in examined["findings"] if one["level"] == "broken"]
        assert [(one["check"], one["path"], one["found"]) for one in broken] == [
            ("management", "controller -> n2", "no room")
        ]
        assert broken[0]["remedy"]
        for node in nodes[::2]:
            dropped = [task.probe for task in node.tasks if task.probe.HasField("drop")]
            assert dropped, "its chunks are dropped at the end"

    on_a_pool(steps)


def test_one_examination_at_a_time_and_who_goes_away_leaves_nothing() -> None:
    async def scene() -> None:
        async with controller() as one, agents(one.grpc_address, [], []) as nodes:
            for node in nodes:
                await node.attached()
                node.work = lambda task, do=node.do: None if task.probe.HasField("put") else do(task)
            async with grpc.aio.insecure_channel(one.grpc_address) as channel:
                stub = control_pb2_grpc.OperatorStub(channel)
                first = stub.Examine(rpc.ExamineRequest())
                await nodes[0].until(lambda: any(task.probe.HasField("put") for task in nodes[0].tasks), "a put")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    async for _ in stub.Examine(rpc.ExamineRequest()):
                        pass
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
                first.cancel()
                for node in nodes:
                    await node.until(lambda node=node: any(map(_drops, node.tasks)), "the order to drop everything")
                    await node.until(lambda node=node: len(node.cancelled) == 1, "the end of its put")
                assert len(one.core.tasks) <= len(nodes)

    run(scene())


def _drops(task: rpc.Task) -> bool:
    return task.probe.HasField("drop") and not task.probe.drop.numbers


def test_an_older_agent_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    async def steps(kvcast: Command, first: FakeAgent, *_: FakeAgent) -> None:
        words = "this agent does not know the task: update it"
        first.work = lambda task: rpc.TaskResult(task=task.task, status=rpc.TaskResult.REFUSED, detail=words)
        assert await asyncio.wait_for(kvcast("doctor", "cluster"), 60) == 1
        assert "update it" in " ".join(capsys.readouterr().out.split())

    on_a_pool(steps)
