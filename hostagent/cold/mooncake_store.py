"""A cold store in Mooncake Store: memory that other nodes lend, found through one mooncake_master.

This node lends none. Mooncake's client (PyPI mooncake-transfer-engine-non-cuda, Apache-2.0) runs in a process of its
own (`mooncake_child`), which shares registered memory with the agent. Cancelling an operation
that the client works on ends that process, so that it writes nothing afterwards; the next operation starts another.

The options of a cold store in Mooncake Store (`cold.scheme: mooncake`).
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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np

from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.mooncake_child import MESSAGE_BYTES_MAX
from hostagent.cold.stores import ColdStoreError
from hostagent.limits import EXTENT_ALIGN_BYTES
from hostagent.pool.extents import ExtentAllocator
from kvdaemon import checks
from kvdaemon.errors import CannotRunError
from kvproto.units import format_bytes

MIB: Final = 1 << 20
BUFFER_BYTES_MAX: Final = 1 << 36
REPLICAS_MAX: Final = 16
DIGITS_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class MooncakeOptions:
    """Each field is an option of the same name."""

    master: str
    """HOST:PORT of mooncake_master."""
    metadata_server: str = "P2PHANDSHAKE"
    """Where Mooncake's clients find each other, as in http://10.0.0.9:8080/metadata; by default they ask each other."""
    address: str = ""
    """Of this node, for the nodes that lend memory; empty: the one that leads to the master."""
    protocol: str = "tcp"
    devices: str = ""
    """Of RDMA, with commas between them; empty: Mooncake chooses."""
    replicas: int = 1
    """Of each object that is stored, on as many nodes."""
    root: str = ""
    """Stands before each name, with a slash between."""
    buffer: int = 64 * MIB
    """Bytes of memory that are registered for what is under way; the largest object fits in."""


def mooncake_options(config: ColdConfig) -> MooncakeOptions:
    """What a configuration says, checked. Raises CannotRunError."""
    if config.secrets:
        raise CannotRunError("cold.secrets: mooncake takes no credentials: leave them out")
    known = [one.name for one in fields(MooncakeOptions)]
    for name in config.options:
        if name not in known:
            raise CannotRunError(f"cold.options: mooncake does not know {name}, but {', '.join(known)}")
    if "master" not in config.options:
        raise CannotRunError("cold.options: mooncake needs master, the HOST:PORT of mooncake_master")
    return MooncakeOptions(**_checked(config.options))


def _checked(options: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in options.items():
        try:
            values[name] = _CHECKS.get(name, checks.text)(text)
        except ValueError as error:
            raise CannotRunError(f"cold.options: mooncake: {name}: {error}") from None
    return values


def _master(text: str) -> str:
    checks.host_port(text, port_min=1)
    return text


def _metadata_server(text: str) -> str:
    if not text:
        raise ValueError("it is empty: leave it out to let Mooncake's clients find each other (P2PHANDSHAKE)")
    return text


def _whole(text: str, most: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else 0
    if not 1 <= number <= most:
        raise ValueError(f"{text!r} is not a whole number from 1 to {most}")
    return number


def _buffer(text: str) -> int:
    size_bytes = checks.size(int(text) if text.isascii() and text.isdigit() else text)
    if not MIB <= size_bytes <= BUFFER_BYTES_MAX:
        raise ValueError(f"{text!r} is not a size from 1MiB to 64GiB")
    return -(-size_bytes // EXTENT_ALIGN_BYTES) * EXTENT_ALIGN_BYTES


def _root(text: str) -> str:
    return "".join(f"{part}/" for part in text.split("/") if part)


_CHECKS: Final[Mapping[str, Callable[[str], Any]]] = {
    "master": _master,
    "metadata_server": _metadata_server,
    "protocol": checks.one_of(("tcp", "rdma")),
    "replicas": lambda text: _whole(text, REPLICAS_MAX),
    "buffer": _buffer,
    "root": _root,
}


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
