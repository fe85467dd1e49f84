"""Reads over two rails, each a server on a loopback address of its own: what becomes of a read whose rail fails."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

import pytest

from controlplane.core import parse
from controlplane.core.read_access import ReadTokens
from hostagent.config import parse as parse_config
from hostagent.controller.convert import delta_of
from hostagent.controller.refusals import Refusals
from hostagent.core.directory import DirectoryReplica
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import ReadOutcome, ReadRequest, TransportCounters, Way
from hostagent.transport.native_pulls import NativePulls
from hostagent.transport.rail_reads import RailReads
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_server import ReadServer
from kvdaemon.errors import ConfigError
from kvproto.grants import NamespaceRules
from kvproto.limits import RAILS_MAX
from kvproto.records import RecordError
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.read_tokens import unpack_token
from tests.unit.hostagent.test_reads import SIZES, SMALL, Sink
from tests.waiting import eventually

SIZE = SIZES[SMALL]


class Rails:
    """A node with a pool and two rails to a peer, whose bytes are a pattern."""

    def __init__(self, stack: contextlib.ExitStack, works: Sequence[bool]) -> None:
        self.memory = PoolMemory(32 << 20, prefault=False)
        stack.callback(self.memory.close)
        theirs = PoolMemory(32 << 20, prefault=False)
        stack.callback(theirs.close)
        self.content = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)
        theirs.bytes_[:SIZE] = memoryview(self.content)
        self.counters = TransportCounters()
        loop, ways, clients = asyncio.get_running_loop(), [], []
        for rail, one_works in enumerate(works):
            address = f"127.0.0.{2 + rail}"
            if one_works:
                server = ReadServer(theirs, Sink(), TransportCounters())  # type: ignore[arg-type]
                port = server.listen(address, 0)[1]
                stack.callback(server.close)
            else:
                silent = stack.enter_context(socket.create_server((address, 0)))
                port = silent.getsockname()[1]
            ways.append(Way(f"{address}:{port}", ""))
            pulls = NativePulls(datapath(), loop)
            clients.append(ReadClient(self.memory, self.counters, pulls, stall_timeout_s=30.0))
            stack.callback(clients[-1].close)
        self.ways = ways
        self.left: list[tuple[str, Way]] = []
        self.reads = RailReads(clients, lambda _: ways, self.counters, lambda *way: self.left.append(way))  # type: ignore[arg-type]
        stack.callback(self.reads.close)

    async def read(self) -> ReadOutcome:
        ended: list[ReadOutcome] = []
        self.reads.read(ReadRequest(self.ways[0].endpoint, SMALL, 0, SIZE, 4096, ended.append))
        await eventually(lambda: ended, "the read's end")
        return ended[0]


def test_a_read_leaves_a_silent_rail(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        with contextlib.ExitStack() as stack:
            rails = Rails(stack, works=(False, True))
            assert await rails.read() is ReadOutcome.DONE
            assert bytes(rails.memory.bytes_[4096 : 4096 + SIZE]) == rails.content
            assert rails.counters.rails_left == 1
            await eventually(lambda: rails.left, "who uses the rail to hear of it")
            assert rails.left == [(rails.ways[0].endpoint, rails.ways[0])]
            assert list(rails.reads.left_of(rails.ways[0].endpoint)) == [0]

    asyncio.run(run())
    assert "nothing comes from 127.0.0.2" in caplog.text


def test_a_read_leaves_a_rail_that_breaks_and_fails_when_all_do() -> None:
    async def run() -> None:
        with contextlib.ExitStack() as stack:
            rails = Rails(stack, works=(True, True))
            rails.ways[0] = Way("127.0.0.2:1", "")
            assert await rails.read() is ReadOutcome.DONE
            rails.ways[1] = Way("127.0.0.3:1", "")
            assert await rails.read() is ReadOutcome.FAILED

    asyncio.run(run())


def test_a_read_that_is_given_up_is_forgotten() -> None:
    async def run() -> None:
        with contextlib.ExitStack() as stack:
            rails = Rails(stack, works=(False, False))
            handle = rails.reads.read(ReadRequest(rails.ways[0].endpoint, SMALL, 0, SIZE, 4096, lambda _: None))
            assert rails.reads.loads == [SIZE, 0]
            handle.cancel()
            handle.cancel()
            assert rails.reads.loads == [0, 0]

    asyncio.run(run())


def test_interfaces_of_the_configuration() -> None:
    data = parse_config({"data": {"interfaces": ["eth1", "eth2"], "address": "10.0.0.1"}}).data
    assert [(one.interface, one.address, one.rails) for one in data.each_rail()] == [
        ("eth1", "10.0.0.1", ()),
        ("eth2", "", ()),
    ]
    assert parse_config({"data": {"interface": "eth1"}}).data.each_rail()[1:] == ()
    for wrong in ("eth1", [], ["eth1", "eth1"], [""], [f"eth{k}" for k in range(RAILS_MAX + 1)]):
        with pytest.raises(ConfigError, match=r"data.interfaces: .* is not a list of 1 to 8 different interfaces"):
            parse_config({"data": {"interfaces": wrong}})
    with pytest.raises(ConfigError, match=r"data.interface eth2 is not the first of data.interfaces: leave it out"):
        parse_config({"data": {"interfaces": ["eth1", "eth2"], "interface": "eth2"}})


def hello(*rails: str) -> rpc.Hello:
    return rpc.Hello(node="n", data_ip=bytes(4), data_mac=bytes(6), read_endpoint="10.0.0.1:4790", rail_endpoints=rails)


def test_the_controller_tells_of_rails_and_admits_their_addresses() -> None:
    facts = parse.node_facts(hello("10.1.0.1:4790", "10.2.0.1:4790"))
    access = ReadTokens(b"s" * 32, 60_000, NamespaceRules()).access_of(facts, 0).read_access
    token = unpack_token(access.token.token)
    assert (token.address, token.rail_addresses) == (bytes([10, 0, 0, 1]), (bytes([10, 1, 0, 1]), bytes([10, 2, 0, 1])))
    with pytest.raises(RecordError, match="8 rail_endpoints: a node has 8 rails at most"):
        parse.node_facts(hello(*["10.1.0.1:4790"] * RAILS_MAX))


def test_the_directory_knows_rails_by_the_first() -> None:
    directory = DirectoryReplica("me")
    node = rpc.Node(node=1, name="n", data_ip=bytes(4), read_endpoint="a:1", rail_endpoints=["b:1"])
    changes = [([node], []), ([rpc.Node(node=2, name="m", data_ip=bytes(4), read_endpoint="c:1")], []), ([], [1])]
    found = []
    for sequence, (nodes, gone) in enumerate(changes, 1):
        delta = rpc.DirectoryDelta(sequence=sequence, nodes=nodes, nodes_gone=gone)
        directory.apply(delta_of(delta, Refusals()))
        found.append((directory.rails_of("a:1"), directory.rails_of("c:1")))
    assert found == [(("b:1",), ()), (("b:1",), ()), ((), ())]
