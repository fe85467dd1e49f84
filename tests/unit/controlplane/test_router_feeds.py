"""What routers get besides costs: `/query` of indexers of KV caches, and what changed since they last heard."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.config import parse
from controlplane.core import publication
from controlplane.core.ids import ChunkKey
from controlplane.core.matches import Match
from controlplane.core.publication import Journal
from controlplane.core.quotes import MATCHED_AT_ONCE
from controlplane.daemon import Controller
from controlplane.index_service import IndexQuestion, Model, index_answer, index_question
from controlplane.rpc import event_feed
from controlplane.rpc.event_feed import EventFeed
from kvchunk.ids import KvIdentity, prefix_keys
from kvdaemon.errors import ConfigError
from kvpolicy.tiers.cost_question import KEYS_MAX, KEYS_PER_S_MAX, QuestionError, TooManyQuestionsError
from kvproto.rpc import control_pb2 as rpc
from tests.contracts.switch_target.memory_target import MemorySwitch, MemoryTarget
from tests.digests import digest
from tests.unit.controlplane.fake_agent import DEADLINE_S, FakeAgent, agents
from tests.unit.controlplane.helpers import CHUNK, Scene, key, record
from tests.unit.controlplane.test_daemon import QUICK, controller, run

PREFIX = [record("a"), record("b", "a", 1), record("c", "b", 2)]
KEYS = tuple(ChunkKey(key(name)) for name in "abcd")
CHUNK_TOKENS = 16
TOKENS = list(range(3 * CHUNK_TOKENS + 5))
IDENTITY = KvIdentity("m", chunk_tokens=CHUNK_TOKENS)
MODELS = {"m": {"namespace": IDENTITY.digest().hex(), "chunk_tokens": CHUNK_TOKENS}}


# ---------------------------------------------------------------------- how much of a prompt each node has


def on_disk(chunk: rpc.ChunkRecord) -> rpc.ChunkRecord:
    made = rpc.ChunkRecord(on_disk=True)
    made.MergeFrom(chunk)
    return made


def test_tiers_count_from_the_first_chunk_on() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1, PREFIX)
    scene.attach(2, [PREFIX[0], on_disk(PREFIX[1])])
    scene.attach(3, PREFIX[1:])
    scene.attach(4, map(on_disk, PREFIX))
    found = scene.core.quotes.matches(KEYS, scene.now)
    assert found == {"n1": Match(3, 3), "n2": Match(1, 2), "n4": Match(0, 3)}
    assert scene.core.quotes.matches((), scene.now) == {}


def test_nobody_asks_without_end() -> None:
    scene = Scene(with_switch=False)
    many = tuple(ChunkKey(number.to_bytes(16, "big")) for number in range(KEYS_MAX))
    for _ in range(KEYS_PER_S_MAX // 4 // KEYS_MAX):
        scene.core.quotes.matches(many, scene.now)
    with pytest.raises(TooManyQuestionsError, match="ask again in"):
        scene.core.quotes.matches(many, scene.now)


def test_many_nodes_that_have_the_prefix_make_a_question_dearer() -> None:
    scene = Scene(with_switch=False)
    for number in range(1, 1 + MATCHED_AT_ONCE):
        scene.attach(number, PREFIX)
    asked = (*KEYS[:1], *(ChunkKey(number.to_bytes(16, "big")) for number in range(KEYS_MAX - 1)))
    for _ in range(KEYS_PER_S_MAX // 4 // KEYS_MAX // 2):
        scene.core.quotes.matches(asked, scene.now)
    with pytest.raises(TooManyQuestionsError):
        scene.core.quotes.matches(asked, scene.now)


def test_a_question_names_a_model_or_a_namespace() -> None:
    models = {"m": Model(IDENTITY.digest().hex(), CHUNK_TOKENS)}
    keys = tuple(prefix_keys(IDENTITY, TOKENS))
    assert len(keys) == 3
    for asked in (
        {"model_name": "m", "token_ids": TOKENS, "tenant_id": "t", "lora_name": None},
        {"model_name": "other", "token_ids": TOKENS, "namespace": IDENTITY.digest().hex(), "chunk_tokens": 16},
    ):
        assert index_question(json.dumps(asked).encode(), models) == IndexQuestion(keys, CHUNK_TOKENS)
    short = json.dumps({"model_name": "m", "token_ids": TOKENS[:5]}).encode()
    assert index_question(short, models) == IndexQuestion((), CHUNK_TOKENS)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"[]", 'send {"model_name"'),
        (b'{"model_name": "m"}', 'send {"model_name"'),
        (b'{"model_name": "x", "token_ids": [1]}', "no model is called 'x'"),
        (b'{"namespace": 5, "chunk_tokens": 1, "token_ids": [1]}', "namespace"),
        (b'{"namespace": "00", "chunk_tokens": true, "token_ids": [1]}', "namespace"),
        (b'{"model_name": "m", "token_ids": [' + b"-1," * 20 + b"1]}", "tokens"),
        (b'{"model_name": "m", "token_ids": [' + b"1," * (16 * (KEYS_MAX + 1)) + b"1]}", "chunks: 1 to 2048"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_one_line(body: bytes | None, words: str) -> None:
    with pytest.raises(QuestionError) as caught:
        index_question(body, {"m": Model(IDENTITY.digest().hex(), CHUNK_TOKENS)})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_answer_is_in_tokens_each_tier_with_those_above_it() -> None:
    answer = index_answer(IndexQuestion(KEYS, 16), {"n1": Match(2, 3)})
    tiers = {"longest_matched": 48, "gpu": 0, "dp": {"0": 0}, "cpu": 32, "disk": 48}
    assert answer == {"scores": {}, "frequencies": [], "instances": {"n1": tiers}}


def test_models_are_checked() -> None:
    assert parse({"models": MODELS}, Path()).models == {"m": Model(IDENTITY.digest().hex(), CHUNK_TOKENS)}
    for wrong in ({"namespace": "00", "chunk_tokens": 1}, {"namespace": "0" * 64}):
        with pytest.raises(ConfigError, match=r"models\.m"):
            parse({"models": {"m": wrong}}, Path())


def test_over_http() -> None:
    keys = prefix_keys(IDENTITY, TOKENS)
    chunks = [
        rpc.ChunkRecord(key=one, parent=keys[at - 1] if at else b"", size_bytes=CHUNK, digest=digest(at), position=at)
        for at, one in enumerate(keys)
    ]

    async def steps() -> None:
        async with controller(models=MODELS) as one, agents(one.grpc_address, chunks, chunks[:1]) as (_, second):
            await second.until(lambda: len(second.entries) == 3, "all chunks")

            def post(body: object) -> Any:
                url = f"http://{one.metrics_address}/query"
                with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as reply:
                    return json.load(reply)

            found = await asyncio.to_thread(post, {"model_name": "m", "token_ids": TOKENS})
            assert {name: tiers["cpu"] for name, tiers in found["instances"].items()} == {"n1": 48, "n2": 16}
            with pytest.raises(urllib.error.HTTPError) as wrong:
                await asyncio.to_thread(post, {"model_name": "x", "token_ids": TOKENS})
            assert (wrong.value.code, wrong.value.read()[:24]) == (400, b"no model is called 'x': ")

    run(steps())


# ---------------------------------------------------------------------- the journal


@given(
    published=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=20),
    room=st.integers(1, 30),
    since=st.integers(-1, 22),
)
@settings(max_examples=200, deadline=None)
def test_a_journal_tells_all_that_changed_since_or_that_it_cannot(
    published: list[list[int]], room: int, since: int
) -> None:
    before, publication.CHANGES_MAX = publication.CHANGES_MAX, room  # type: ignore[misc]
    try:
        made = Journal()
        for keys in published:
            made.note([ChunkKey(bytes([one]) * 16) for one in keys])
        told = made.since(since)
    finally:
        publication.CHANGES_MAX = before  # type: ignore[misc]
    assert made.sequence == len(published)
    changes = [ChunkKey(bytes([one]) * 16) for keys in published[max(since, 0) :] for one in keys]
    if not 0 <= since <= len(published):
        assert told is None
    elif told is None:
        assert sum(map(len, published[since:])) > room, "it could have"
    else:
        assert sorted(told) == sorted(set(changes))
        assert told == sorted(told, key=lambda one: len(changes) - changes[::-1].index(one))


# ---------------------------------------------------------------------- events


@dataclass(slots=True)
class Router:
    """What a router knows, and up to where."""

    chunks: dict[str, dict[str, Any]] = field(default_factory=dict)
    known: str = ""
    snapshots: int = 0
    told: int = 0
    """Chunks, all events together."""
    standby: str = ""

    def take(self, event: dict[str, str]) -> None:
        match event.get("event"):
            case "snapshot":
                self.chunks.clear()
                self.snapshots += 1
            case "chunks":
                said, self.known = json.loads(event["data"]), ""
                self.chunks |= {one["key"]: one for one in said["chunks"]}
                self.told += len(said["chunks"])
                for gone in said["gone"]:
                    self.chunks.pop(gone, None)
            case "known":
                self.known = event["id"]
            case "standby":
                self.standby = json.loads(event["data"])

    def holders(self, name: str) -> list[str]:
        one = self.chunks.get(key(name).hex())
        return one["memory"] if one is not None else []


@asynccontextmanager
async def following(address: str, router: Router, head: str = "", query: str = "") -> AsyncIterator[asyncio.Task[None]]:
    """Read the events; the task ends with the stream."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /v1/events{query} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())

    async def read() -> None:
        assert b" 200 " in (await reader.readuntil(b"\r\n\r\n"))
        while True:
            try:
                event = (await reader.readuntil(b"\n\n")).decode()
            except asyncio.IncompleteReadError:
                return
            if event != ":\n\n":
                router.take(dict(line.split(": ", 1) for line in event.strip().splitlines()))

    task = asyncio.create_task(read())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_router_that_comes_late_hears_what_it_missed_and_no_more() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, []) as (first, second):
            await second.until(lambda: len(second.entries) == 3, "all chunks")
            router = Router()
            async with following(one.metrics_address, router):
                await until(lambda: router.known and router.holders("c") == ["n1"])
                assert router.snapshots == 1
                assert router.chunks[key("b").hex()] == {
                    "key": key("b").hex(),
                    "parent": key("a").hex(),
                    "position": 1,
                    "bytes": CHUNK,
                    "memory": ["n1"],
                    "disk": [],
                    "switch": False,
                }
                second.announce(PREFIX[0])
                await until(lambda: router.holders("a") == ["n1", "n2"] and router.known)
            second.announce(record("z"))
            first.say(announce=rpc.Announce(removed=[key("c")]))
            await second.until(lambda: key("z") in second.entries and key("c") not in second.entries, "the changes")
            for head, query in (("", f"?since={router.known}"), (f"Last-Event-ID: {router.known}\r\n", "?since=x:1")):
                late = Router(dict(router.chunks))
                async with following(one.metrics_address, late, head, query):
                    await until(lambda late=late: late.holders("z") == ["n2"] and not late.holders("c"))
                    await until(lambda late=late: late.known)
                assert (late.snapshots, late.told) == (0, 1)
                assert late.holders("a") == ["n1", "n2"]

    run(steps())


@pytest.mark.parametrize("since", ["", "1:5", "x", "{}:99999", "{}:-1", "{}:" + "9" * 5000])
def test_who_knows_nothing_that_counts_hears_everything(since: str) -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX) as (first,):
            await first.until(lambda: len(first.entries) == 3, "all chunks")
            router, mine = Router({"old": {}}), since.replace("{}", str(one.core.options.incarnation))
            async with following(one.metrics_address, router, query=f"?since={mine}"):
                await until(lambda: router.known)
            assert router.snapshots == 1
            assert router.chunks.keys() == {key(name).hex() for name in "abc"}

    run(steps())


def test_a_stream_in_which_nothing_happens_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "LOOK_S", 0.001)
    monkeypatch.setattr(event_feed, "HEARTBEAT_S", 0.002)

    async def steps() -> None:
        events = EventFeed(Scene(with_switch=False).core, lambda: "").events({})
        told = [await anext(events) for _ in range(5)]
        assert [one.split(b"\n")[0] for one in told[:2]] == [b"retry: 1000", b"event: snapshot"]
        assert told[2].startswith(b"id: ")
        assert told[3:] == [b":\n\n"] * 2
        await events.aclose()

    run(steps())


def test_a_node_that_goes_takes_its_copies_with_it() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX[:1]):
            router = Router()
            async with following(one.metrics_address, router):
                async with FakeAgent(one.grpc_address, 2, PREFIX) as mortal:
                    await mortal.attached()
                    await until(lambda: router.holders("a") == ["n1", "n2"])
                await until(lambda: router.holders("a") == ["n1"] and key("c").hex() not in router.chunks)

    run(steps())


def test_on_standby_a_controller_says_so_and_ends_the_stream() -> None:
    async def steps() -> None:
        switch = MemorySwitch()
        async with controller(switch):
            standby = Controller(parse(QUICK, Path()), MemoryTarget(switch, election_id=5))
            await standby.start()
            try:
                router = Router()
                async with following(standby.metrics_address, router) as stream, asyncio.timeout(DEADLINE_S):
                    await stream
                assert router.standby == standby.standby_words() != ""
            finally:
                await standby.stop()

    run(steps())
