"""`/v1/cost` of an agent, over HTTP: what its own node would need."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from hostagent.agent import Agent
from tests.unit.hostagent.agent_harness import cluster, key

CHUNK_BYTES = 1 << 16


def ask(agent: Agent, body: object) -> dict[str, Any]:
    host, port = agent.http_address
    request = urllib.request.Request(f"http://{host}:{port}/v1/cost", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def test_an_agent_tells_what_its_node_has_and_what_is_elsewhere() -> None:
    with cluster(2) as made:
        one, two = made.agents
        client = made.client(0)
        for number, parent in ((1, None), (2, key(1))):
            client.put(key(number), parent, bytes(CHUNK_BYTES))
        made.publish(1, 0)
        made.publish(2, 0, parent=1)
        asked = {"keys": [key(number).hex() for number in (1, 2, 3)], "recompute_s": 30.0}
        here, there = ask(one, asked), ask(two, asked)
        assert here["chunks"] == 3
        assert here["nodes"]["n0"]["parts"]["local"] == {"chunks": 2, "bytes": 0}
        assert here["nodes"]["n0"]["seconds"] == pytest.approx(10.0)
        assert there["nodes"]["n1"]["parts"]["remote"] == {"chunks": 2, "bytes": 2 * CHUNK_BYTES}
        assert there["nodes"]["n1"]["parts"]["compute"]["chunks"] == 1
        host, port = one.http_address
        with urllib.request.urlopen(f"http://{host}:{port}/v1/cost?keys={key(1).hex()}", timeout=10) as reply:
            assert json.load(reply)["nodes"]["n0"]["seconds"] == 0.0
        for wrong, said in (({"keys": ["x"]}, "is not 32 hex"), ({**asked, "nodes": ["n1"]}, "ask the controller")):
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(one, wrong)
            assert caught.value.code == 400
            assert said in caught.value.read().decode()
