"""Daemons of different releases: neighbours work together, others refuse in one line that names both."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controlplane.core.core import Core
from controlplane.core.effects import CloseSession
from controlplane.core.events import Event, HelloReceived, StreamEnded
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.native_pulls import NativePulls
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_protocol import ANSWER, HEAD, KIND_READ, MAGIC, RANGE, REQUEST_BYTES, VERSION
from hostagent.transport.read_server import ReadServer
from kvchunk.ids import ChunkKey
from kvclient.attach import AgentUnavailableError, attach
from kvclient.messages import VERSION as API_VERSION
from kvclient.messages import WELCOME, Kind, pack
from kvproto import __version__
from kvproto.rpc import control_pb2 as pb
from kvproto.rpc.versions import PROTOCOL, skew
from tests.unit.controlplane.helpers import Scene, hello
from tests.unit.hostagent.channel_script import staged


def test_neighbours_understand_each_other_and_others_do_not() -> None:
    for theirs in (PROTOCOL - 1, PROTOCOL, PROTOCOL + 1):
        assert skew("agent n1", "9.0", theirs, "1.0") == ""
    newer = skew("agent n1", "9.0", PROTOCOL + 2, "1.0")
    assert newer == (
        f"agent n1 runs kvcast 9.0 (protocol {PROTOCOL + 2}), this side 1.0 (protocol {PROTOCOL}):"
        " only neighbours understand each other, upgrade this side step by step"
    )
    assert "upgrade the controller step by step" in skew("the controller", "", 3, "2.0", own_protocol=5)
    assert "\n" not in newer


@pytest.mark.parametrize(("protocol", "attaches"), [(PROTOCOL + 2, False), (PROTOCOL + 1, True)])
def test_an_agent_and_a_newer_controller(protocol: int, attaches: bool, caplog: pytest.LogCaptureFixture) -> None:
    with staged() as stage:
        stage.made.add(controllers=[stage.address])
        agent = stage.made.agents[0]
        while "n0" not in stage.script.heard:
            stage.made.call(lambda: None)
        assert stage.script.hear("n0", "hello").protocol == PROTOCOL
        welcome = pb.Welcome(
            node=1,
            controller=1,
            heartbeat_ms=50,
            fabric=pb.Fabric(integrity=pb.INTEGRITY_BLAKE3),
            protocol=protocol,
            version="9.0",
        )
        stage.script.say("n0", pb.ToAgent(welcome=welcome))
        line = f"the controller runs kvcast 9.0 (protocol {protocol}), this side {__version__} (protocol {PROTOCOL})"
        stage.made.until(lambda: agent.core.connected if attaches else line in caplog.text)
        assert attaches == (line not in caplog.text)


def test_a_holder_says_who_reads_with_another_protocol(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        memory, counters = PoolMemory(1 << 20, prefault=False), TransportCounters()
        server = ReadServer(memory, None, counters)  # type: ignore[arg-type]  # nobody gets as far as the sink
        address = server.listen("127.0.0.1", 0)
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(HEAD.pack(MAGIC, VERSION + 1, KIND_READ, 0, 1) + RANGE.pack(0, 1, bytes(16)))
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()
        server.close()
        memory.close()
        assert counters.dropped == {"read_version_other": 2}

    asyncio.run(scenario())
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == (
        f"127.0.0.1: the agent there reads with protocol {VERSION + 1}, this one (kvcast {__version__}) with {VERSION}:"
        " no chunks go between them until this one is upgraded"
    )


def test_a_reader_says_who_answers_with_another_protocol(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(listener: socket.socket) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(REQUEST_BYTES)
            writer.write(ANSWER.pack(MAGIC, VERSION + 1, 0, 0, 0, 10))
            await writer.drain()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, sock=listener)
        memory, counters = PoolMemory(1 << 20, prefault=False), TransportCounters()
        pulls = NativePulls(datapath(), asyncio.get_running_loop())
        client = ReadClient(memory, counters, pulls, stall_timeout_s=3600)
        ended: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        endpoint = "{}:{}".format(*listener.getsockname())
        client.read(ReadRequest(endpoint, ChunkKey(bytes(16)), 0, 4096, 0, ended.set_result))
        async with asyncio.timeout(20):
            assert await ended is ReadOutcome.FAILED
        client.close()
        server.close()
        memory.close()
        assert counters.dropped == {"read_version_other": 1}

    asyncio.run(scenario(socket.create_server(("127.0.0.1", 0))))
    assert f"127.0.0.1: the agent there reads with protocol {VERSION + 1}" in caplog.text


def test_a_client_and_an_agent_with_another_local_api(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, ThreadPoolExecutor(1) as other:
        listener.bind(path)
        listener.listen()

        def greet() -> None:
            conversation, _ = listener.accept()
            with conversation:
                conversation.sendall(pack(Kind.WELCOME, 0, WELCOME.pack(API_VERSION + 1, 4096, 1)))

        greeted = other.submit(greet)
        said = f"speaks version {API_VERSION + 1}, this client {API_VERSION}: update the older"
        with pytest.raises(AgentUnavailableError, match=said):
            attach(path)
        greeted.result()


def closings(core: Core, event: Event) -> list[CloseSession]:
    """The sessions that a core closes upon an event."""
    return [effect for effect in core.handle(event, 0) if isinstance(effect, CloseSession)]


def test_the_controller_refuses_agents_that_are_too_far_away() -> None:
    core = Scene().core
    (refusal,) = closings(core, HelloReceived(1, hello(1, version="9.0", protocol=PROTOCOL + 2)))
    assert (refusal.code, refusal.session) == ("FAILED_PRECONDITION", 1)
    assert f"agent n1 runs kvcast 9.0 (protocol {PROTOCOL + 2}), this side {__version__}" in refusal.reason
    assert not closings(core, HelloReceived(2, hello(1, version="9.0", protocol=PROTOCOL + 1)))


def test_without_tls_a_name_belongs_to_the_host_that_has_it() -> None:
    core = Scene().core
    assert not closings(core, HelloReceived(1, hello(1), "10.0.0.1"))
    (refusal,) = closings(core, HelloReceived(2, hello(1, incarnation=2), "10.0.0.2"))
    assert (refusal.code, refusal.session) == ("ALREADY_EXISTS", 2)
    assert refusal.reason == "node 'n1' is attached from 10.0.0.1: 10.0.0.2 needs another name"
    closed = closings(core, HelloReceived(3, hello(1, incarnation=2), "10.0.0.1"))
    assert [one.session for one in closed] == [1], "the same host may start its agent again"
    closings(core, StreamEnded(3))
    assert not closings(core, HelloReceived(4, hello(1, incarnation=3), "10.0.0.2"))
