"""Agents whose replica becomes too small for the whole directory while engines read, as processes: from then on they
follow what they ask for, and every fetch brings the right bytes before, meanwhile and afterwards."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostagent import limits
from kvchunk.ids import ChunkKey
from kvclient.attach import AgentUnavailableError
from kvclient.client import AgentClient
from kvclient.errors import AgentError
from tests.growth.controllers import controllers
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.growth

ROWS = 64
"""What a replica of the small ones may have; between 48 and 64 chunks of the whole directory are too many for it."""
FEW, MANY = 40, 200
RUN = 20
"""Chunks of a prefix."""
CHUNK_BYTES = 16 << 10
"""64 of them fill a reader's pool: it reads most of them again and again."""
SMALL = (
    f"import hostagent.limits as limits; limits.REPLICA_BYTES_MAX = {ROWS * limits.REPLICA_ROW_BYTES};"
    " from hostagent.__main__ import main; raise SystemExit(main())"
)
FOLLOWS = "this node follows what its engines ask for"


def key(number: int) -> ChunkKey:
    return ChunkKey((number + 1).to_bytes(16, "big"))


def content(number: int) -> bytes:
    return random.Random(number).randbytes(CHUNK_BYTES)


class AgentProcess:
    """`kvcast-agent`; small: with another limit of `controller.replica_bytes: auto`."""

    def __init__(self, folder: Path, number: int, controller: str, ports: tuple[int, int], *, small: bool) -> None:
        socket, config = folder / f"n{number}.sock", folder / f"n{number}.yaml"
        self._log = folder / f"n{number}{'-small' if small else ''}.log"
        config.write_text(
            f"node: n{number}\ncontroller: {{address: {controller}}}\nhttp: {{port: 0}}\n"
            f"data: {{address: 127.83.0.{number + 1}, cast_port: {ports[0]}, control_port: {ports[1]}, read_port: 0}}\n"
            f"pool: {{size: {'1MiB' if number == 1 else '8MiB'}}}\napi: {{socket: {socket}}}\n"
        )
        program = ["-c", SMALL] if small else ["-m", "hostagent"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, *program, "--config", config], stdout=log, stderr=log)
        until(lambda: "kvcast-agent ready" in self.log() or self._process.poll() is not None, self.log)
        assert self._process.poll() is None, self.log()
        self._socket = str(socket)
        self.client = AgentClient(self._socket)

    def log(self) -> str:
        return self._log.read_text()

    def known(self) -> int:
        """Other nodes' chunks that it knows of."""
        return int(self.client.stats()["directory_chunks"])

    def put(self, numbers: range) -> None:
        for number in numbers:
            above = key(number - 1) if number % RUN else None
            self.client.put(key(number), above, content(number), position=number % RUN)

    def read(self, first: int, client: AgentClient | None = None) -> None:
        """The prefix that begins with a chunk, from wherever it is. Where a busy controller does not say in time who
        has them, a fetch ends with those that are known."""
        numbers = range(first, first + RUN)
        wanted = list(map(content, numbers))

        def is_whole() -> bool:
            with (client or self.client).fetch(list(map(key, numbers)), deadline_s=60) as fetched:
                found = list(map(bytes, fetched.views))
            assert found == wanted[: len(found)]
            return found == wanted

        until(is_whole, f"chunks from {first} on are read")

    def stop(self) -> None:
        self.client.close()
        self._process.terminate()
        assert self._process.wait(60) == 0, self.log()

    def kill(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture
def agents() -> Iterator[list[AgentProcess]]:
    started: list[AgentProcess] = []
    yield started
    for one in started:
        one.kill()


def test_an_agent_follows_when_the_directory_outgrows_it_and_no_fetch_notices(
    tmp_path: Path, agents: list[AgentProcess]
) -> None:
    ports = free_port(), free_port()
    with controllers(tmp_path, {}) as (controller,):
        agents.extend(
            AgentProcess(tmp_path, number, controller.address, ports, small=number == 1) for number in range(3)
        )
        holder, small, whole = agents
        holder.put(range(FEW))
        for reader in (small, whole):
            until(lambda reader=reader: reader.known() == FEW, "they know the whole directory")
            reader.read(0)
        assert FOLLOWS not in small.log()

        reads, is_over, wrong = 0, threading.Event(), list[Exception]()

        def read_on() -> None:
            nonlocal reads
            rng = random.Random(1)
            try:
                with AgentClient(small._socket) as client:
                    while not is_over.is_set():
                        small.read(rng.randrange(FEW // RUN) * RUN, client)
                        reads += 1
            except (AssertionError, AgentError, AgentUnavailableError) as error:
                wrong.append(error)

        reading = threading.Thread(target=read_on)
        reading.start()
        holder.put(range(FEW, MANY))
        until(lambda: FOLLOWS in small.log(), small.log)
        before = reads
        until(lambda: wrong or reads > before + 5, "reads go on")
        is_over.set()
        reading.join()
        assert not wrong, wrong

        until(lambda: whole.known() == MANY, "the other one knows all")
        for first in range(0, MANY, RUN):
            small.read(first)
            assert small.known() <= ROWS
        holder.put(range(MANY, MANY + RUN))
        small.read(MANY)
        assert FOLLOWS not in whole.log()

        small.stop()
        agents[1] = AgentProcess(tmp_path, 1, controller.address, ports, small=False)
        until(lambda: agents[1].known() >= MANY, "with more room it knows the whole directory again")
        agents[1].read(MANY - RUN)
