"""One tenant's engines against those of another tenant on the same node."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvclient import ChunkKey, KvIdentity, Status, prefix_keys
from kvclient.client import AgentClient, PutOutcome, Where
from tests.security.agent_under_attack import ROOT, AttackedAgent, attacked_agent
from tests.unit.hostagent.agent_harness import MIB, key

pytestmark = [pytest.mark.security, pytest.mark.root]

LIAR, PACED = 12_345, 12_346
"""Users of no names; the tests themselves are root's engines."""

_AS_SOMEBODY = """
import os, sys
from kvclient import messages
from kvclient.attach import attach
from kvclient.client import AgentClient, AgentUnavailableError, PoolFullError
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
path = sys.argv[1]

def key(number):
    return number.to_bytes(16, "big")

def say(text):
    print(text, flush=True)
"""
RESERVE_EVERYTHING = """
client, leases = AgentClient(path), []
try:
    for number in range(1000, 2000):
        leases.append(client.reserve(key(number), None, 1 << 20))
except PoolFullError:
    pass
say(len(leases))
sys.stdin.read()
"""
LEASE_EVERYTHING = """
client, leases = AgentClient(path), []
for number in range(2000, 2030):
    try:
        client.put(key(number), None, bytes(1 << 20))
    except PoolFullError:
        pass
    leases.append(client.fetch([key(number)], deadline_s=1))
    client.pin([key(number)])
say(sum(lease.count for lease in leases))
sys.stdin.read()
"""
FILL_IT = """
with AgentClient(path) as client:
    for number in range(3000, 3200):
        client.put(key(number), None, bytes(1 << 20))
say("done")
"""
CONNECT_OFTEN = """
children, reading, writing = [], *os.pipe()
for _ in range(10):
    if not os.fork():
        held = []
        try:
            while True:
                held.append(attach(path))
        except AgentUnavailableError:
            os.write(writing, b"%4d" % len(held))
        sys.stdin.read()
        os._exit(0)
say(sum(int(os.read(reading, 4)) for _ in range(10)))
sys.stdin.read()
"""
ASK_OFTEN = """
agent = attach(path)
request = messages.pack(messages.Kind.CONTAINS, 1, key(1), count=1)
agent.sock.setblocking(False)
say("now")
while True:
    try:
        agent.sock.send(request * 100)
    except BlockingIOError:
        break
say("sent")
sys.stdin.read()
"""


@contextlib.contextmanager
def engine_of(user: int, path: str, program: str) -> Iterator[subprocess.Popen[str]]:
    """A process of a user that does this, and stays until the end of the `with`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _AS_SOMEBODY + program, path, str(user)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client/src")},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(scope="module")
def agent() -> Iterator[AttackedAgent]:
    with attacked_agent(more=f"tenants: {{paced: {{users: [{PACED}], requests_per_s: 100, weight: 0.01}}}}\n") as made:
        yield made


def put_and_read(client: AgentClient, first: int) -> None:
    """Two chunks of 1 MiB, written and read back."""
    for number in range(first, first + 2):
        content = random.Random(number).randbytes(MIB)
        assert client.put(key(number), None, content) is PutOutcome.STORED
        with client.fetch([key(number)], deadline_s=5) as got:
            assert (got.outcome, got.views[0] == content) == (Status.OK, True)


@pytest.mark.parametrize("attack", [RESERVE_EVERYTHING, LEASE_EVERYTHING], ids=["reservations", "leases and pins"])
def test_who_holds_all_it_can_leaves_room_to_others(agent: AttackedAgent, attack: str) -> None:
    with AgentClient(agent.socket) as honest, engine_of(LIAR, agent.socket, attack) as liar:
        assert 8 <= int(said(liar)) <= 14, "of 16 MiB"
        put_and_read(honest, 10)
        assert honest.stats()[f"tenant_held_bytes{{user-{LIAR}}}"] <= 14 * MIB
        honest.drop([key(10), key(11)])


def test_who_fills_the_pool_takes_nothing_from_who_is_within_its_share(agent: AttackedAgent) -> None:
    with AgentClient(agent.socket) as honest:
        for number in range(20, 26):
            honest.put(key(number), None, bytes(MIB))
        with engine_of(LIAR, agent.socket, FILL_IT) as liar:
            assert said(liar) == "done"
        assert honest.contains([key(number) for number in range(20, 26)]) == [Where.LOCAL] * 6
        honest.drop([key(number) for number in range(20, 26)])


def test_who_connects_as_often_as_it_can_leaves_connections_to_others(agent: AttackedAgent) -> None:
    with engine_of(LIAR, agent.socket, CONNECT_OFTEN) as liar:
        assert int(said(liar)) == 128
        with AgentClient(agent.socket) as honest:
            put_and_read(honest, 30)
            assert honest.stats()[f"tenant_connections{{user-{LIAR}}}"] == 128


def test_who_asks_more_than_it_may_waits_by_itself(agent: AttackedAgent) -> None:
    with AgentClient(agent.socket) as honest, engine_of(PACED, agent.socket, ASK_OFTEN) as paced:
        assert said(paced) == "now"
        assert said(paced) == "sent"
        put_and_read(honest, 40)
        while not honest.stats()["tenant_delayed_total{paced}"]:
            pass


def test_who_does_not_have_the_secret_cannot_name_a_tenant_s_chunks(agent: AttackedAgent) -> None:
    tokens = range(64)
    own = KvIdentity("model", chunk_tokens=16, tenant_salt="salt", tenant_secret=b"only the tenant knows this")
    guesses = [
        KvIdentity("model", chunk_tokens=16, tenant_salt="salt", tenant_secret=secret)
        for secret in (b"", b"another tenant's own secret", b"only the tenant knows this?")
    ]
    with AgentClient(agent.socket) as victim, AgentClient(agent.socket) as liar:
        for guess in guesses:
            for wrong in prefix_keys(guess, tokens):
                assert liar.put(ChunkKey(wrong), None, b"poison") is PutOutcome.STORED
        keys = prefix_keys(own, tokens)
        assert victim.contains(keys) == [Where.NOWHERE] * 4, "nobody can put anything under its keys"
        for number, right in enumerate(keys):
            assert victim.put(right, None, bytes([number]) * 100) is PutOutcome.STORED
        for guess in guesses:
            with liar.fetch(prefix_keys(guess, tokens), deadline_s=1) as got:
                assert [bytes(view) for view in got.views] == [b"poison"] * 4
        with victim.fetch(keys, deadline_s=1) as got:
            assert [bytes(view) for view in got.views] == [bytes([number]) * 100 for number in range(4)]
