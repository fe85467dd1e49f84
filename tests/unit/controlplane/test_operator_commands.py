"""The operator's commands against a running controller."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.core.events import Elected
from controlplane.daemon import Controller
from kvcast.cli import main
from kvcast.commands.ls import in_tree_order
from kvcast.operator import chunk_object, twin_form
from kvproto.rpc import control_pb2 as rpc
from kvproto.twins import TWIN_CODES, twin_key
from tests.contracts.switch_target.memory_target import MemorySwitch, MemoryTarget
from tests.unit.controlplane.fake_agent import FakeAgent, agents
from tests.unit.controlplane.helpers import CHUNK, key, record
from tests.unit.controlplane.test_daemon import PREFIX, QUICK, controller, eventually, run

Command = Callable[..., "asyncio.Future[int]"]


def on_a_pool(steps: Callable[..., object], switch: MemorySwitch | None = None) -> None:
    """n1 holds a <- b <- c, n2 and n3 nothing; `kvcast(...)` runs a command and returns its status."""

    async def scene() -> None:
        async with controller(switch) as one, agents(one.grpc_address, PREFIX, [], []) as nodes:
            for agent in nodes:
                await agent.until(lambda agent=agent: len(agent.entries) == 3, "the prefix")
                if switch is not None:
                    await agent.until(lambda agent=agent: agent.switch.present, "the switch")

            def kvcast(*words: str) -> asyncio.Future[int]:
                return asyncio.ensure_future(asyncio.to_thread(main, [*words, "--controller", one.grpc_address]))

            await steps(kvcast, *nodes)  # type: ignore[misc]

    run(scene())


def test_ls_shows_chunks_in_prefix_order(capsys: pytest.CaptureFixture[str]) -> None:
    async def steps(kvcast: Command, first: FakeAgent, *_: FakeAgent) -> None:
        assert await kvcast("ls") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split()[:4] == ["KEY", "POS", "SIZE", "HOLDERS"]
        assert [line.split()[0] for line in lines[1:]] == [key(name).hex()[:12] for name in "abc"]
        assert all(len(line) <= 100 for line in lines)
        assert "n1" in lines[1]
        assert await kvcast("ls", key("b").hex()[:8], "--json") == 0
        assert [chunk["position"] for chunk in json.loads(capsys.readouterr().out)] == [0, 1, 2]
        assert await kvcast("ls", "--limit", "2") == 0
        said = capsys.readouterr()
        assert "more than 2" in said.err
        assert said.out.splitlines()[-1].startswith(key("b").hex()[:12]), "the last line is a chunk"
        assert await kvcast("ls", "--pinned") == 0
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", "kvcast ls: no chunk matches\n")

    on_a_pool(steps)


def test_pin_to_the_switch_shows_in_ls_and_top(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(kvcast: Command, first: FakeAgent, second: FakeAgent, _: FakeAgent) -> None:
        assert await kvcast("pin", key("b").hex(), "--switch") == 0
        assert "pinned 2 chunks (64 KiB)" in capsys.readouterr().out
        await second.until(lambda: second.entries[key("b")].served and second.entries[key("a")].served, "both served")
        assert await kvcast("ls", "--served", "--pinned") == 0
        assert capsys.readouterr().out.count("serving") == 2
        assert await kvcast("top", "--once") == 0
        text = capsys.readouterr().out
        assert "16/64 slots" in text
        assert "n3" in text
        assert await kvcast("top", "--json") == 0
        assert json.loads(capsys.readouterr().out)["status"]["switch"]["serving"] == 2
        assert await kvcast("unpin", key("b").hex(), "--json") == 0
        assert json.loads(capsys.readouterr().out)["chunks"] == 2
        assert await kvcast("evict", key("a").hex(), "--dry-run") == 0
        assert "2 chunks would leave the switch, 0 copies would leave hosts" in capsys.readouterr().out
        assert await kvcast("evict", key("a").hex()) == 0
        assert "2 chunks leave the switch, 0 copies leave hosts" in capsys.readouterr().out
        await second.until(lambda: not any(entry.served for entry in second.entries.values()), "nothing served")
        await evict_from_hosts(kvcast, capsys, monkeypatch)
        await second.until(lambda: key("c") not in second.entries, "c gone")

    on_a_pool(steps, MemorySwitch())


async def evict_from_hosts(
    kvcast: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """c, below a and b: only said, not confirmed by anybody, refused at the terminal, agreed to there."""
    assert await kvcast("evict", key("b").hex(), "--hosts", "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned == {"chunks_from_switch": 0, "copies_from_hosts": 2, "dry_run": True}
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert await kvcast("evict", key("c").hex(), "--hosts") == 2
    assert "confirm it with --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert await kvcast("evict", key("c").hex(), "--hosts") == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "1 copies leave hosts and are gone. Go on? [y/N] ")
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert await kvcast("evict", key("c").hex(), "--hosts") == 0
    assert "1 copies leave hosts" in capsys.readouterr().out


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_warm_and_drain_report_per_node(capsys: pytest.CaptureFixture[str]) -> None:
    async def steps(kvcast: Command, first: FakeAgent, second: FakeAgent, third: FakeAgent) -> None:
        assert await kvcast("warm", "--prefix", key("c").hex(), "--nodes", "n2,n3", "--json") == 0
        nodes = json.loads(capsys.readouterr().out)["nodes"]
        assert {name: node["done"] for name, node in nodes.items()} == {"n2": 3, "n3": 3}
        assert nodes["n2"]["bytes"] == 3 * CHUNK
        first.announce(record("only here"))
        await first.until(lambda: key("only here") in first.entries, "a last copy")
        assert await kvcast("drain", "n1") == 0
        assert "1/1" in capsys.readouterr().out
        second.work = lambda task: rpc.TaskResult(task=task.task, status=rpc.TaskResult.FAILED, detail="pool full")
        third.work = second.work
        first.announce(record("another"))
        await first.until(lambda: key("another") in first.entries, "another last copy")
        assert await kvcast("drain", "n1") == 1
        assert "pool full" in capsys.readouterr().out
        assert await kvcast("drain", "n1", "--cancel") == 0

    on_a_pool(steps)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["ls", "zz"], "not a chunk key"),
        (["ls", "--node", "nobody"], "no node is called 'nobody'"),
        (["pin", "ffffffffffffffff"], "no chunk of the pool begins with"),
        (["pin", "KEY", "--switch"], "no kvcast switch"),
        (["warm", "--prefix", "KEY", "--nodes", "n9"], "no node 'n9' is attached"),
        (["drain", "n9"], "no node is called 'n9'"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def steps(kvcast: Command, *_: FakeAgent) -> None:
        assert await kvcast(*[key("a").hex() if word == "KEY" else word for word in words]) == 2
        errors = capsys.readouterr().err
        assert problem in errors
        assert errors.count("\n") == 1

    on_a_pool(steps)


def test_no_controller_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kvcast.operator.CONNECT_TIMEOUT_S", 0.05)
    assert main(["ls", "--controller", "127.0.0.1:1"]) == 2
    assert "no controller answers at 127.0.0.1:1" in capsys.readouterr().err


def test_of_two_controllers_the_one_that_leads_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        switch = MemorySwitch()
        async with controller(switch) as primary:
            standby = Controller(parse(QUICK, Path()), MemoryTarget(switch, election_id=5))
            await standby.start()
            try:
                await eventually(standby.standby_words, "on standby")

                async def ls(*addresses: str) -> int:
                    return await asyncio.to_thread(main, ["ls", "--controller", ",".join(addresses)])

                assert await ls(standby.grpc_address, primary.grpc_address) == 0
                assert "no chunk matches" in capsys.readouterr().err
                assert await ls(standby.grpc_address) == 2
                assert "on standby: another one" in capsys.readouterr().err
                assert await ls(standby.grpc_address, "127.0.0.1:1") == 2
                error = capsys.readouterr().err
                assert f"{standby.grpc_address} is on standby, 127.0.0.1:1 does not answer" in error
                command = ["top", "--json", "--controller", standby.grpc_address]
                assert await asyncio.to_thread(main, command) == 0
                assert json.loads(capsys.readouterr().out)["status"]["switch"]["state"] == "standby"
            finally:
                await standby.stop()

    run(scene())


def test_who_leads_is_asked_before_one_whose_lease_has_run_out(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        async with controller() as lapsed, controller() as leader:
            lapsed.handle(Elected(7, lapsed.now_ns(), "it had the lease"))
            both = f"{lapsed.grpc_address},{leader.grpc_address}"
            assert await asyncio.to_thread(main, ["expel", "n9", "--controller", both]) == 0
            assert (leader.core.expelled, lapsed.core.expelled) == ({"n9"}, set())
            dead = f"127.0.0.1:1,{lapsed.grpc_address}"
            assert await asyncio.to_thread(main, ["ls", "--controller", dead]) == 0, "it serves what it knows"
            assert await asyncio.to_thread(main, ["expel", "n9", "--controller", dead]) == 2
            assert "lease has run out" in capsys.readouterr().err
            assert await asyncio.to_thread(main, ["top", "--once", "--controller", lapsed.grpc_address]) == 0
            assert "LEASE HAS RUN OUT" in capsys.readouterr().out

    run(scene())


def test_trees_read_well() -> None:
    chunks = [
        rpc.ChunkView(key=bytes([at]), parent=bytes([parent]))
        for at, parent in ((1, 9), (2, 9), (3, 1), (4, 2), (5, 1))
    ]
    assert [chunk.key[0] for chunk in in_tree_order(chunks)] == [1, 3, 5, 2, 4]


def test_a_twin_is_shown_as_one() -> None:
    parent, other = key("a"), key("b")
    told = {
        code: twin_form(rpc.ChunkView(key=twin_key(parent, code), parent=parent, size_bytes=4096))
        for code in TWIN_CODES
    }
    assert told == {1: "lossless", 2: "lossy"}
    assert twin_form(rpc.ChunkView(key=other, parent=parent)) is None
    assert twin_form(rpc.ChunkView(key=parent)) is None
    assert chunk_object(rpc.ChunkView(key=twin_key(parent, 1), parent=parent))["twin"] == "lossless"


def test_expel_puts_a_node_out_and_takes_it_in_again(capsys: pytest.CaptureFixture[str]) -> None:
    async def steps(kvcast: Command, _first: FakeAgent, _second: FakeAgent, third: FakeAgent) -> None:
        assert await kvcast("expel") == 0
        assert capsys.readouterr().out.split() == ["expelled", "nodes:", "none"]
        assert await kvcast("expel", "n3") == 0
        said = capsys.readouterr().out
        assert "n3 is expelled" in said
        assert "until this controller ends" in said
        await third.until(lambda: third.error is not None, "n3 is out")
        assert "kvcast expel n3 --cancel" in str(third.error)
        assert await kvcast("expel", "n3", "--cancel", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"expelled": [], "lasting": False, "was_attached": False}
        assert await kvcast("expel", "a b") == 2
        assert "'a b' is not a valid node name" in capsys.readouterr().err
        assert await kvcast("expel", "--cancel") == 2

    on_a_pool(steps)
