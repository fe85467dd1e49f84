"""A node's rack: from the configuration or the environment, and to the directory."""

from __future__ import annotations

import pytest

from controlplane.core.parse import node_facts
from hostagent.config import parse
from hostagent.configured import core_options
from kvdaemon.errors import ConfigError
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import Scene

FILE = {"data": {"address": "10.0.0.1"}, "pool": {"size": "1MiB"}}


def test_a_node_says_its_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(FILE).rack == ""
    assert core_options(parse(FILE | {"rack": "r1"})).rack == "r1"
    monkeypatch.setenv("KVCAST_RACK", "zone-2")
    assert parse(FILE).rack == "zone-2"
    assert parse(FILE | {"rack": "r1"}).rack == "r1"
    monkeypatch.setenv("KVCAST_RACK", "no rack")
    with pytest.raises(ConfigError, match="KVCAST_RACK in the environment: 'no rack' is not a name"):
        parse(FILE)


def test_the_controller_tells_it_to_all() -> None:
    scene = Scene()
    scene.attach(1, rack="r1")
    scene.attach(2)
    nodes = [one for sent in scene.sent[2] for one in sent.directory.nodes]
    assert {one.name: one.rack for one in nodes} == {"n1": "r1", "n2": ""}


def test_a_rack_of_any_length_is_refused() -> None:
    hello = rpc.Hello(node="n", data_ip=bytes(4), data_mac=bytes(6), read_endpoint="10.0.0.1:4790", rack="r" * 257)
    with pytest.raises(ValueError, match="rack 'rrr"):
        node_facts(hello)
