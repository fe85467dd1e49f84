"""A process with open clients forks: the child hears at once whose they are, and the parent's session goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.hostagent.agent_harness import Cluster, cluster

ROOT = Path(__file__).parents[3]
FORKS = """
import asyncio, contextlib, gc, json, logging, os, signal, sys
import numpy as np
from kvclient import AgentClient, AgentUnavailableError, LeaseLostError
from kvclient.asynchronous import AsyncAgentClient
from kvclient.client import ChunkToPut
from kvclient.engines.link import AgentLink
from kvclient.engines.store import ChunkStore
from kvclient.forks import Threads
from kvclient.polled_client import PolledClient

path, local = sys.argv[1], sys.argv[2] == "catalog"
key = lambda number: number.to_bytes(16, "big")
signal.alarm(60)  # a call that hangs fails the test in this time

def outcome(call):
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

async def awaited(make):
    return await make()

async def main():
    # The first two connections get a table of leases.
    agent = AgentClient(path) if local else None
    polled = PolledClient(path)
    looped = await AsyncAgentClient.connected(path)
    agent = agent or AgentClient(path)
    assert (agent._reads._local is not None) is local and (looped._reads._local is None) is local
    agent.drop([key(number) for number in (1, 2, 3)])
    for number in (1, 2):
        agent.put(key(number), None, bytes([number]) * 70_000)
    log = logging.getLogger("child")
    store = ChunkStore(AgentLink(AgentClient, path, log), log, namespace="", deadline_s=1.0)
    threads = Threads(1, "copies")
    threads.submit(int).result()
    held = agent.fetch([key(1)], deadline_s=5)
    found = agent.fetch([key(1)], any_order=True, deadline_s=5)
    stream = agent.fetch_stream([key(1), key(2)], deadline_s=5)
    assert len(list(stream)) == 2
    polled_lease = polled.lease_here([key(2)])
    looped_lease = await looped.fetch([key(2)], deadline_s=5)
    assert agent.pin([key(1)]) == [True]
    slot = agent.reserve(key(3), None, 70_000)
    slot.view[:] = bytes([3]) * 70_000
    warnings = []
    log.warning = lambda text, *args: warnings.append(text % args)
    # Another thread of the parent may have each of these at the moment of the fork.
    owners = (agent._reads._local, agent._lone, agent._region, looped._reads._local, looped._region, polled._local)
    locks = [one._lock for one in (*owners, agent._connection, store._link) if one is not None]
    locks += [agent._connection._send_lock, agent._connection._ended_lock]
    said_fd, say_fd = os.pipe()
    with contextlib.ExitStack() as taken:
        for lock in locks:
            taken.enter_context(lock)
        child = os.fork()
    if not child:
        # What an event loop awaits raises before it waits for anything: one step of each is enough.
        step = lambda coroutine: coroutine.send(None)
        said = {
            "fetch": outcome(lambda: agent.fetch([key(1)], deadline_s=1)),
            "any order": outcome(lambda: agent.fetch([key(1)], any_order=True, deadline_s=1)),
            "stream": outcome(lambda: agent.fetch_stream([key(1)], deadline_s=1)),
            "here": outcome(lambda: agent.fetch_local([key(1)])),
            "put": outcome(lambda: agent.put(key(4), None, b"x")),
            "put each": outcome(lambda: agent.put_each([ChunkToPut(key(4), None, 1, lambda view: None)])),
            "contains": outcome(lambda: agent.contains([key(1)])),
            "claim": outcome(lambda: agent.claim([key(5)], 100, [1.0])),
            "commit": outcome(slot.commit),
            "check": outcome(held.check),
            "release": outcome(held.release),
            "release found": outcome(found.release),
            "release stream": outcome(stream.release),
            "looped fetch": outcome(lambda: step(looped.fetch([key(1)], deadline_s=1))),
            "looped put": outcome(lambda: step(looped.put(key(4), None, b"x"))),
            "looped release": outcome(looped_lease.release),
            "polled contains": outcome(lambda: polled.contains([key(1)])),
            "polled poll": outcome(polled.poll),
            "polled here": outcome(lambda: polled.lease_here([key(1)])),
            "polled release": outcome(polled_lease.release) if polled_lease is not None else None,
            "threads": outcome(lambda: threads.submit(int)),
            "store": outcome(lambda: store.load([key(1)], [[np.zeros(70_000, np.uint8)]])),
            "warnings": warnings,
        }
        slot.abort()
        for client in (agent, looped, polled, store):
            client.close()
        del agent, looped, polled, store, held, found, stream, slot, locks, looped_lease, polled_lease
        gc.collect()
        os.write(say_fd, json.dumps(said).encode())
        os._exit(0)
    os.close(say_fd)
    said = b""
    while part := os.read(said_fd, 65536):
        said += part
    assert os.waitpid(child, 0)[1] == 0
    # The parent has all that it had.
    for one in (held, found, stream, looped_lease):
        one.check()
    assert bytes(held.views[0]) == bytes([1]) * 70_000
    for one in (held, found, stream, looped_lease, *filter(None, [polled_lease])):
        one.release()
    slot.commit()
    assert agent.unpin([key(1)]) == [True]
    for number in (1, 2, 3):
        with agent.fetch([key(number)], deadline_s=5) as got:
            assert bytes(got.views[0]) == bytes([number]) * 70_000
        with await looped.fetch([key(number)], deadline_s=5) as got:
            assert bytes(got.views[0]) == bytes([number]) * 70_000
    assert polled.contains([key(1)]) and polled.poll(5)
    assert store.exists([key(1)]) == [True]
    assert threads.submit(int).result() == 0 and not warnings
    for client in (agent, looped, polled, store):
        client.close()
    print(said.decode())

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with cluster(1) as made:
        yield made


@pytest.mark.parametrize("reads", ["catalog", "agent"])
def test_a_child_hears_whose_the_clients_are_and_the_parent_goes_on(one: Cluster, reads: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKS, one.agents[0].config.api_socket, reads],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    (warning,) = said.pop("warnings")
    assert "forked" in warning and "runs without the pool here" in warning
    assert said.pop("store") == "[False]"
    assert said.pop("here") == said.pop("polled here") == "None"
    for what in ("check", "release", "release found", "release stream", "looped release", "polled release"):
        told = said.pop(what)
        assert told.startswith("LeaseLostError: ") and "forked" in told, what
    for what, told in said.items():
        assert told.startswith("AgentUnavailableError: ") and "connect in the process that uses the pool" in told, what


SHARED = """
import multiprocessing, sys
from kvclient import AgentClient, AgentUnavailableError

def fetch(agent, answers):
    try:
        answers.put(bytes(agent.fetch([bytes(15) + b"f"], deadline_s=1).views[0][:1]).hex())
    except AgentUnavailableError as error:
        answers.put(str(error))

fork = multiprocessing.get_context("fork")
with AgentClient(sys.argv[1]) as agent:
    agent.put(bytes(15) + b"f", None, b"x" * 100)
    answers = fork.SimpleQueue()
    children = [fork.Process(target=fetch, args=(agent, answers)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        print(answers.get())
        child.join()
    with agent.fetch([bytes(15) + b"f"], deadline_s=1) as got:
        assert bytes(got.views[0]) == b"x" * 100
"""


def test_workers_of_multiprocessing_hear_the_remedy(one: Cluster) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SHARED, one.agents[0].config.api_socket], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 4 and all("spawn" in line for line in lines)
