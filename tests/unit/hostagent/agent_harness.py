"""Agents in this process, on an event loop in a thread of its own, reached through their real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from controlplane.config import parse
from controlplane.daemon import Controller
from hostagent.agent import Agent
from hostagent.api.access import Access
from hostagent.cold.cold_options import ColdConfig
from hostagent.config import AgentConfig, DataConfig, PoolConfig, WireConfig
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.directory import Delta, NodeEntry
from hostagent.core.events import DirectoryChanged
from hostagent.disk.disk_options import DiskConfig
from kvchunk.ids import ChunkKey
from kvclient.client import AgentClient
from kvpolicy.tiers.form_costs import FormChoice
from kvproto.fanout import Fanout
from tests.ports import free_port
from tests.unit.controlplane.test_daemon import QUICK

T = TypeVar("T")
DEADLINE_S = 60.0
MIB = 1 << 20


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


class Cluster:
    """Agents that find each other through a directory which the test writes (or a controller, if one is given)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cast_port, self.control_port = free_port(), free_port()
        self.agents: list[Agent] = []
        self.clients: list[tuple[str, AgentClient]] = []
        """With the socket of their agent."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ lifetime

    def config(
        self,
        index: int,
        *,
        pool_bytes: int = 8 * MIB,
        controllers: Sequence[str] = (),
        disk: DiskConfig | None = None,
        api_access: Access | None = None,
        cold: ColdConfig | None = None,
        wire: FormChoice = FormChoice.RAW,
        replica_bytes: int = 0,
        address: str = "",
    ) -> AgentConfig:
        return AgentConfig(
            node=f"n{index}",
            data=DataConfig(
                address=address or f"127.79.0.{index + 1}",
                cast_port=self.cast_port,
                control_port=self.control_port,
                read_port=0,
                receive_buffer_bytes=2 * MIB,
            ),
            pool=PoolConfig(pool_bytes, prefault=False),
            controllers=tuple(controllers),
            api_socket=str(self.folder / f"a{index}.sock"),
            api_access=api_access or Access(),
            http=("127.0.0.1", 0),
            disk=disk,
            cold=cold,
            wire=WireConfig(wire),
            replica_bytes=replica_bytes,
            chooses_way=False,  # by what this machine's loopback brings, today
        )

    def add(self, **options: Any) -> Agent:
        """Start one more agent; `store`: its cold store, in place of the configured one; `fanout`: as a controller
        would say it."""
        store, fanout = options.pop("store", None), options.pop("fanout", Fanout.SWITCH)
        agent = Agent(self.config(len(self.agents), **options), cold_store=store)
        self.do(agent.start())
        agent.core.relays.is_way = fanout is Fanout.RELAY
        self.agents.append(agent)
        self.tell_nodes()
        return agent

    def replace(self, index: int, **options: Any) -> Agent:
        """Stop an agent and start another one in its place; its clients are closed."""
        for path, client in self.clients:
            if path == self.agents[index].config.api_socket:
                client.close()
        self.do(self.agents[index].stop())
        agent = Agent(self.config(index, **options))
        self.do(agent.start())
        self.agents[index] = agent
        self.tell_nodes()
        return agent

    def client(self, index: int) -> AgentClient:
        """A fresh client of an agent."""
        path = self.agents[index].config.api_socket
        client = AgentClient(path)
        self.clients.append((path, client))
        return client

    def close(self) -> None:
        for _, client in self.clients:
            client.close()
        for agent in self.agents:
            self.do(agent.stop())
        self.do(_end_other_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    # ------------------------------------------------------------------ the loop

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the agents' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call something on the agents' loop."""

        async def run() -> T:
            return function()

        return self.do(run())

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of the agents holds; looked at on their loop, between its other work."""

        async def wait() -> None:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    await asyncio.sleep(0.001)

        self.do(wait())

    # ------------------------------------------------------------------ the directory

    def tell_nodes(self) -> None:
        """Every replica knows every agent."""
        self.tell(nodes=tuple(self.node(index) for index in range(len(self.agents))))

    def node(self, index: int) -> NodeEntry:
        """An agent as the directory describes it."""
        agent = self.agents[index]
        return NodeEntry(index, agent.config.node, agent.facts.address, agent.facts.read_endpoint, None)

    def publish(self, number: int, *holders: int, parent: int | None = None, **changes: Any) -> None:
        """Every replica learns that `holders` hold a chunk (as it is at the first of them, with `changes`)."""
        chunk = self.agents[holders[0]].core.pool.find(key(number))
        assert chunk is not None
        entry = ChunkEntry(
            key(number),
            key(parent) if parent is not None else None,
            chunk.size_bytes,
            chunk.digest,
            chunk.position,
            holders,
        )
        self.tell(chunks=(dataclasses.replace(entry, **changes),))

    def entry(self, index: int, key: ChunkKey) -> ChunkEntry:
        """A chunk of an agent, as the directory describes it."""
        chunk = self.call(lambda: self.agents[index].core.pool.find(key))
        assert chunk is not None
        return ChunkEntry(
            key, chunk.parent, chunk.size_bytes, chunk.digest, chunk.position, (index,), namespace=chunk.namespace
        )

    def tell(self, **content: Any) -> None:
        """A delta to every replica, as the controller would send it; agents that have a controller hear of it there."""

        def apply() -> None:
            for agent in self.agents:
                if agent.config.controllers:
                    continue
                agent.handle(DirectoryChanged(Delta(agent.core.directory.sequence + 1, **content)))

        self.call(apply)


async def _end_other_tasks() -> None:
    """What libraries left running ends before their loop does."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextlib.contextmanager
def cluster(count: int, **options: Any) -> Iterator[Cluster]:
    """`count` agents, stopped and checked for leaked pins in the end."""
    # A UNIX socket's path is short: pytest's own folders are not.
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        made = Cluster(Path(folder))
        try:
            for _ in range(count):
                made.add(**options)
            yield made
            for _, client in made.clients:
                client.close()
            for agent in made.agents:
                made.until(lambda agent=agent: agent.core.pool.pins_count == 0)
                made.until(lambda agent=agent: agent.core.fetches.under_way_count == 0)
                assert not any(True for chunk in agent.core.pool.ready_chunks() if chunk.holds)
                (errors,) = agent.metrics.internal_errors.collect()
                assert [one.value for one in errors.samples if one.name.endswith("_total")] == [0]
                usage = made.call(agent.core.pool.usage)
                assert usage.filling_bytes == 0
        finally:
            made.close()


@contextlib.contextmanager
def cluster_of_controller(*nodes: Mapping[str, Any]) -> Iterator[tuple[Cluster, Controller]]:
    """A running controller, and an agent of it for each of these options."""

    async def start() -> Controller:
        controller = Controller(parse(QUICK, Path()))
        await controller.start()
        return controller

    with cluster(0) as made:
        controller = made.do(start())
        try:
            for options in nodes:
                made.add(controllers=[controller.grpc_address], **options)
            yield made, controller
        finally:
            for _, client in made.clients:
                client.close()
            for agent in made.agents:
                made.do(agent.stop())
            made.agents.clear()
            made.do(controller.stop())
