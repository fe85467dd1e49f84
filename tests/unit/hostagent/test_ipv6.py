"""Reads over IPv6: addresses, endpoints, tokens, and two transports without any IPv4."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest

from controlplane.core import parse
from controlplane.core.nodes import NodeFacts
from controlplane.core.read_access import ReadTokens
from hostagent.config import parse as parse_config
from hostagent.controller.convert import NO_ADDRESS
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import ChunkPlace, ReadOutcome, ReadRequest
from hostagent.transport.endpoints import endpoint_of, host_port_of
from hostagent.transport.interfaces import InterfaceAddress, usable_addresses
from hostagent.transport.sockets import SocketsTransport
from kvchunk.ids import ChunkKey
from kvdaemon.errors import ConfigError
from kvproto.grants import NamespaceRules
from kvproto.records import RecordError
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.read_tokens import unpack_token
from kvproto.wire.control import Control, Op
from kvproto.wire.data import Fabric
from tests.contracts.transport.harness import RecordingSink
from tests.ports import free_port
from tests.waiting import eventually

KEY = ChunkKey(b"6" * 16)


def data_config(address: str, **more: object):
    return parse_config({"data": {"address": address, **more}}).data


def test_addresses_of_the_configuration() -> None:
    assert data_config("fd00::3").address == data_config("[fd00:0::3]").address == "fd00::3"
    for scoped in ("fe80::1", "fe80::1%eth1"):
        with pytest.raises(ConfigError, match="link-local address, which other nodes cannot reach by it: a global or"):
            data_config(scoped)
    with pytest.raises(ConfigError, match="not an IPv4 or IPv6 address"):
        data_config("fd00:::3")


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "2001:db8::ffff:1"])
def test_endpoints(address: str) -> None:
    assert host_port_of(endpoint_of(address, 4790)) == (address, 4790)
    assert endpoint_of("fd00::1", 4790) == "[fd00::1]:4790"
    assert host_port_of("fd00::1:x") == ("fd00::1", -1)


def test_an_interface_is_used_by_what_others_can_reach() -> None:
    has = ["fe80::7", "fd00::7", "10.0.0.7", "2001:db8::7"]
    assert usable_addresses([InterfaceAddress("e", one, 64, False) for one in has]) == [
        "10.0.0.7",
        "fd00::7",
        "2001:db8::7",
    ]


def hello(data_ip: bytes) -> NodeFacts:
    return parse.node_facts(rpc.Hello(node="n", data_ip=data_ip, data_mac=bytes(6), read_endpoint="[fd00::3]:4790"))


def test_the_controller_takes_nodes_without_ipv4() -> None:
    packed = ipaddress.ip_address("fd00::3").packed
    facts = hello(packed)
    assert len(facts.data_ip) == 16
    with pytest.raises(RecordError, match="data_ip has 5 bytes, not 4 or 16"):
        hello(bytes(5))
    access = ReadTokens(b"s" * 32, 60_000, NamespaceRules()).access_of(facts, 0).read_access
    assert unpack_token(access.token.token).address == packed


def test_two_nodes_without_ipv4_read_from_each_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def run() -> None:
        pools = [PoolMemory(1 << 20, prefault=False) for _ in range(2)]
        sinks = [RecordingSink() for _ in range(2)]
        ports = {"cast_port": free_port(), "control_port": free_port(), "read_port": 0}
        ends = [SocketsTransport(data_config("::1", transport="sockets", **ports), pool) for pool in pools]
        facts = [await end.start(sink, Fabric()) for end, sink in zip(ends, sinks, strict=True)]
        try:
            assert facts[0].read_endpoint.startswith("[::1]:")
            assert facts[0].address == NO_ADDRESS
            body = bytes(range(256)) * 16
            pools[1].bytes_[: len(body)] = memoryview(body)
            place = sinks[1].held[KEY] = ChunkPlace(KEY, 0, len(body))
            ended: list[ReadOutcome] = []
            ends[0].reads.read(ReadRequest(facts[1].read_endpoint, KEY, 0, len(body), 4096, ended.append))
            await eventually(lambda: ended, "the read's end")
            assert ended == [ReadOutcome.DONE]
            assert bytes(pools[0].bytes_[4096 : 4096 + len(body)]) == body
            # Nothing is cast; whoever asked is told.
            ends[1].casts.cast(place, 0, 1)
            ends[1].casts.fill(place, 0, 1, NO_ADDRESS)
            ends[1].send_control(Control(Op.NAK, KEY, 1), NO_ADDRESS)
            await eventually(lambda: sinks[1].failed and sinks[1].filled, "the casts' end")
            assert sinks[1].failed == sinks[1].filled == {KEY: 1}
            assert ends[1].counters.dropped == {"control_send_no_ipv4": 1}
        finally:
            for end in ends:
                await end.close()

    asyncio.run(run())
    said = [line for line in caplog.messages if line.startswith("no IPv4")]
    assert said == ["no IPv4 on the data network: no casts, all chunks are read at ::1"] * 2
