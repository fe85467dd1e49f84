"""A cold store in Mooncake Store: memory that other nodes lend, found through one mooncake_master.

This node lends none. Mooncake's client (PyPI mooncake-transfer-engine-non-cuda, Apache-2.0) runs in a process of its
own (`mooncake_child`), which shares registered memory with the agent. Cancelling an operation
that the client works on ends that process, so that it writes nothing afterwards; the next operation starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import logging
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.mooncake_child import MESSAGE_BYTES_MAX
from hostagent.cold.mooncake_options import MooncakeOptions, mooncake_options
from hostagent.cold.stores import ColdStoreError
from hostagent.limits import EXTENT_ALIGN_BYTES
from hostagent.pool.extents import ExtentAllocator
from kvdaemon import checks
from kvdaemon.errors import CannotRunError
from kvproto.units import format_bytes

log = logging.getLogger(__name__)
START_S: Final = 30.0
"""A client that has not started by then is ended: with a hanging master it would wait forever."""

_SHORT: Final = -600
"""INVALID_PARAMS: the object is shorter than the read."""
_ABSENT: Final = frozenset({-704, -703, -712})
"""OBJECT_NOT_FOUND; REPLICA_IS_NOT_READY, a client is writing it; REPLICA_IS_GONE."""
_WRITTEN_BY_ANOTHER: Final = -601
"""ILLEGAL_CLIENT: another client has begun to write the same name since, and its object counts."""
_LOST: Final = frozenset({-900, -901})
"""RPC_FAIL, RPC_TIMEOUT: the client does not recover its connection to the master."""
_TEXTS: Final = {
    -200: "no room in the memory that nodes lend",
    -707: "reading took longer than its lease",
    -800: "a node that lends memory does not answer",
    -900: "the master does not answer",
    -901: "the master does not answer in time",
}


def open_mooncake(config: ColdConfig) -> MooncakeStore:
    """The store; its client starts with the first operation. Raises CannotRunError."""
    options = mooncake_options(config)
    if importlib.util.find_spec("mooncake") is None:
        raise CannotRunError("cold.scheme is mooncake, and its client is not installed: pip install 'kvcast[mooncake]'")
    return MooncakeStore(options)


class MooncakeStore:
    """See `ColdStore`."""

    def __init__(self, options: MooncakeOptions) -> None:
        """`options`: checked ones."""
        self._options = options
        self._client: MooncakeClient | None = None
        self._starting: asyncio.Task[MooncakeClient] | None = None

    def __repr__(self) -> str:
        return f"MooncakeStore({self._options.master})"

    @property
    def process(self) -> int | None:
        """The number of its client's process; None: none runs."""
        return None if self._client is None or self._client.ended is not None else self._client.process.pid

    async def put(self, name: str, content: bytes) -> None:
        """See `ColdStore`."""
        client = await self._started()
        async with client.room(len(content)) as (at, view):
            np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(content, np.uint8))
            status = await self._ask(client, "put", name, at, len(content))
        if status not in (0, _WRITTEN_BY_ANOTHER):
            raise _error("put", status)

    async def get_into(self, name: str, buffers: Sequence[memoryview]) -> bool | None:
        """See `ColdStore`."""
        client = await self._started()
        size_bytes = sum(map(len, buffers))
        async with client.room(size_bytes) as (at, view):
            status = await self._ask(client, "get", name, at, size_bytes)
            if status == size_bytes:
                _scatter(view, buffers)
                return True
        if status == _SHORT:
            stored_bytes = await self._ask(client, "size", name)
            if 0 <= stored_bytes < size_bytes:
                return False
        if status in _ABSENT:
            return None
        raise _error("get", status)

    async def exists(self, name: str) -> bool:
        """See `ColdStore`."""
        status = await self._ask(await self._started(), "exists", name)
        if status < 0:
            raise _error("look", status)
        return status > 0

    async def delete(self, name: str) -> None:
        """See `ColdStore`."""
        status = await self._ask(await self._started(), "delete", name)
        if status != 0 and status not in _ABSENT:
            raise _error("delete", status)

    async def close(self) -> None:
        """See `ColdStore`."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._client is not None:
            self._client.end("closed")

    async def _ask(self, client: MooncakeClient, do: str, name: str, at: int = 0, size_bytes: int = 0) -> int:
        """Mooncake's status. Ends the client where its connection is lost. Raises ColdStoreError."""
        status = await client.ask(do, self._options.root + name, at, size_bytes)
        if status in _LOST:
            client.end(_TEXTS[status])
        return status

    async def _started(self) -> MooncakeClient:
        """The client, or a new one. Several operations wait for the same; one that is cancelled does not end it."""
        if self._client is not None and self._client.ended is None:
            return self._client
        if self._starting is None:
            self._starting = asyncio.create_task(start(self._options))
            self._starting.add_done_callback(self._start_ended)
        return await asyncio.shield(self._starting)

    def _start_ended(self, task: asyncio.Task[MooncakeClient]) -> None:
        self._starting = None
        # Callers that still wait get an error from the task.
        if not task.cancelled() and task.exception() is None:
            self._client = task.result()


async def start(options: MooncakeOptions) -> MooncakeClient:
    """A client that has started. Raises ColdStoreError."""
    try:
        async with asyncio.timeout(START_S):
            own_address = await _own_address(options.master)
            client = MooncakeClient(options, options.address or own_address)
            try:
                await client.started
            except BaseException:
                client.end("its client was ended before it had started")
                raise
            return client
    except TimeoutError:
        raise ColdStoreError(f"its client does not start within {START_S:g} s: does the master hang?") from None


async def _own_address(master: str) -> str:
    """This node's address on the way to the master. Raises ColdStoreError where there is no master."""
    try:
        # Mooncake's client would try for minutes to reach a master that is not there.
        _, writer = await asyncio.open_connection(*checks.host_port(master))
    except OSError as error:
        raise ColdStoreError(f"no mooncake_master at {master}: {error.strerror or error}") from None
    address: str = writer.get_extra_info("sockname")[0]
    writer.close()
    return address


class MooncakeClient:
    """One process of `mooncake_child`, and the memory that it shares. Belongs to the event loop it was made in."""

    def __init__(self, options: MooncakeOptions, address: str) -> None:
        """Begins; `started` is done when it has started. Raises ColdStoreError."""
        self.ended: str | None = None
        """Why it has ended; None: it has not."""
        loop = asyncio.get_running_loop()
        setup = {**asdict(options), "address": address}
        self._buffer_bytes = options.buffer
        self._extents = ExtentAllocator(options.buffer, EXTENT_ALIGN_BYTES)
        self._freed = asyncio.Condition()
        self._numbers = itertools.count(1)
        self.started: asyncio.Future[int] = loop.create_future()
        self._answers = {0: self.started}
        memory = os.memfd_create("kvcast-mooncake", os.MFD_CLOEXEC)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            os.ftruncate(memory, options.buffer)
            self._memory = memoryview(mmap.mmap(memory, options.buffer))
            words = [str(theirs.fileno()), str(memory), str(os.getpid()), json.dumps(setup)]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hostagent.cold.mooncake_child", *words],
                pass_fds=(theirs.fileno(), memory),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Mooncake logs much, in a form of its own. The statuses say all that the agent needs.
                stderr=None if log.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
            )
        except OSError as error:
            self._socket.close()
            raise ColdStoreError(f"its client does not start: {error.strerror}") from None
        finally:
            theirs.close()
            os.close(memory)
        self._socket.setblocking(False)
        loop.add_reader(self._socket, self._read_answers)

    @contextlib.asynccontextmanager
    async def room(self, size_bytes: int) -> AsyncIterator[tuple[int, memoryview]]:
        """Shared memory for the time of a block: where it begins, and its bytes. Raises ColdStoreError."""
        if size_bytes > self._buffer_bytes:
            wanted = format_bytes(size_bytes)
            raise ColdStoreError(f"an object of {wanted} does not fit into cold.options.buffer: give it more")
        async with self._freed:
            while (at := self._extents.allocate(size_bytes)) is None:
                await self._freed.wait()
        try:
            yield at, self._memory[at : at + size_bytes]
        finally:
            self._extents.free(at, size_bytes)
            async with self._freed:
                self._freed.notify_all()

    async def ask(self, do: str, name: str, at: int, size_bytes: int) -> int:
        """Mooncake's status. Raises ColdStoreError."""
        if self.ended is not None:
            raise ColdStoreError(self.ended)
        number = next(self._numbers)
        request = json.dumps({"number": number, "do": do, "name": name, "at": at, "size": size_bytes}).encode()
        try:
            self._socket.send(request)
        except OSError as error:
            raise ColdStoreError(f"its client takes no request: {error.strerror}") from None
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            return await answer
        except asyncio.CancelledError:
            self.end(f"its client was ended because a {do} was cancelled")
            raise

    def end(self, reason: str) -> None:
        """End the process; its pending operations raise ColdStoreError with this reason. Further calls do nothing."""
        if self.ended is not None:
            return
        self.ended = reason
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.process.kill()
        self.process.wait()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ColdStoreError(reason))
                # Marks it as seen: its caller may have been cancelled, and asyncio would log the error.
                answer.exception()
        self._answers.clear()

    def _read_answers(self) -> None:
        """Read the process's answers, or its end."""
        while True:
            try:
                message = self._socket.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                message = b""
            if not message:
                self.end("its client's process ended by itself")
                return
            found = json.loads(message)
            if "error" in found:
                self.end(str(found["error"]).splitlines()[0])
                return
            answer = self._answers.pop(found["number"])
            if not answer.done():
                answer.set_result(found["status"])


def _scatter(view: memoryview, buffers: Sequence[memoryview]) -> None:
    at = 0
    for buffer in buffers:
        # numpy lets go of the GIL while it copies.
        np.copyto(np.frombuffer(buffer, np.uint8), np.frombuffer(view[at : at + len(buffer)], np.uint8))
        at += len(buffer)


def _error(what: str, status: int) -> ColdStoreError:
    return ColdStoreError(f"{what}: {_TEXTS.get(status, 'refused')} (Mooncake's status {status})")
