"""A testbed for engines, what its pool holds, what its nodes moved, and waiting for it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
import yaml

from bmv2_testbed import client
from bmv2_testbed.network.namespaces import can_unshare
from bmv2_testbed.network.wired import have_mininet
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import Target, TestbedSpec, host_name
from kvchunk.sources import ChunkSource
from kvclient.client import AgentClient, Where
from tests.waiting import until

PATIENCE_S = 60.0
FETCH_S = 60.0
STOP_S = 30.0
RATE_BIT_S = 100_000_000
"""Of links that have one: bringing a prompt of tens of MB then takes longer than a busy machine delays anybody."""
HAVE_LINKS = os.geteuid() == 0 and can_unshare() and have_mininet()
"""Whether hosts can have links in network namespaces, which all that they send crosses."""
needs_links = pytest.mark.skipif(not HAVE_LINKS, reason="needs root and mininet: what crosses links is counted")


@contextmanager
def running(hosts: int, pool_bytes: int) -> Iterator[client.Testbed]:
    """Nodes, a controller that moves nothing by itself, and a switch that serves nothing by itself.

    Links have a rate where that is possible. Elsewhere they are datagrams on loopback, past which agents read from
    each other as fast as memory is.
    """
    spec = TestbedSpec(
        target=Target.P4SWITCH,
        rate_bit_s=RATE_BIT_S,
        hosts=hosts,
        pool_bytes=pool_bytes,
        controller_settings={"policy": {"admission": False}, "push": {"enabled": False}},
    )
    with client.running(spec) as made:
        yield made


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started here: asked first, then not."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def agent_socket(testbed: client.Testbed, host: int) -> str:
    """Where a host's agent serves engines."""
    return str(testbed.directory / f"{host_name(host)}.sock")


def keys_in_pool(testbed: client.Testbed) -> list[bytes]:
    """Keys of all chunks that the controller knows."""
    listen = yaml.safe_load((testbed.directory / "controller.yaml").read_text())["listen"]
    listing = python_module("kvcast.cli", "ls", "--json", "--limit", "0", "--controller", listen)
    testbed.run("ls", "switch", listing)
    return [bytes.fromhex(chunk["key"]) for chunk in json.loads(testbed.finish("ls", PATIENCE_S).stdout)]


def keep_only_at(testbed: client.Testbed, keys: Sequence[bytes], holder: int, others: Sequence[int]) -> int:
    """Move chunks to a host: it fetches them, and the other hosts drop theirs. Returns the bytes of all."""
    with ExitStack() as stack:
        at, *without = (stack.enter_context(AgentClient(agent_socket(testbed, host))) for host in (holder, *others))
        with at.fetch(keys, any_order=True, deadline_s=FETCH_S) as found:
            views = [view for view in found.views if view is not None]
            assert len(views) == len(keys), f"{len(keys) - len(views)} of {len(keys)} chunks did not come"
            size_bytes = sum(len(view) for view in views)
        for each in without:
            until(functools.partial(_drop, each, keys), "engines let go of what they stored, and the holder has it")
    return size_bytes


def _drop(agent: AgentClient, keys: Sequence[bytes]) -> bool:
    """Whether all are on other nodes only."""
    agent.drop(keys)
    return set(agent.contains(keys)) == {Where.REMOTE}


def sent_bytes(testbed: client.Testbed, host: int) -> int:
    """What a host has sent since it is there, casts and reliable reads."""
    return testbed.counters()[host_name(host)].tx_bytes


def by_cast(testbed: client.Testbed, hosts: Sequence[int]) -> list[int]:
    """Chunks that each of these hosts' agents has delivered from casts."""
    named = re.compile(rf'^kvcast_agent_fetch_chunks_total{{source="{ChunkSource.CAST.label}"}} (\S+)$', re.MULTILINE)
    found = [named.search(testbed.agent_metrics(host)) for host in hosts]
    return [int(float(each[1])) if each else 0 for each in found]
