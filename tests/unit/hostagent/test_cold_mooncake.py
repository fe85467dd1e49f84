"""Mooncake Store as a cold store: a real mooncake_master and a real process that lends memory, well and in trouble."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.bench.mooncake_servers import (
    LENT_BYTES_MIN,
    MooncakeServers,
    mooncake_client,
    mooncake_installed,
    mooncake_servers,
)
from hostagent import limits
from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig, SecretPlace
from hostagent.cold.mooncake_store import MooncakeOptions, MooncakeStore, mooncake_options
from hostagent.cold.objects import RECORD_BYTES, object_name
from hostagent.cold.stores import ColdStoreError
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from kvcast.doctor.agent_checks import cold_store
from kvcast.doctor.findings import Level
from kvclient.client import ChunkSource
from kvdaemon.errors import CannotRunError
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import MIB, cluster
from tests.unit.hostagent.agent_harness import key as agent_key
from tests.unit.hostagent.cold_harness import (
    SIZE,
    babbling_server,
    bench,
    content,
    hung,
    impatient,
    key,
    round_trip,
    silent_server,
    warnings_of,
)
from tests.unit.hostagent.test_agent_cold import until_on, written_behind

needs_mooncake = pytest.mark.skipif(
    not mooncake_installed(), reason="no mooncake here: pip install mooncake-transfer-engine-non-cuda"
)
DONE, STORED = LoadOutcome.DONE, SaveOutcome.STORED


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that went are tried again at once."""
    monkeypatch.setattr(limits, "COLD_RETRY_S_MIN", 0.01)
    monkeypatch.setattr(limits, "COLD_RETRY_S_MAX", 0.02)


@pytest.fixture(scope="module")
def calm() -> Iterator[MooncakeServers]:
    """Servers to which nothing happens. Tests that share them have a root each."""
    with mooncake_servers(free_port(), free_port(), LENT_BYTES_MIN) as made:
        yield made


@pytest.fixture
def servers() -> Iterator[MooncakeServers]:
    """Servers of one test."""
    with mooncake_servers(free_port(), free_port(), LENT_BYTES_MIN) as made:
        yield made


def config_of(port: int, timeout_s: float = 10.0, **options: str) -> ColdConfig:
    return ColdConfig("mooncake", {"master": f"127.0.0.1:{port}", "buffer": "4MiB", **options}, timeout_s=timeout_s)


def opened(config: ColdConfig) -> MooncakeStore:
    store = open_store(config)
    assert isinstance(store, MooncakeStore)
    return store


def running(store: MooncakeStore) -> int:
    """The process of its client."""
    assert store.process is not None
    return store.process


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


@needs_mooncake
def test_what_one_agent_stores_another_one_reads(calm: MooncakeServers) -> None:
    async def scenario() -> None:
        config = config_of(calm.port, root="/pool")
        store = opened(config)
        async with bench(config, store) as made:
            await round_trip(made)
            process = running(store)
            async with bench(config) as another:
                await another.until(ColdState.ON)
                assert await another.look(1, 2) == ([2], [1], [])
                assert await another.load(2) is DONE
        assert is_gone(process), "a client's process is left"

    asyncio.run(scenario())


@needs_mooncake
def test_agents_spill_to_it_and_find_what_others_spilled(calm: MooncakeServers) -> None:
    config = ColdConfig("mooncake", {"master": f"127.0.0.1:{calm.port}", "root": "agents"}, lookup_wait_s=5.0)
    with cluster(1, cold=config, pool_bytes=2 * MIB) as made:
        until_on(made, 0)
        gone = written_behind(made)[:4]
        made.add(cold=config, pool_bytes=2 * MIB)
        until_on(made, 1)
        for index in (0, 1):
            with made.client(index).fetch([agent_key(number) for number in gone], deadline_s=25) as got:
                assert [bytes(view) for view in got.views] == [content(number, 64 * 1024) for number in gone]
                assert set(got.sources) == {ChunkSource.COLD}


@needs_mooncake
def test_garbage_is_a_miss_and_never_bytes(calm: MooncakeServers) -> None:
    async def scenario() -> None:
        foreign = await asyncio.to_thread(mooncake_client, calm.port, buffer_bytes=16 * MIB)
        async with bench(config_of(calm.port, root="a/b")) as made:
            await made.until(ColdState.ON)
            await made.save(1)
            for garbage in (b"short", b"x" * RECORD_BYTES, b"x" * (RECORD_BYTES + SIZE)):
                assert await asyncio.to_thread(foreign.upsert, f"a/b/{object_name(key(1))}", garbage) == 0
                assert await made.look(1) == ([], [], [1])
                assert await made.load(1) is LoadOutcome.DAMAGED
            assert made.tier.state is ColdState.ON, "garbage is no outage"
            assert await made.save(1) is STORED
            assert await made.load(1) is DONE, "what is stored stands in place of it"
        await asyncio.to_thread(foreign.close)

    asyncio.run(scenario())


@needs_mooncake
def test_a_full_one_is_still_read(servers: MooncakeServers) -> None:
    async def scenario() -> None:
        foreign = await asyncio.to_thread(mooncake_client, servers.port, buffer_bytes=16 * MIB)
        async with bench(config_of(servers.port)) as made:
            await made.until(ColdState.ON)
            await made.save(1)
            filled = await asyncio.to_thread(fill, foreign, object_name(key(1)))
            assert [await made.save(number) for number in range(2, 5)] == [SaveOutcome.FAILED] * 3
            await made.until(ColdState.READING)
            assert "no room in the memory that nodes lend" in made.tier.reason
            assert await made.load(1) is DONE
            for name in filled:
                assert await asyncio.to_thread(foreign.remove, name, True) == 0
            await made.until(ColdState.ON)
            assert await made.save(2) is STORED
        await asyncio.to_thread(foreign.close)

    asyncio.run(scenario())


def fill(store: Any, kept: str) -> list[str]:
    """Put objects until no more fits in; the master may evict neither them nor the one that is to be kept."""
    from mooncake.store import ReplicateConfig

    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    content = store.get(kept)
    assert store.remove(kept, True) == 0
    assert store.put(kept, content, pinned) == 0
    names: list[str] = []
    for size_bytes in (4 * MIB, MIB // 4, 16 * 1024):
        while store.put(f"filler-{len(names)}", bytes(size_bytes), pinned) == 0:
            names.append(f"filler-{len(names)}")
    return names


@needs_mooncake
def test_a_hung_master_is_away_until_it_goes_on(servers: MooncakeServers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        config = config_of(servers.port)
        store = opened(config)
        async with bench(config, store) as made:
            await made.until(ColdState.ON)
            assert await made.save(1) is STORED
            process = running(store)
            with hung(servers.master.pid), impatient(made):
                assert await made.load(1) is LoadOutcome.FAILED
                assert is_gone(process), "a call that was called off may still write"
                assert [await made.load(1) for _ in range(2)] == [LoadOutcome.FAILED] * 2
                await made.until(ColdState.AWAY)
                assert made.tier.reason == "no answer within 0.3 s"
            await made.until(ColdState.ON)
            assert await made.load(1) is DONE

    asyncio.run(scenario())
    assert len(warnings_of(caplog)) == 1


@needs_mooncake
def test_memory_whose_node_hangs_fails_in_time(servers: MooncakeServers) -> None:
    async def scenario() -> None:
        async with bench(config_of(servers.port)) as made:
            await made.until(ColdState.ON)
            assert await made.save(1) is STORED
            with hung(servers.lender.pid), impatient(made):
                assert await made.load(1) is LoadOutcome.FAILED
                assert made.tier.state is ColdState.ON, "one failure is no outage"
            while (outcome := await made.load(1)) is LoadOutcome.FAILED:
                pass
            assert outcome is DONE

    asyncio.run(scenario())


@needs_mooncake
def test_killed_servers_are_away_and_come_back(servers: MooncakeServers) -> None:
    async def scenario() -> None:
        async with bench(config_of(servers.port)) as made:
            await made.until(ColdState.ON)
            await made.save(1)
            servers.kill()
            assert [await made.load(1) for _ in range(3)] == [LoadOutcome.FAILED] * 3
            await made.until(ColdState.AWAY)
            assert made.tier.counters.outages == 1
            await asyncio.to_thread(servers.start)
            await made.until(ColdState.ON)
            assert await made.look(1) == ([], [1], []), "the memory went with its process"
            assert await made.save(1) is STORED
            assert await made.load(1) is DONE

    asyncio.run(scenario())


@needs_mooncake
def test_a_client_that_dies_is_replaced(calm: MooncakeServers) -> None:
    async def scenario() -> None:
        config = config_of(calm.port, root="dies")
        store = opened(config)
        async with bench(config, store) as made:
            await made.until(ColdState.ON)
            await made.save(1)
            os.kill(running(store), signal.SIGKILL)
            while (outcome := await made.load(1)) is LoadOutcome.FAILED:
                assert made.tier.counters.reads_failed < limits.COLD_FAILURES_MAX
            assert outcome is DONE
            assert made.tier.state is ColdState.ON

    asyncio.run(scenario())


@needs_mooncake
def test_its_process_ends_with_the_agent(calm: MooncakeServers) -> None:
    with agent_asking(calm.port) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        process = os.pidfd_open(child_of(agent))
    assert has_ended(process)


@needs_mooncake
def test_its_process_ends_with_the_agent_even_while_it_hangs() -> None:
    """While Mooncake's client starts, nothing else in its process gets a turn."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with agent_asking(listening.getsockname()[1]) as agent:
            of_the_agent, _ = listening.accept()
            of_the_client, _ = listening.accept()
            process = os.pidfd_open(child_of(agent))
        with of_the_agent, of_the_client:
            assert has_ended(process)


@contextlib.contextmanager
def agent_asking(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that uses the store, says when it has an answer, and is killed in the end."""
    script = (
        "import asyncio, signal\n"
        "from hostagent.cold.cold_opening import open_store\n"
        "from hostagent.cold.cold_options import ColdConfig\n"
        "async def main():\n"
        f"    store = open_store(ColdConfig('mooncake', {{'master': '127.0.0.1:{port}'}}))\n"
        "    print(await store.exists('x'), flush=True)\n"
        "    signal.pause()\n"
        "asyncio.run(main())\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        yield agent
    finally:
        agent.kill()
        agent.wait()
        assert agent.stdout is not None
        agent.stdout.close()


def child_of(process: subprocess.Popen[bytes]) -> int:
    """Its only one."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def has_ended(process: int) -> bool:
    """Of a pidfd, which is closed: whether it ends within 20 s."""
    with contextlib.closing(open(process, "rb", buffering=0)):
        return bool(select.select([process], [], [], 20)[0])


@needs_mooncake
@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 16])
def test_what_is_no_master_is_away_and_holds_nothing_up(answer: bytes | None) -> None:
    async def scenario() -> None:
        with silent_server() if answer is None else babbling_server(answer) as port:
            async with bench(config_of(port, timeout_s=0.5)) as made:
                await made.tried()
                assert made.tier.state is ColdState.AWAY
                assert await made.look(1) == ([], [], [])

    asyncio.run(scenario())


@needs_mooncake
def test_an_object_that_is_larger_than_the_buffer_is_refused(calm: MooncakeServers) -> None:
    async def scenario() -> None:
        store = open_store(config_of(calm.port, buffer="1MiB", root="large"))
        try:
            with pytest.raises(ColdStoreError, match=r"does not fit into cold\.options\.buffer"):
                await store.put("large", bytes(MIB + 1))
            await asyncio.gather(*(store.put(f"{number}", bytes([number]) * MIB) for number in range(6)))
            into = [bytearray(MIB) for _ in range(6)]
            found = [store.get_into(f"{number}", [memoryview(into[number])]) for number in range(6)]
            assert await asyncio.gather(*found) == [True] * 6
            assert [set(one) for one in into] == [{number} for number in range(6)]
        finally:
            await store.close()

    asyncio.run(scenario())


@needs_mooncake
def test_doctor_tries_it(servers: MooncakeServers) -> None:
    finding = cold_store(config_of(servers.port))
    assert finding.level is Level.OK, finding
    assert finding.found.startswith("mooncake: put ")
    servers.kill()
    finding = cold_store(config_of(servers.port))
    assert (finding.level, finding.found[:41]) == (Level.SLOW, "mooncake: no mooncake_master at 127.0.0.1")


def test_options_are_checked_and_have_defaults() -> None:
    assert mooncake_options(ColdConfig("mooncake", {"master": "h:1"})) == MooncakeOptions("h:1")
    options = {
        "master": "h:1",
        "metadata_server": "http://h:2/metadata",
        "address": "10.0.0.1",
        "protocol": "rdma",
        "devices": "mlx5_0",
        "replicas": "2",
        "root": "//a/b",
        "buffer": "1048577",
    }
    found = mooncake_options(ColdConfig("mooncake", options))
    wanted = MooncakeOptions("h:1", "http://h:2/metadata", "10.0.0.1", "rdma", "mlx5_0", 2, "a/b/", MIB + 4096)
    assert found == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "cold.options: mooncake needs master, the HOST:PORT"),
        ({"master": "h"}, "cold.options: mooncake: master: 'h' is not HOST:PORT"),
        ({"master": "h:0"}, "cold.options: mooncake: master: 'h:0' is not HOST:PORT"),
        (
            {"master": "h:1", "segment": "1"},
            "cold.options: mooncake does not know segment, but master, ",
        ),
        ({"master": "h:1", "protocol": "udp"}, "cold.options: mooncake: protocol: 'udp' is not one of tcp, rdma"),
        ({"master": "h:1", "replicas": "0"}, "cold.options: mooncake: replicas: '0' is not a whole number"),
        ({"master": "h:1", "buffer": "1KiB"}, "cold.options: mooncake: buffer: '1KiB' is not a size from 1MiB"),
        ({"master": "h:1", "buffer": "much"}, "cold.options: mooncake: buffer: "),
        ({"master": "h:1", "metadata_server": ""}, "cold.options: mooncake: metadata_server: it is empty"),
    ],
)
def test_wrong_options_are_one_clear_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(CannotRunError) as refused:
        open_store(ColdConfig("mooncake", options))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_credentials_are_refused() -> None:
    with pytest.raises(CannotRunError, match="mooncake takes no credentials"):
        open_store(ColdConfig("mooncake", {"master": "h:1"}, {"password": SecretPlace(file="/x")}))


def test_without_its_client_the_agent_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotRunError, match=r"pip install 'kvcast\[mooncake\]'"):
        open_store(ColdConfig("mooncake", {"master": "h:1"}))
