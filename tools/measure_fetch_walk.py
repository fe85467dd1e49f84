"""How far a reader of the code walks with one chunk: Python calls in real agents while one of them fetches a chunk of
1 MiB from the other by reliable reads over loopback, and while an engine puts one.

Prints calls, distinct functions, files, and moves (calls into another file than the call before) of the shortest of a
few runs, and fails above the budget. Only what the agents run counts, not this script. Run it from the root of a
checkout:

    .venv/bin/python tools/measure_fetch_walk.py                  both tables, against the budget (`make walk`)
    .venv/bin/python tools/measure_fetch_walk.py --list fetch     each call of one walk, in order, and counts by file
    .venv/bin/python tools/measure_fetch_walk.py --write          the table in docs/explanation/architecture.md
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from hostagent.agent import Agent
from hostagent.config import AgentConfig, DataConfig, PoolConfig
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.directory import Delta, NodeEntry
from hostagent.core.events import DirectoryChanged
from kvchunk.ids import ChunkKey
from kvclient.client import AgentClient

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/explanation/architecture.md"
MARKS = ("<!-- walk: written by tools/measure_fetch_walk.py -->", "<!-- end of walk -->")
MIB = 1 << 20
RUNS = 6
"""Timers of the agents, and what the kernel hands over at a time, make some runs longer."""
RUNS_MAX = 40
"""On a busy machine nearly every run meets a timer: there are more of them until one met none."""
QUIET_S = 0.05
"""What follows on a call is over by then; what agents do every tenth of a second is not the call's."""
_PORTS = (41_790, 41_793)
"""Of casts and of control datagrams; below those that Linux gives out by itself on most machines."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a walk may take at most. It may only fall."""

    calls: int
    files: int
    moves: int


BUDGETS = {"fetch": Budget(400, 45, 200), "put": Budget(150, 27, 80)}
"""What a walk takes now, with room for the timers of a busy machine."""
AIMS = {"fetch": Budget(300, 40, 150), "put": Budget(150, 25, 80)}
WHAT = {"fetch": "a fetch, two agents", "put": "a put, one agent"}


@dataclass(slots=True)
class Walk:
    """A profile function that follows calls from file to file."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    moves: int = 0
    lines: list[str] = field(default_factory=list)
    """Each call, indented by how deep it is."""
    _at: str = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """See `sys.setprofile`."""
        file, function = frame.f_code.co_filename, frame.f_code.co_qualname
        if event != "call" or not _is_ours(file):
            return
        self.calls[file, function] += 1
        self.moves += file != self._at
        self._at = file
        depth, caller = 0, frame.f_back
        while caller is not None:
            depth += _is_ours(caller.f_code.co_filename)
            caller = caller.f_back
        self.lines.append(f"{'  ' * depth}{Path(file).relative_to(ROOT)} {function}")

    @property
    def files(self) -> Counter[str]:
        """Calls by file."""
        found: Counter[str] = Counter()
        for (file, _), count in self.calls.items():
            found[str(Path(file).relative_to(ROOT))] += count
        return found

    def exceeds(self, budget: Budget) -> bool:
        """Whether it is longer than it may be."""
        return self.calls.total() > budget.calls or len(self.files) > budget.files or self.moves > budget.moves

    def row(self, name: str) -> str:
        """Of the table."""
        return f"| {WHAT[name]} | {self.calls.total()} | {len(self.calls)} | {len(self.files)} | {self.moves} |"


def _is_ours(file: str) -> bool:
    return file.startswith(str(ROOT)) and "/.venv" not in file and file != __file__


def _config(folder: str, index: int) -> AgentConfig:
    cast_port, control_port = _PORTS
    data = DataConfig(
        address=f"127.{os.getpid() % 250 + 1}.{index + 1}.81",  # several runs of this script do not meet
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


def _fetch(client: AgentClient, key: ChunkKey) -> None:
    with client.fetch([key], deadline_s=10.0) as got:
        if got.count != 1:
            raise LookupError(f"the fetch of {key!r} ended with {got.outcome.name}")


def _put(client: AgentClient, key: ChunkKey) -> None:
    client.put(key, None, bytes(MIB))


async def _walk(call: Callable[[AgentClient, ChunkKey], None], client: AgentClient, key: ChunkKey) -> Walk:
    """What the agents do while an engine's thread makes this call, and until they are quiet again."""
    walk = Walk()
    sys.setprofile(walk)
    await asyncio.to_thread(call, client, key)
    await asyncio.sleep(QUIET_S)
    sys.setprofile(None)
    return walk


async def _measure() -> dict[str, Walk]:
    """One walk of each kind, after others have opened the connection between the agents."""
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        agents = [Agent(_config(folder, index)) for index in range(2)]
        for agent in agents:
            await agent.start()
        holder, reader = [await asyncio.to_thread(AgentClient, agent.config.api_socket) for agent in agents]
        walks = {}
        for sequence in (1, 2):  # the first ones warm up
            key = ChunkKey(bytes([sequence]) * 16)
            walks["put"] = await _walk(_put, holder, key)
            _learn(agents, sequence, key)
            await asyncio.sleep(0.2)
            walks["fetch"] = await _walk(_fetch, reader, key)
        for client in (holder, reader):
            client.close()
        for agent in agents:
            await agent.stop()
    return walks


def measure() -> dict[str, Walk]:
    """The shortest walk of each kind."""
    shortest: dict[str, Walk] = {}
    for run in range(RUNS_MAX):
        for name, walk in asyncio.run(_measure()).items():
            shortest[name] = min(shortest.get(name, walk), walk, key=lambda one: one.calls.total())
        if run + 1 >= RUNS and not any(walk.exceeds(BUDGETS[name]) for name, walk in shortest.items()):
            break
    return shortest


def _table(walks: dict[str, Walk]) -> str:
    rows = [walks[name].row(name) for name in WHAT]
    return "\n".join(["| one chunk of 1 MiB | calls | functions | files | moves |", "|---|---|---|---|---|", *rows])


def _write(table: str) -> None:
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    if not after:
        raise LookupError(f"{PAGE} has no place between {MARKS[0]} and {MARKS[1]}")
    PAGE.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}")


def main() -> int:
    """Entry point. Returns 1 when a walk is longer than its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=tuple(WHAT), help="each call of this walk, and counts by file")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    walks = measure()
    if args.list:
        walk = walks[args.list]
        print("\n".join(walk.lines))
        print("\n".join(f"{count:5} {file}" for file, count in walk.files.most_common()))
    table = _table(walks)
    print(table)
    if args.write:
        _write(table)
    for name, aim in AIMS.items():
        print(f"aim of {WHAT[name]}: {aim.calls} calls, {aim.files} files, {aim.moves} moves")
    longer = [name for name, walk in walks.items() if walk.exceeds(BUDGETS[name])]
    for name in longer:
        budget = BUDGETS[name]
        print(f"{WHAT[name]} is too long: at most {budget.calls} calls, {budget.files} files, {budget.moves} moves")
    return 1 if longer else 0


if __name__ == "__main__":
    raise SystemExit(main())
