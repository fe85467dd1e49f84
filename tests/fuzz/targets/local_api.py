"""A running agent asked by an engine that says anything, while an honest engine holds a chunk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

from hostagent.agent import Agent
from hostagent.config import AgentConfig, DataConfig, PoolConfig
from kvchunk.ids import ChunkKey
from kvclient import messages
from kvclient.attach import attach
from kvclient.messages import Frame, FrameReader, Kind, MalformedFrameError
from tests.fuzz.target import Case, check
from tests.fuzz.targets.local_messages import WORDS, request_frame
from tests.ports import free_port

_MIB = 1 << 20
_HELD = b"H" * messages.KEY_BYTES
_HELD_BYTES = 5000
_TURNS_MAX = 10_000


class LocalApi:
    """A step: bytes of one connection of an engine, sent together."""

    name: ClassVar[str] = "local-api"
    checks: ClassVar[str] = (
        "well-formed answers or the end of the connection; others' leases stay; nothing stays pinned"
    )
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = WORDS

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory(prefix="kvcast-fuzz-")
        self._path = str(Path(self._folder.name) / "agent.sock")
        ports = [free_port(), free_port()]
        config = AgentConfig(
            node="n0",
            data=DataConfig(
                address="127.79.1.1", cast_port=ports[0], control_port=ports[1], read_port=0, receive_buffer_bytes=_MIB
            ),
            pool=PoolConfig(4 * _MIB, prefault=False),
            controllers=(),
            api_socket=self._path,
            http=("127.0.0.1", 0),
        )
        self._agent = self._loop.run_until_complete(_started(config))
        self._honest, self._region = self._connected()
        self._content = self._hold()

    def fresh(self, random: Random) -> Case:
        return [request_frame(random) for _ in range(random.choice((1, 3, 10, 30)))]

    def run(self, case: Case) -> None:
        peer, region = self._connected()
        os.close(region)
        reader, answers = FrameReader(), list[Frame]()
        with peer:

            def talk() -> bool:
                try:
                    while piece := peer.recv(1 << 16):
                        answers.extend(reader.feed(piece))
                except BlockingIOError:
                    return False
                except ConnectionError:
                    pass
                except MalformedFrameError as error:
                    raise AssertionError("an answer is malformed") from error
                return True

            with contextlib.suppress(OSError):  # It was cut off, as who speaks nonsense is.
                for step in case:
                    peer.sendall(step)
                    talk()
                peer.shutdown(socket.SHUT_WR)
            self._turn_until(talk, "a connection stays open after its engine has ended it")
        self._turn_until(lambda: self._agent.api.connections_count == 1, "a connection outlives its engine")
        asked = b"".join(case)
        for answer in answers:
            check(answer.request.to_bytes(4, "big") in asked, "an answer that nobody asked for")
        self._check_rest()

    def _check_rest(self) -> None:
        pool = self._agent.core.pool
        self._turn_until(lambda: pool.pins_count == 1, "somebody's pin is lost, or one of who is gone stays")
        self._turn_until(lambda: not pool.usage().filling_bytes, "a reservation outlives its engine")
        self._turn_until(lambda: not self._agent.core.fetches.under_way_count, "a fetch outlives its engine")
        held = pool.find(ChunkKey(_HELD))
        check(held is not None, "a chunk goes that an engine holds")
        assert held is not None
        found = bytes(self._agent.memory.view(held.offset, held.size_bytes))
        check(found == self._content, "bytes change that an engine holds")
        (errors,) = self._agent.metrics.internal_errors.collect()
        check(not any(one.value for one in errors.samples if one.name.endswith("_total")), "an internal error")

    # ------------------------------------------------------------------ the honest engine

    def _hold(self) -> bytes:
        """Put a chunk and fetch it: what its bytes are. The lease stays."""
        reserved = self._asked(Kind.RESERVE, messages.RESERVE.pack(_HELD, messages.NO_KEY, _HELD_BYTES, 0))
        (lease,) = messages.LEASE.unpack(reserved.body)
        content = Random(2).randbytes(_HELD_BYTES)
        os.pwrite(self._region, content, 0)
        self._asked(Kind.COMMIT, messages.COMMIT.pack(lease, 0))
        self._asked(Kind.FETCH, messages.pack_fetch([_HELD], 1.0, {}), 1)
        return content

    def _asked(self, kind: Kind, body: bytes, count: int = 0) -> Frame:
        self._honest.sendall(messages.pack(kind, 1, body, count=count))
        reader, frames = FrameReader(), list[Frame]()

        def answered() -> bool:
            with contextlib.suppress(BlockingIOError):
                frames.extend(reader.feed(self._honest.recv(1 << 16)))
            return bool(frames)

        self._turn_until(answered, "an honest engine gets no answer")
        return frames[0]

    def _connected(self) -> tuple[socket.socket, int]:
        """A connection that the agent has greeted as the client demands, and the descriptor of its write region."""
        attached = self._loop.run_until_complete(self._loop.run_in_executor(None, attach, self._path))
        attached.sock.setblocking(False)
        region = os.dup(attached.region)
        attached.close_files()
        return attached.sock, region

    def _turn_until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(_TURNS_MAX):
            if condition():
                return
            self._loop.call_later(0.0005, self._loop.stop)
            self._loop.run_forever()
        check(condition(), what)

    def close(self) -> None:
        self._honest.close()
        os.close(self._region)
        self._loop.run_until_complete(self._agent.stop())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        with contextlib.suppress(FileNotFoundError):
            self._folder.cleanup()


async def _started(config: AgentConfig) -> Agent:
    agent = Agent(config)
    await agent.start()
    return agent
