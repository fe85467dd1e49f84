"""What it would take each node: as the directory and the nodes' queues have it, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest

from controlplane.core.core import Core
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.cost_question import KEYS_PER_S_MAX, CostQuestion, Part, QuestionError, TooManyQuestionsError
from kvpolicy.tiers.gate import priors
from kvpolicy.value import Tier
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.fake_agent import agents
from tests.unit.controlplane.helpers import CHUNK, Scene, key, record
from tests.unit.controlplane.test_daemon import controller, operator, run

PREFIX = [record("a"), record("b", "a", 1), record("c", "b", 2)]
KEYS = tuple(ChunkKey(key(name)) for name in "abcd")


def quotes(core: Core, now_ns: int, **changes: object) -> dict[str, dict[str, int]]:
    """By node: chunks of each part that has some."""
    question = CostQuestion(KEYS, **{"recompute_s": 60.0, **changes})  # type: ignore[arg-type]
    return {
        node: {name: part.chunks for name, part in quote.parts.items() if part.chunks}
        for node, quote in core.quotes.of(question, now_ns).items()
    }


def test_each_node_by_what_it_has() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1, PREFIX)
    scene.attach(2, PREFIX[:1])
    scene.attach(3)
    assert quotes(scene.core, scene.now) == {
        "n1": {"local": 3, "compute": 1},
        "n2": {"local": 1, "remote": 2, "compute": 1},
        "n3": {"remote": 3, "compute": 1},
    }
    assert quotes(scene.core, scene.now, nodes=("n2",)).keys() == {"n2"}
    with pytest.raises(QuestionError, match="no node is called 'n9'"):
        quotes(scene.core, scene.now, nodes=("n9",))


def test_a_holders_queue_counts() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1, PREFIX)
    scene.attach(2)
    question = CostQuestion(KEYS[:3])
    idle = scene.core.quotes.of(question, scene.now)["n2"]
    scene.say(1, load=rpc.HolderLoad(queued_bytes=10 * CHUNK, readers=4))
    busy = scene.core.quotes.of(question, scene.now)["n2"]
    assert idle.wait_s == 0.0
    assert busy.wait_s > 0.0
    assert busy.fetch_s == pytest.approx(idle.fetch_s + busy.wait_s)
    assert busy.parts["remote"] == Part(3, 3 * CHUNK)


def test_what_nobody_has_measured_costs_what_the_nodes_link_can_do() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1, PREFIX)
    for number, rate_bit_s in ((2, 100_000_000), (3, 100_000_000_000), (4, 0)):
        scene.attach(number, link_rate=rate_bit_s)
    question = CostQuestion(KEYS[:3])
    found = scene.core.quotes.of(question, scene.now)
    assert found["n2"].fetch_s == pytest.approx(priors(100_000_000)[Tier.REMOTE_DRAM].of(3 * CHUNK))
    assert found["n3"].fetch_s < found["n4"].fetch_s < found["n2"].fetch_s
    # What has been measured counts for all of them.
    scene.core.values.costs.measured(Tier.REMOTE_DRAM, 10**9, 1.0)
    assert (
        len({quote.fetch_s for node, quote in scene.core.quotes.of(question, scene.now).items() if node != "n1"}) == 1
    )


def test_nobody_asks_without_end() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1, PREFIX)
    many = CostQuestion(tuple(ChunkKey(number.to_bytes(16, "big")) for number in range(2000)))
    for _ in range(KEYS_PER_S_MAX // 4 // 2000):
        scene.core.quotes.of(many, scene.now)
    with pytest.raises(TooManyQuestionsError, match="ask again in"):
        scene.core.quotes.of(many, scene.now)


ROUTER = Path(__file__).parents[3] / "examples" / "route_in_time.py"


def test_over_http_and_grpc() -> None:
    async def steps() -> None:
        async with controller() as one, agents(one.grpc_address, PREFIX, []) as (_, second):
            await second.until(lambda: len(second.entries) == 3, "all chunks")
            asked = {"keys": [one_key.hex() for one_key in KEYS], "recompute_s": 60.0}

            def post(body: object) -> dict[str, object]:
                url = f"http://{one.metrics_address}/v1/cost"
                with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as reply:
                    answer: dict[str, object] = json.load(reply)
                return answer

            over_http = (await asyncio.to_thread(post, asked))["nodes"]
            assert isinstance(over_http, dict)
            assert over_http["n1"]["parts"]["local"]["chunks"] == 3
            with pytest.raises(urllib.error.HTTPError) as wrong:
                await asyncio.to_thread(post, {"keys": []})
            assert (wrong.value.code, wrong.value.read()) == (400, b"0 chunks: 1 to 2048 can be asked for at a time\n")
            assert "within" not in await asyncio.to_thread(post, asked)
            known = {**asked, "keys": [one_key.hex() for one_key in KEYS[:3]]}
            found = (await asyncio.to_thread(post, {**known, "within_s": 0.0}))["within"]
            assert isinstance(found, dict)
            assert (found["send_to"], found["refuse"]) == ("n1", "")
            busy = {**known, "queue_s": {"n1": 3.0, "n2": 2.0}, "within_s": 1.5}
            found = (await asyncio.to_thread(post, busy))["within"]
            assert isinstance(found, dict)
            assert found["send_to"] is None
            assert found["refuse"] == "no node in time: n2 would be 0.500 s late"
            assert found["nodes"]["n1"] == {"meets": False, "late_s": 1.5}
            words = [sys.executable, str(ROUTER), f"http://{one.metrics_address}", "--recompute", "60"]
            keys = [one_key.hex() for one_key in KEYS]
            for named, said in (
                (keys[:3], "send it to n1\n"),
                (keys, "refuse: no node in time: n1 would be 14.000 s late\n"),
            ):
                ran = await asyncio.to_thread(
                    subprocess.run, [*words, "--within", "1", *named], capture_output=True, text=True, check=True
                )
                assert ran.stdout == said
            async with operator(one.grpc_address) as stub:
                judged = await stub.Cost(rpc.CostRequest(keys=KEYS[:3], recompute_s=60.0, queue_s=2.0, within_s=1.5))
                assert (judged.HasField("send_to"), judged.nodes["n1"].late_s) == (False, 0.5)
                assert judged.refuse == "no node in time: n1 would be 0.500 s late"
                judged = await stub.Cost(rpc.CostRequest(keys=KEYS[:3], recompute_s=60.0, within_s=1.5))
                assert (judged.send_to, judged.refuse, judged.nodes["n1"].late_s) == ("n1", "", 0.0)
                reply = await stub.Cost(rpc.CostRequest(keys=KEYS, recompute_s=60.0))
                assert reply.nodes["n2"].parts["remote"].chunks == 3
                assert reply.nodes["n2"].seconds == pytest.approx(over_http["n2"]["seconds"])
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.Cost(rpc.CostRequest(keys=[b"x"]))
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(steps())
