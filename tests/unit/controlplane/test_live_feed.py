"""What people watch, as they get it: by gRPC, and as server-sent events with the page that shows them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.config import parse
from controlplane.core.live import Tables, apply
from controlplane.core.live.increments import tables_of
from controlplane.daemon import Controller
from controlplane.page import live_page
from controlplane.rpc import live_feed
from controlplane.rpc.live_feed import LiveFeed
from kvproto.rpc import control_pb2 as rpc
from tests.contracts.switch_target.memory_target import MemorySwitch, MemoryTarget
from tests.unit.controlplane.fake_agent import DEADLINE_S, agents
from tests.unit.controlplane.helpers import key
from tests.unit.controlplane.test_daemon import PREFIX, QUICK, controller, eventually, operator, run


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "LOOK_S", 0.01)


class Things:
    """Something to look at."""

    def __init__(self) -> None:
        self.counts = {"a": 1}
        self.looks = 0

    def look(self) -> tuple[Tables, rpc.StatusReply]:
        self.looks += 1
        rows = [rpc.CountView(name=name, count=count) for name, count in self.counts.items()]
        return tables_of({"decisions": rows}), rpc.StatusReply(uptime_ms=self.looks)


@contextlib.asynccontextmanager
async def feeding(things: Things) -> AsyncIterator[LiveFeed]:
    feed = LiveFeed(things.look, 7)
    running = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_one_look_is_for_all_who_watch_and_none_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "LOOK_S", 0)

    async def steps() -> None:
        things = Things()
        async with feeding(things) as feed:
            first, second = feed.follow(), feed.follow()
            for _ in range(5):
                one, other = await anext(first), await anext(second)
                assert one is other
            assert things.looks == one.sequence
            await first.aclose()
            await second.aclose()
            # It wakes up at each turn of the loop, and finds nobody.
            for _ in range(100):
                await asyncio.sleep(0)
            assert things.looks == one.sequence

    run(steps())


def test_who_is_slow_gets_a_snapshot_and_nothing_is_kept() -> None:
    async def steps() -> None:
        things = Things()
        async with feeding(things) as feed:
            slow, quick = feed.follow(), feed.follow()
            known: Tables = {}
            apply(known, await anext(slow))
            for count in range(50):
                things.counts = {"a": 1, f"b{count}": count}
                increment = await anext(quick)
                assert len(increment.decisions) <= 2
            late = await anext(slow)
            assert late.snapshot
            apply(known, late)
            assert set(known["decisions"]) == {row.name for row in late.decisions} == set(things.counts)
            assert not (await anext(slow)).snapshot
            await slow.aclose()
            await quick.aclose()

    run(steps())


def test_grpc_tells_what_happens() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, []) as (_, reader):
            await reader.until(lambda: key("c") in reader.entries, "the prefix")
            async with operator(one.grpc_address) as stub:
                known: Tables = {}
                fetched = False
                async with asyncio.timeout(DEADLINE_S):
                    async for increment in stub.Live(rpc.LiveRequest()):
                        apply(known, increment)
                        if not fetched:
                            assert increment.snapshot
                            event = rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_CAST, bytes=9)
                            reader.say(usage=rpc.Usage(fetches=[event]))
                            fetched = True
                        elif known["prefixes"]:
                            assert not increment.snapshot
                            break
            (prefix,) = known["prefixes"].values()
            assert (prefix.chunks, prefix.casts, prefix.delivered.cast_bytes) == (3, 1, 9)
            assert set(known["nodes"]) == {"n1", "n2"}

    run(steps())


@contextlib.asynccontextmanager
async def requested(address: str, path: str) -> AsyncIterator[asyncio.StreamReader]:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def event(reader: asyncio.StreamReader) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_S):
        while not (block := await reader.readuntil(b"\n\n")).startswith(b"data: "):
            pass
    value: dict[str, Any] = json.loads(block.removeprefix(b"data: "))
    return value


def test_events_are_the_same_as_json() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        async with controller(switch) as one, agents(one.grpc_address, PREFIX) as (holder,):
            await holder.until(lambda: holder.switch.present, "the switch")
            async with requested(one.metrics_address, "/live") as reader:
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"text/event-stream" in head
                first = await event(reader)
                assert first["snapshot"] is True
                assert first["status"]["switch_view"]["state"] == "ready"
                assert [row["node"]["name"] for row in first["nodes"]] == ["n1"]
                assert len(first["slots"]) == 64
                second = await event(reader)
                assert int(second["sequence"]) == int(first["sequence"]) + 1
                assert "snapshot" not in second
                assert "slots" not in second

    run(steps())


def test_a_controller_on_standby_says_so() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        async with controller(switch):
            standby = Controller(parse(QUICK, Path()), MemoryTarget(switch, election_id=5))
            await standby.start()
            try:
                await eventually(standby.standby_words, "on standby")
                async with requested(standby.metrics_address, "/live") as reader:
                    await reader.readuntil(b"\r\n\r\n")
                    assert (await event(reader))["status"]["switch_view"]["state"] == "standby"
            finally:
                await standby.stop()

    run(steps())


def test_a_watcher_does_not_keep_the_controller_from_stopping() -> None:
    async def steps() -> None:
        async with controller() as one:
            watching = requested(one.metrics_address, "/live")
            reader = await watching.__aenter__()
            await reader.readuntil(b"\r\n\r\n")
            async with operator(one.grpc_address) as stub:
                call = stub.Live(rpc.LiveRequest())
                await call.read()
                async with asyncio.timeout(DEADLINE_S):
                    await one.stop()
        await watching.__aexit__(None, None, None)

    run(steps())


def test_the_page_loads_nothing_and_runs_only_what_is_in_it() -> None:
    answer = live_page()()
    text = answer.body.decode()
    assert answer.content_type == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.fields["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"].startswith("'sha256-")
    assert policy["style-src"].startswith("'sha256-")
    assert "unsafe" not in answer.fields["Content-Security-Policy"]
    # No address but the names of namespaces, and no handler or style that the policy would forbid.
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    markup = re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"\son\w+=|\sstyle=|\ssrc=", markup)


def test_the_controller_serves_the_page() -> None:
    async def steps() -> None:
        async with controller() as one, requested(one.metrics_address, "/") as reader:
            said = await reader.read()
            assert said.startswith(b"HTTP/1.1 200 OK\r\n")
            assert live_page()().body in said

    run(steps())
