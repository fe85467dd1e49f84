"""The daemon over real gRPC, with agents of the tests and a switch in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from controlplane.config import parse
from controlplane.core.ids import SwitchPort
from controlplane.core.locations import Location
from controlplane.core.switch.entries import FillingEntry, ServingEntry, SwitchContents
from controlplane.daemon import Controller, main
from kvdaemon.errors import CannotRunError
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from tests.contracts.switch_target.memory_target import MemorySwitch, MemoryTarget
from tests.unit.controlplane.fake_agent import CABLES, DEADLINE_S, FakeAgent, agents
from tests.unit.controlplane.helpers import CHUNK, key, record

PREFIX = [record("a"), record("b", "a", 1), record("c", "b", 2)]
QUICK = {
    "listen": "127.0.0.1:0",
    "metrics": "127.0.0.1:0",
    "membership": {"heartbeat_ms": 10_000, "copies_grace_ms": 0, "member_grace_ms": 0},
    "switch": {"reconcile_ms": 50},
    "policy": {"fill_timeout_ms": 60_000, "price_fills": False},
}


@contextlib.asynccontextmanager
async def controller(switch: MemorySwitch | None = None, **changes: object) -> AsyncIterator[Controller]:
    if switch is not None:
        # The address is not used: the target stands in for it.
        changes["switch"] = {"target": "p4switch", "address": "127.0.0.1:1", "reconcile_ms": 50}
    config = parse(QUICK | changes, Path())
    one = Controller(config, MemoryTarget(switch) if switch else None)
    await one.start()
    try:
        with contextlib.nullcontext() if switch is None else cabled(one, switch):
            yield one
    finally:
        await one.stop()


@contextlib.contextmanager
def cabled(one: Controller, switch: MemorySwitch) -> Iterator[None]:
    """The switch sees the controller's agents at the ports that they name."""

    def here(said: rpc.Hello, here_key: bytes) -> None:
        switch.here(here_key, Location(SwitchPort(said.switch_port), said.data_mac, said.data_ip))

    CABLES[one.grpc_address] = here
    try:
        yield
    finally:
        del CABLES[one.grpc_address]


@contextlib.asynccontextmanager
async def operator(address: str) -> AsyncIterator[control_pb2_grpc.OperatorAsyncStub]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield control_pb2_grpc.OperatorStub(channel)  # type: ignore[misc]


def run(steps: object) -> None:
    asyncio.run(asyncio.wait_for(steps, 3 * DEADLINE_S))  # type: ignore[arg-type]


async def eventually(condition: object, what: str) -> None:
    """For what no message announces: the switch in memory has no bell."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)
    assert condition(), what  # type: ignore[operator]


def test_everybody_learns_what_everybody_holds() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, [], PREFIX[:1]) as (first, second, third):
            await second.until(lambda: second.holders(key("a")) == {"n1", "n3"}, "both holders of a")
            await second.until(lambda: second.holders(key("c")) == {"n1"}, "the holder of c")
            assert second.entries[key("b")].parent == key("a")
            third.announce(record("z"))
            await first.until(lambda: first.holders(key("z")) == {"n3"}, "z")

    run(steps())


def test_an_agent_that_dies_is_forgotten() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, []) as (watcher,):
            async with FakeAgent(one.grpc_address, 2, PREFIX) as mortal:
                await mortal.attached()
                await watcher.until(lambda: watcher.holders(key("c")) == {"n2"}, "c")
            await watcher.until(lambda: key("c") not in watcher.entries, "c gone")

    run(steps())


def test_a_hot_chunk_is_served_from_the_switch() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        async with controller(switch) as one, agents(one.grpc_address, PREFIX, [], []) as (holder, reader, _):
            await reader.until(lambda: reader.switch.present, "the switch")
            await reader.until(lambda: key("a") in reader.entries, "a")
            switch.report(key("a"), 0b110)
            await reader.until(lambda: reader.entries[key("a")].served, "a served")
            assert switch.contents["kv_cache", key("a")] == ServingEntry(key("a"), 0, 8)
            assert [task.WhichOneof("work") for task in holder.tasks] == ["fill"]

    run(steps())


def test_a_controller_killed_in_mid_fill_leaves_nothing_and_its_successor_goes_on() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        async with controller(switch) as old, agents(old.grpc_address, PREFIX, []) as (holder, reader):
            await reader.until(lambda: reader.switch.present and key("b") in reader.entries, "the switch and b")
            switch.report(key("a"), 0b11)
            await reader.until(lambda: reader.entries[key("a")].served, "a served")
            holder.work = lambda _: None
            switch.report(key("b"), 0b11)
            await holder.until(lambda: len(holder.tasks) == 2, "the second fill")
        assert isinstance(switch.contents["kv_cache", key("b")], FillingEntry)
        async with controller(switch) as new, agents(new.grpc_address, PREFIX, []) as (holder, reader):
            await reader.until(lambda: key("a") in reader.entries and reader.entries[key("a")].served, "a taken over")
            assert not holder.tasks, "what is right is not filled again"
            assert ("kv_cache", key("b")) not in switch.contents
            switch.report(key("b"), 0b11)
            await reader.until(lambda: reader.entries[key("b")].served, "b served")

    run(steps())


def test_a_reloaded_program_is_noticed_and_repopulated() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        async with controller(switch) as one, agents(one.grpc_address, PREFIX, []) as (holder, reader):
            await reader.until(lambda: reader.switch.present and key("a") in reader.entries, "the switch and a")
            switch.report(key("a"), 0b11)
            await reader.until(lambda: reader.entries[key("a")].served, "a served")
            epoch, before = reader.switch.epoch, set(switch.contents)
            switch.reload()
            await reader.until(lambda: reader.switch.epoch > epoch, "a new epoch")
            await holder.until(lambda: len(holder.tasks) == 2, "a second fill")
            serving = ServingEntry(key("a"), 0, 8)
            await eventually(lambda: switch.contents.get(("kv_cache", key("a"))) == serving, "a served again")
            assert set(switch.contents) == before

    run(steps())


def test_the_session_with_the_switch_comes_back() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        target = MemoryTarget(switch)
        one = Controller(parse(QUICK, Path()), target)
        await one.start()
        try:
            with cabled(one, switch):
                await goes_on(one, target, switch)
        finally:
            await one.stop()

    async def goes_on(one: Controller, target: MemoryTarget, switch: MemorySwitch) -> None:
        async with agents(one.grpc_address, PREFIX) as (agent,):
            await agent.until(lambda: agent.switch.present, "the switch")
            epoch = agent.switch.epoch
            target.drop_session()
            agent.announce(record("later"))
            await agent.until(lambda: key("later") in agent.entries, "later")
            switch.report(key("later"), 0b11)
            await eventually(lambda: ("kv_cache", key("later")) in switch.contents, "writes go through again")
            assert agent.switch.epoch == epoch

    run(steps())


def test_a_standby_takes_no_agents_until_the_primary_is_gone() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        async with contextlib.AsyncExitStack() as stack:
            primary = await stack.enter_async_context(controller(switch))
            standby = Controller(parse(QUICK, Path()), MemoryTarget(switch, election_id=5))
            await standby.start()
            try:
                async with FakeAgent(standby.grpc_address, 1) as refused:
                    await asyncio.wait_for(refused.ended.wait(), DEADLINE_S)
                    assert refused.error is not None
                    assert refused.error.code() is grpc.StatusCode.UNAVAILABLE
                assert not primary.standby_words()
                await stack.aclose()
                async with agents(standby.grpc_address, PREFIX) as (agent,):
                    await agent.until(lambda: agent.switch.present, "the switch")
            finally:
                await standby.stop()

    run(steps())


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (rpc.FromAgent(heartbeat=rpc.Heartbeat()), grpc.StatusCode.INVALID_ARGUMENT),
        (rpc.FromAgent(hello=rpc.Hello(node="x")), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_stream_that_begins_badly_is_closed(message: rpc.FromAgent, code: grpc.StatusCode) -> None:
    async def steps() -> None:
        async with controller() as one, grpc.aio.insecure_channel(one.grpc_address) as channel:

            async def words() -> AsyncIterator[rpc.FromAgent]:
                yield message
                await asyncio.sleep(DEADLINE_S)

            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in control_pb2_grpc.CoordinatorStub(channel).Attach(words()):
                    pass
            assert caught.value.code() is code
            assert len(one.core.nodes) == 0

    run(steps())


def test_an_agent_that_does_not_read_is_cut_off() -> None:
    async def steps() -> None:
        from controlplane.core.limits import OUTBOX_MESSAGES_MAX
        from controlplane.rpc.peers import Peer
        from controlplane.rpc.streams import AgentStream, Closing

        stream = AgentStream(1, Peer())
        for _ in range(OUTBOX_MESSAGES_MAX + 1):
            stream.send(rpc.ToAgent())
        end = await stream.next()
        assert isinstance(end, Closing)
        assert end.code == "RESOURCE_EXHAUSTED"

    run(steps())


# -- operators


def test_list_status_and_top() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, PREFIX[:1]) as (first, second):
            await first.until(lambda: first.holders(key("a")) == {"n1", "n2"}, "both holders")
            fetch = rpc.FetchEvent(key=key("b"), source=rpc.SOURCE_CAST, bytes=CHUNK)
            second.say(usage=rpc.Usage(fetches=[fetch, fetch]))
            second.say(heartbeat=rpc.Heartbeat(pool_used_bytes=77))
            async with operator(one.grpc_address) as stub:
                await eventually(lambda: one.core.accounting.bytes_kept_off_uplinks, "the usage")
                await eventually(lambda: one.core.nodes.named("n2").pool_used_bytes, "the heartbeat")
                chunks = [chunk async for chunk in stub.List(rpc.ListRequest())]
                assert [chunk.position for chunk in chunks] == [0, 1, 2]
                assert list(chunks[0].holders) == ["n1", "n2"]
                held = [chunk async for chunk in stub.List(rpc.ListRequest(node="n2"))]
                assert [chunk.key for chunk in held] == [key("a")]
                some = [c async for c in stub.List(rpc.ListRequest(key_hex=key("b").hex()[:10], limit=2))]
                assert [chunk.key for chunk in some] == [key("a"), key("b")]
                top = await stub.Top(rpc.TopRequest())
                assert [chunk.key for chunk in top.chunks] == [key("b")]
                status = await stub.Status(rpc.StatusRequest())
                assert [(n.name, n.chunks, n.last_copies, n.pool_used_bytes) for n in status.nodes] == [
                    ("n1", 3, 2, 0),
                    ("n2", 1, 0, 77),
                ]
                assert status.bytes_kept_off_uplinks == CHUNK
                assert status.management_messages > 4
                for request in (rpc.ListRequest(key_hex="f" * 32), rpc.ListRequest(node="nobody")):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        _ = [chunk async for chunk in stub.List(request)]
                    assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    run(steps())


def test_warm_casts_a_prefix_to_all_at_once() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, [], PREFIX[:1]) as (first, second, third):
            await first.until(lambda: first.holders(key("a")) == {"n1", "n3"}, "the prefix")
            async with operator(one.grpc_address) as stub:
                request = rpc.WarmRequest(key_hex=key("c").hex(), nodes=["n2", "n3"])
                progress = [step async for step in stub.Warm(request)]
            assert progress[-1].finished
            last = {step.node: step for step in progress if step.node}
            assert {name: (step.done, step.total, step.problem) for name, step in last.items()} == {
                "n2": (3, 3, ""),
                "n3": (3, 3, ""),
            }
            assert [list(task.fetch.keys) for task in second.tasks] == [[key("a"), key("b"), key("c")]]
            assert [list(task.fetch.keys) for task in third.tasks] == [[key("b"), key("c")]]
            await first.until(lambda: first.holders(key("c")) == {"n1", "n2", "n3"}, "c everywhere")

    run(steps())


def test_warm_reports_failures_and_an_operator_who_leaves_cancels_it() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, []) as (first, second):
            await second.until(lambda: key("c") in second.entries, "the prefix")
            async with operator(one.grpc_address) as stub:
                second.work = lambda task: rpc.TaskResult(
                    task=task.task, status=rpc.TaskResult.PARTIAL, done=1, detail="pool full"
                )
                progress = [step async for step in stub.Warm(rpc.WarmRequest(key_hex=key("c").hex(), nodes=["n2"]))]
                assert (progress[-2].done, progress[-2].problem) == (1, "pool full")
                second.work = lambda _: None
                call = stub.Warm(rpc.WarmRequest(key_hex=key("c").hex(), nodes=["n2"]))
                await second.until(lambda: len(second.tasks) == 2, "the second warm")
                call.cancel()
                await second.until(lambda: second.cancelled == [second.tasks[1].task], "the cancel")
                with pytest.raises(grpc.aio.AioRpcError, match="nobody"):
                    _ = [s async for s in stub.Warm(rpc.WarmRequest(key_hex=key("c").hex(), nodes=["nobody"]))]
            assert len(one.core.tasks) == 0
            assert not first.tasks

    run(steps())


def test_pins_survive_the_controller() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, []) as (first, second):
            await second.until(lambda: key("c") in second.entries, "the prefix")
            async with operator(one.grpc_address) as stub:
                reply = await stub.Pin(rpc.PinRequest(key_hex=key("b").hex()))
                assert (reply.chunks, reply.bytes) == (2, 2 * CHUNK)
                await first.until(lambda: first.tasks, "the order to pin")
                assert list(first.tasks[0].pin.keys) == [key("a"), key("b")]
                await second.until(lambda: second.entries[key("a")].pinned, "the pin")
                second.announce(PREFIX[0])
                await second.until(lambda: second.tasks, "a new copy is pinned as well")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Pin(rpc.PinRequest(key_hex=key("b").hex(), in_switch=True))
                assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        pinned = [rpc.ChunkRecord.FromString(one.SerializeToString()) for one in PREFIX]
        pinned[0].pinned = True
        async with controller() as one, agents(one.grpc_address, pinned) as (first,):
            await first.until(lambda: first.entries.get(key("a")) and first.entries[key("a")].pinned, "the old pin")
            assert not first.entries[key("b")].pinned
            async with operator(one.grpc_address) as stub:
                reply = await stub.Unpin(rpc.PinRequest(key_hex=key("b").hex()))
                assert reply.chunks == 1
                await first.until(lambda: first.tasks, "the order to unpin")
                assert list(first.tasks[0].unpin.keys) == [key("a")]

    run(steps())


def test_drain_moves_last_copies_elsewhere() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, PREFIX[:1], []) as (first, second, third):
            await first.until(lambda: first.holders(key("a")) == {"n1", "n2"}, "both holders of a")
            async with operator(one.grpc_address) as stub:
                progress = [step async for step in stub.Drain(rpc.DrainRequest(node="n1"))]
                assert (progress[-1].node, progress[-1].finished, progress[-1].problem) == ("n1", True, "")
                assert not one.core.directory.last_copies(one.core.nodes.named("n1").index)
                moved = [key_ for agent in (second, third) for task in agent.tasks for key_ in task.fetch.keys]
                assert sorted(moved) == sorted([key("b"), key("c")]), "a has another copy already"
                await second.until(lambda: second.node_named("n1").draining, "everybody knows")
                _ = [step async for step in stub.Drain(rpc.DrainRequest(node="n1", cancel=True))]
                await second.until(lambda: not second.node_named("n1").draining, "everybody knows again")
                with pytest.raises(grpc.aio.AioRpcError, match="nobody"):
                    _ = [step async for step in stub.Drain(rpc.DrainRequest(node="nobody"))]

    run(steps())


def test_drain_says_what_fits_nowhere() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX) as (agent,):
            await agent.until(lambda: key("c") in agent.entries, "the prefix")
            async with operator(one.grpc_address) as stub:
                progress = [step async for step in stub.Drain(rpc.DrainRequest(node="n1"))]
            assert progress[-1].problem.startswith("3 chunks fit into no other pool")

    run(steps())


def test_evict_takes_out_of_the_switch_and_out_of_hosts() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        async with controller(switch) as one, agents(one.grpc_address, PREFIX, []) as (first, second):
            await second.until(lambda: second.switch.present and key("a") in second.entries, "the switch and a")
            switch.report(key("a"), 0b11)
            await second.until(lambda: second.entries[key("a")].served, "a served")
            async with operator(one.grpc_address) as stub:
                reply = await stub.Evict(rpc.EvictRequest(key_hex=key("a").hex()))
                assert (reply.chunks_from_switch, reply.copies_from_hosts) == (1, 0)
                await second.until(lambda: not second.entries[key("a")].served, "a not served")
                reply = await stub.Evict(rpc.EvictRequest(key_hex=key("b").hex(), hosts=True))
                assert (reply.chunks_from_switch, reply.copies_from_hosts) == (0, 2)
                await second.until(lambda: set(second.entries) == {key("a")}, "only a is left")
            assert first.chunks.keys() == {key("a")}

    run(steps())


# -- the process


def test_metrics_and_health() -> None:
    async def steps() -> None:
        async with controller(MemorySwitch()) as one, agents(one.grpc_address, PREFIX) as (agent,):
            await agent.until(lambda: agent.switch.present and len(agent.entries) == 3, "everything")

            def get(path: str) -> str:
                with urllib.request.urlopen(f"http://{one.metrics_address}{path}", timeout=5) as reply:
                    return str(reply.read().decode())

            text = await asyncio.to_thread(get, "/metrics")
            assert "kvcast_controller_chunks 3.0" in text
            assert 'kvcast_controller_nodes{state="attached"} 1.0' in text
            assert "kvcast_controller_switch_present 1.0" in text
            assert 'kvcast_controller_messages_total{direction="in"}' in text
            health = json.loads(await asyncio.to_thread(get, "/healthz"))
            assert health["status"] == "ok"

    run(steps())


def test_a_watcher_hears_of_changes_and_of_nothing_else() -> None:
    async def steps() -> None:
        async with controller() as one, operator(one.grpc_address) as stub:
            statuses = stub.Watch(rpc.StatusRequest())
            first = await statuses.read()
            assert (len(first.nodes), first.chunks) == (0, 0)
            async with agents(one.grpc_address, PREFIX) as (agent,):
                while (status := await statuses.read()).chunks < len(PREFIX):
                    pass
                assert [node.name for node in status.nodes] == ["n1"]
                agent.announce(record("z"))
                while (after := await statuses.read()).chunks == status.chunks:
                    # Not the clock's ticks, nor the messages counted meanwhile: the node had more to say.
                    assert after.nodes != status.nodes
                assert after.chunks == len(PREFIX) + 1
            statuses.cancel()

    run(steps())


class LateTarget(MemoryTarget):
    """Reads wait for the test, which may have them answer with an empty switch."""

    def __init__(self, switch: MemorySwitch) -> None:
        super().__init__(switch)
        self.slow = False
        self.waiting: list[asyncio.Future[bool]] = []

    async def read(self) -> SwitchContents:
        if self.slow:
            gate: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self.waiting.append(gate)
            if await gate:
                return {}
        return await super().read()


def test_an_answer_from_an_earlier_session_is_not_taken_for_one_of_this() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        changes = {"switch": {"target": "p4switch", "address": "127.0.0.1:1", "reconcile_ms": 50}}
        target = LateTarget(switch)
        one = Controller(parse(QUICK | changes, Path()), target)
        await one.start()
        await eventually(lambda: one.core.link.present, "a programmed switch")
        epoch, target.slow = one.core.link.epoch, True
        await eventually(lambda: len(target.waiting) == 1, "a check is under way")
        target.drop_session()
        await eventually(lambda: len(target.waiting) == 2, "the new session begins with a read of its own")
        target.slow = False
        target.waiting[0].set_result(True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        target.waiting[1].set_result(False)
        reads = one.core.accounting.switch_reads
        await eventually(lambda: one.core.accounting.switch_reads > reads, "the answer that was waited for")
        assert one.core.link.epoch == epoch, "the switch never lost anything"
        await one.stop()

    run(steps())


def test_a_port_in_use_is_one_clear_line() -> None:
    async def steps() -> None:
        async with controller() as one:
            second = Controller(parse(QUICK | {"listen": one.grpc_address}, Path()))
            with pytest.raises(CannotRunError, match="cannot listen on"):
                await second.start()
            third = Controller(parse(QUICK | {"metrics": one.metrics_address}, Path()))
            with pytest.raises(CannotRunError, match="in use; change metrics"):
                await third.start()

    run(steps())


def started(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    config = tmp_path / "controller.yaml"
    config.write_text(text)
    command = [sys.executable, "-m", "controlplane", "--config", str(config)]
    root = Path(__file__).resolve().parents[3]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_process_is_ready_serves_and_ends_in_order(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = started(tmp_path, f"listen: 127.0.0.1:0\nmetrics: 127.0.0.1:0\nready_file: {ready}\n")
    try:
        line = process.stdout.readline()
        assert line.startswith("kvcast-controller ready grpc=127.0.0.1:")
        facts = json.loads(ready.read_text())
        assert facts["pid"] == process.pid
        host, _, port = facts["grpc"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5):
            pass
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors
        assert not ready.exists()
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("lisen: 127.0.0.1:0\n", "did you mean 'listen'"),
        ("switch: {target: p4switch}\n", "switch.address is missing"),
        ("switch: {target: p4switch, address: 'x:1', p4info: none.txt}\n", "no file"),
        ("nodes: {n1: {port: 1}, n2: {port: 1}}\n", "n1's already"),
        ("fabric: {group: 10.0.0.1}\n", "multicast"),
        ("fabric: {pool_mac: 5}\n", "fabric.pool_mac: 5 is not a MAC address"),
        ("metrics: 9470\n", "metrics: 9470 is not text"),
        ("nodes: {n1: {}}\n", "nodes.n1.port is missing"),
        ("switch: {flood_ports: [1, 511]}\n", "switch.flood_ports: 511 is not a whole number from 1 to 510"),
        ("policy: {half_life_s: 0}\n", "policy.half_life_s"),
        ("membership: {member_grace_ms: 5}\n", "copies_grace_ms"),
    ],
)
def test_bad_configurations_are_one_line(
    tmp_path: Path, text: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "controller.yaml"
    config.write_text(text)
    assert main(["--config", str(config)]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert word in errors
