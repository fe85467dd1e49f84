"""Cells: a controller takes nodes of its own, and says of prefixes of others whom to ask."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from controlplane.config import parse
from kvchunk.ids import ChunkKey
from kvdaemon.errors import ConfigError
from kvproto.cells import Cell, Cells, home_of
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.fake_agent import DEADLINE_S, FakeAgent, agents
from tests.unit.controlplane.helpers import key, record
from tests.unit.controlplane.test_daemon import controller, operator, run

SECTION = {"east": {"weight": 2}, "west": {"controllers": ["w1:4800", "w2:4800"]}}
WEIGHTS = {"east": 2.0, "west": 1.0}
HERE = next(name for name in map(str, range(100)) if home_of(key(name), WEIGHTS) == "east")
THERE = next(name for name in map(str, range(100)) if home_of(key(name), WEIGHTS) == "west")
WEST = {"cell": "west", "controllers": ["w1:4800", "w2:4800"]}


def test_the_section_is_read() -> None:
    assert parse({"cell": "east", "cells": SECTION}, Path()).core.cells == Cells(
        "east", {"east": Cell("east", 2.0), "west": Cell("west", 1.0, ("w1:4800", "w2:4800"))}
    )
    assert parse({}, Path()).core.cells == Cells()
    assert parse({"cell": "east"}, Path()).core.cells == Cells("east")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cells": SECTION}, "cell: '' is not among cells"),
        ({"cell": "south", "cells": SECTION}, "cell: 'south' is not among cells"),
        ({"cell": "east", "cells": {"east": {}, "west": {}}}, "cells.west.controllers is missing"),
        ({"cell": "east", "cells": {"east": {"weight": -1}}}, "cells.east.weight"),
        ({"cell": "east", "cells": {"east": {"weight": 0}}}, "none of them weighs anything"),
        ({"cell": "east", "cells": {"east": {}, "we st": {"controllers": ["w:1"]}}}, "'we st' is not a name"),
        ({"cell": "east", "cells": {"east": {"controllers": "w:1"}}}, "not a list of HOST:PORT"),
        ({"cell": "east", "cells": {"east": {"wait": 1}}}, "cells.east.wait"),
        ({"cell": "east", "cells": {f"c{number}": {"controllers": ["w:1"]} for number in range(1100)}}, "1024 at most"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_key(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(settings, Path())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_node_of_another_cell_is_refused_and_told_where_to_go() -> None:
    async def steps() -> None:
        async with controller(cell="east", cells=SECTION) as one:
            for cell in ("", "east"):
                async with FakeAgent(one.grpc_address, 1, cell=cell) as agent:
                    await agent.attached()
            async with FakeAgent(one.grpc_address, 2, cell="west") as stranger:
                await asyncio.wait_for(stranger.ended.wait(), DEADLINE_S)
                assert stranger.error is not None
                assert "name w1:4800, w2:4800 in controller.address" in (stranger.error.details() or "")

    run(steps())


def test_answers_name_the_controllers_of_the_cell_that_a_prefix_belongs_to() -> None:
    async def steps() -> None:
        chunks = [record(HERE), record(THERE)]
        async with controller(cell="east", cells=SECTION) as one, agents(one.grpc_address, chunks) as (agent,):
            await agent.until(lambda: len(agent.entries) == 2, "both chunks")

            def cost(asked: str) -> Any:
                url = f"http://{one.metrics_address}/v1/cost?keys={key(asked).hex()}&recompute_s=1"
                with urllib.request.urlopen(url, timeout=10) as reply:
                    return json.load(reply)

            here, there = [await asyncio.to_thread(cost, asked) for asked in (HERE, THERE)]
            assert "elsewhere" not in here
            assert there["elsewhere"] == WEST
            assert there["nodes"]["n1"]["parts"]["local"]["chunks"] == 1, "what is here all the same may be used"
            async with operator(one.grpc_address) as stub:
                reply = await stub.Cost(rpc.CostRequest(keys=[key(THERE)], recompute_s=1.0))
                assert {"cell": reply.elsewhere.cell, "controllers": list(reply.elsewhere.controllers)} == WEST
                assert not (await stub.Cost(rpc.CostRequest(keys=[key(HERE)], recompute_s=1.0))).HasField("elsewhere")

    run(steps())


def test_indexers_answers_name_them_too() -> None:
    async def steps() -> None:
        async with controller(cell="east", cells=SECTION) as one:
            digest = "00" * 32
            found = set()
            for first in range(20):
                asked = {"namespace": digest, "chunk_tokens": 1, "token_ids": [first]}
                url = f"http://{one.metrics_address}/query"

                def post(url: str = url, asked: object = asked) -> Any:
                    with urllib.request.urlopen(url, json.dumps(asked).encode(), timeout=10) as reply:
                        return json.load(reply)

                found.add(json.dumps((await asyncio.to_thread(post)).get("elsewhere")))
            assert found == {"null", json.dumps(WEST)}

    run(steps())


def test_without_cells_every_prefix_belongs_here() -> None:
    async def steps() -> None:
        async with controller() as one:
            assert one.core.quotes.elsewhere([ChunkKey(bytes(16))]) is None

    run(steps())
