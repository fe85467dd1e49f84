"""How far a reader of the code walks with one fetched chunk: Python calls in two agents while one of them fetches a
chunk of 1 MiB from the other, by reliable reads over loopback.

Prints calls, distinct functions, files, and moves (calls into another file than the call before). Only this project's
files count. Run it from the root of a checkout: `.venv/bin/python tools/measure_fetch_walk.py`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

from hostagent.agent import Agent
from hostagent.config import AgentConfig, DataConfig, PoolConfig
from hostagent.core.directory import ChunkEntry, Delta, NodeEntry
from hostagent.core.events import DirectoryChanged
from kvchunk.ids import ChunkKey
from kvclient.client import AgentClient

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
KEY = ChunkKey(b"measured by walk")
WARM_UP = ChunkKey(b"before that walk")
_PORTS = (41_790, 41_793)
"""Of casts and of control datagrams; below those that Linux gives out by itself on most machines."""


class Walk:
    """A profile function that follows calls from file to file."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.moves = 0
        self._at = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)) or "/.venv" in code.co_filename:
            return
        self.calls[code.co_filename, code.co_qualname] += 1
        self.moves += code.co_filename != self._at
        self._at = code.co_filename

    def __str__(self) -> str:
        files = {file for file, _ in self.calls}
        return f"{self.calls.total()} calls, {len(self.calls)} functions, {len(files)} files, {self.moves} moves"


def _config(folder: str, index: int) -> AgentConfig:
    cast_port, control_port = _PORTS
    data = DataConfig(
        address=f"127.81.0.{index + 1}",
        cast_port=cast_port,
        control_port=control_port,
        read_port=0,
        receive_buffer_bytes=2 * MIB,
    )
    return AgentConfig(
        node=f"n{index}",
        data=data,
        pool=PoolConfig(8 * MIB, prefault=False),
        controllers=(),
        api_socket=f"{folder}/a{index}.sock",
        http=("127.0.0.1", 0),
    )


def _learn(agents: list[Agent], sequence: int, key: ChunkKey) -> None:
    """Both replicas learn both nodes, and that the first has a chunk."""
    holder = agents[0].core.pool.find(key)
    if holder is None:
        raise LookupError(f"{key!r} was not put")
    nodes = tuple(
        NodeEntry(index, agent.config.node, agent.facts.address, agent.facts.read_endpoint, None)
        for index, agent in enumerate(agents)
    )
    chunk = ChunkEntry(key, None, holder.size_bytes, holder.digest, 0, (0,))
    for agent in agents:
        agent.handle(DirectoryChanged(Delta(sequence, nodes=nodes, chunks=(chunk,))))


async def _fetch(client: AgentClient, key: ChunkKey) -> None:
    """Fetch one chunk, in a thread of the engine's, and wait until the agents are quiet again."""
    got = await asyncio.to_thread(client.fetch, [key], deadline_s=10.0)
    if got.count != 1:
        raise LookupError(f"the fetch of {key!r} ended with {got.outcome.name}")
    await asyncio.to_thread(got.release)
    await asyncio.sleep(0.2)


async def measure() -> Walk:
    """The walk of one fetch, after another one has opened the connection between the agents."""
    walk = Walk()
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        agents = [Agent(_config(folder, index)) for index in range(2)]
        for agent in agents:
            await agent.start()
        put, fetch = [await asyncio.to_thread(AgentClient, agent.config.api_socket) for agent in agents]
        for sequence, key in enumerate((WARM_UP, KEY), 1):
            await asyncio.to_thread(put.put, key, None, bytes(MIB))
            _learn(agents, sequence, key)
        await _fetch(fetch, WARM_UP)
        sys.setprofile(walk)
        await _fetch(fetch, KEY)
        sys.setprofile(None)
        for client in (put, fetch):
            client.close()
        for agent in agents:
            await agent.stop()
    return walk


if __name__ == "__main__":
    print(asyncio.run(measure()))
