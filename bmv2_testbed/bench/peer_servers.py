"""The alternatives that bring the prefix to its readers over the same links, and what each needs at the hosts."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from bmv2_testbed.bench.mooncake import REPLICAS
from bmv2_testbed.bench.sources import REDIS_PORT
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix, prefix_arguments
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import START_DEADLINE_S
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import data_ip, host_name


class Peer(StrEnum):
    """Who else does it."""

    TCP = "tcp"
    """A server with sendfile at the holder."""
    REDIS = "redis"
    CHAIN = "chain"
    """Of readers, each passing on what it receives (`bmv2_testbed.bench.relay`)."""
    MOONCAKE = "mooncake"
    """Mooncake Store with replicas (`bmv2_testbed.bench.mooncake`)."""


def missing(peer: Peer) -> str:
    """What has to be installed before a peer can run here, for a person; empty: nothing."""
    match peer:
        case Peer.REDIS if shutil.which("redis-server") is None:
            return "no redis-server on PATH: install the Debian package redis-server"
        case Peer.MOONCAKE if importlib.util.find_spec("mooncake") is None:
            return "no mooncake in this environment: pip install mooncake-transfer-engine-non-cuda"
    return ""


@contextmanager
def peer_running(testbed: Testbed, peer: Peer, prefix: Prefix) -> Iterator[None]:
    """Its servers run and have the prefix. Raises TestbedError where something that it needs is not installed."""
    if reason := missing(peer):
        raise TestbedError(f"{reason}, or leave out --peer {peer}")
    started: list[str] = []

    def serve(host: int, argv: Sequence[str]) -> None:
        name = f"{peer.value}-server-{host}"
        testbed.run(name, host_name(host), argv)
        started.append(name)
        testbed.await_ready(name)

    def load(argv: Sequence[str]) -> None:
        name = f"{peer.value}-load"
        testbed.run(name, host_name(0), argv)
        testbed.finish(name, START_DEADLINE_S)

    holder, content = data_ip(0), prefix_arguments(prefix)
    status = testbed.status()
    file = f"{status['directory']}/{peer.value}"
    try:
        match peer:
            case Peer.TCP | Peer.CHAIN:
                words = ["serve", "--address", holder, "--file", file, *content]
                serve(0, python_module("bmv2_testbed.bench.holder", *words))
            case Peer.REDIS:
                serve(0, _redis(holder))
                load(python_module("bmv2_testbed.bench.holder", "redis", "--address", holder, *content))
            case Peer.MOONCAKE:
                for host in range(min(REPLICAS, status["spec"]["hosts"])):
                    words = ["serve", "--address", data_ip(host), "--master", holder, *content]
                    serve(host, python_module("bmv2_testbed.bench.mooncake", *words))
                words = ["load", "--address", holder, "--master", holder, *content]
                load(python_module("bmv2_testbed.bench.mooncake", *words))
        yield
    finally:
        for name in started:
            testbed.kill(name)
            testbed.forget(name)


def _redis(address: str) -> list[str]:
    words = ["--bind", address, "--port", str(REDIS_PORT), "--protected-mode", "no", "--save", "", "--appendonly", "no"]
    return ["redis-server", *words, "--supervised", "systemd"]  # It says when it listens.
