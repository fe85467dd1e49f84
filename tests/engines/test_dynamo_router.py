"""Dynamo's frontend and KV router with two workers, told by agents what nodes hold; docs/how-to/dynamo.md as it is.

Real: the frontend, its router, workers on Dynamo's runtime, without etcd and NATS; agents, controller and switch. The
workers are those of the page: what they compute is of no use, and where it is is their agents' matter.
"""

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dynamo.llm")

from bmv2_testbed import client
from kvchunk.ids import ChunkKey, KvIdentity, prefix_keys
from kvclient.client import AgentClient, Where
from tests.engines import pool
from tests.engines.followed import Running, blocks_of, on_this_machine, said
from tests.engines.pool import agent_socket
from tests.ports import free_port
from tests.waiting import until

WORKER, ENVIRONMENT, START_WORKER, START_FRONTEND, ASK = blocks_of("dynamo.md", __name__)
CHUNK_TOKENS = 64
CHUNKS = 8
WORDS = 4096
START_S = 300.0
ASK_S = 60.0
SURE = 24
"""Answers that have to be the same: a router that knows of no difference chooses by chance."""
HOSTS = (0, 1)
AT_ONCE = {"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0", "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": "0"}
"""Parts that are told to stop wait for nobody."""


def write_model(folder: Path) -> Path:
    """What Dynamo reads of a model: its configuration, and a tokenizer of the words w0, w1, ..."""
    folder.mkdir()
    words = {"type": "WordLevel", "vocab": {f"w{number}": number for number in range(WORDS)}, "unk_token": "w0"}
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": words}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": WORDS, "eos_token_id": 1}))
    return folder


class Cluster:
    """The frontend and its workers, one on each node."""

    def __init__(self, folder: Path, testbed: client.Testbed, stack: ExitStack) -> None:
        self.model = write_model(folder / "model")
        self.testbed = testbed
        self._port = free_port()
        self._folder = folder
        (folder / "worker.py").write_text(WORKER)
        around = on_this_machine(ENVIRONMENT, {"/tmp/dynamo": str(folder / "discovery")})
        commands = {
            f"worker{host}": on_this_machine(
                START_WORKER, {"MODEL": str(self.model), "/run/kvcast/agent.sock": agent_socket(testbed, host)}
            )
            for host in HOSTS
        }
        commands["frontend"] = on_this_machine(START_FRONTEND, {"8000": str(self._port)})
        self._parts = [
            stack.enter_context(Running(name, command, folder, before=around, **AT_ONCE))
            for name, command in commands.items()
        ]
        self.workers = self._meet()

    def _meet(self) -> list[int]:
        """The worker of each node: who is asked for a prompt has it on its node."""
        found: dict[int, int] = {}
        prompts = (prompt_of(number) for number in range(100, WORDS))

        def met_both() -> bool:
            ended = [part for part in self._parts if part.ended]
            assert not ended, ended[0].said
            prompt = next(prompts)
            try:
                worker = self.ask(prompt)["worker"]
            except (urllib.error.HTTPError, OSError):
                return False  # it is not there yet, or knows no worker yet
            if worker not in found.values():
                (host,) = (host for host in HOSTS if self.places(host, prompt) == [Where.LOCAL] * CHUNKS)
                found[host] = worker
            return len(found) == len(HOSTS)

        until(met_both, lambda: "\n".join(part.said for part in self._parts), START_S)
        return [found[host] for host in HOSTS]

    def ask_as_the_page(self) -> dict[str, Any]:
        """What the page's question is answered with."""
        command = on_this_machine(ASK, {"MODEL": str(self.model), ":8000": f":{self._port}"})
        answer: dict[str, Any] = json.loads(said(command, self._folder))
        return answer

    def ask(self, prompt: Sequence[int], **hints: Any) -> dict[str, Any]:
        """Who answers, and how many chunks of the prompt its engine found."""
        nvext = {"extra_fields": ["worker_id"], **hints}
        question = {"model": str(self.model), "prompt": list(prompt), "max_tokens": 1, "nvext": nvext}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/completions",
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ASK_S) as stream:
            answer = json.load(stream)
        return {
            "worker": answer["nvext"]["worker_id"]["decode_worker_id"],
            "found": answer["choices"][0]["text"].strip(),
        }

    def await_chosen(self, prompt: Sequence[int], host: int) -> None:
        """Wait until the router would send a prompt to a node, whoever else is idle."""

        def is_chosen() -> bool:
            chosen = {self.ask(prompt, annotations=["query_instance_id:"])["worker"] for _ in range(SURE)}
            return chosen == {self.workers[host]}

        until(is_chosen, f"the router sends it to node {host}")

    def keys(self, prompt: Sequence[int]) -> list[ChunkKey]:
        return prefix_keys(KvIdentity(model=str(self.model), chunk_tokens=CHUNK_TOKENS), prompt)

    def agent(self, host: int) -> AgentClient:
        return AgentClient(agent_socket(self.testbed, host))

    def places(self, host: int, prompt: Sequence[int]) -> list[Where]:
        with self.agent(host) as agent:
            return agent.contains(self.keys(prompt))

    def bring(self, host: int, prompt: Sequence[int]) -> None:
        """As a cast, a push or another engine of the node."""
        until(lambda: Where.NOWHERE not in self.places(host, prompt), "the node knows where it is")
        with self.agent(host) as agent, agent.fetch(self.keys(prompt), deadline_s=ASK_S) as got:
            assert got.count == CHUNKS

    def take(self, host: int, prompt: Sequence[int], chunks: int = CHUNKS) -> None:
        """As eviction: the last chunks of a prompt leave the node."""
        with self.agent(host) as agent:
            assert all(agent.drop(self.keys(prompt)[-chunks:]))


def prompt_of(number: int) -> list[int]:
    return [number] * (CHUNKS * CHUNK_TOKENS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="kvcast-dynamo-") as folder, ExitStack() as stack:
        testbed = stack.enter_context(pool.running(len(HOSTS), 64 * 2**20))
        yield Cluster(Path(folder), testbed, stack)


def test_the_page_works_as_it_stands(cluster: Cluster) -> None:
    first = cluster.ask_as_the_page()
    assert first["choices"][0]["text"].strip() == "w0", "nobody had it"
    again: dict[str, Any] = {}

    def is_found() -> bool:
        again.update(cluster.ask_as_the_page())
        return bool(again["choices"][0]["text"].strip() == f"w{200 // CHUNK_TOKENS}")

    until(is_found, "all whole chunks of it are there")
    assert again["nvext"]["worker_id"] == first["nvext"]["worker_id"]


def test_requests_follow_what_agents_have_though_engines_did_nothing(cluster: Cluster) -> None:
    prompt = prompt_of(7)
    assert cluster.ask(prompt, backend_instance_id=cluster.workers[0])["found"] == "w0"
    cluster.await_chosen(prompt, 0)
    until(lambda: cluster.places(1, prompt) == [Where.REMOTE] * CHUNKS, "the other node knows where it is")
    assert cluster.ask(prompt, backend_instance_id=cluster.workers[1])["found"] == f"w{CHUNKS}", "over the pool"
    cluster.take(0, prompt)
    cluster.await_chosen(prompt, 1)
    cluster.bring(0, prompt)
    cluster.take(1, prompt, chunks=CHUNKS // 2)
    cluster.await_chosen(prompt, 0)


def test_a_worker_without_its_agent_is_chosen_no_more(cluster: Cluster) -> None:
    prompt = prompt_of(8)
    for worker in cluster.workers:
        cluster.ask(prompt, backend_instance_id=worker)
    cluster.take(1, prompt, chunks=1)
    cluster.await_chosen(prompt, 0)
    cluster.testbed.kill("agent0")
    cluster.await_chosen(prompt, 1)
