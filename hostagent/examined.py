"""The agent's part in an examination of the cluster (`kvcast doctor cluster`): does one step after the other.

It takes the steps as an engine of this process would, through the same events as engines' requests, so what works here
works for engines. A step cannot name a chunk: keys follow from the examination and a number (`kvproto.probes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.directory import DirectoryReplica
from hostagent.core.events import EngineId
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import TransportError
from hostagent.transport.group_watch import datagram_of, take_only, watching_socket
from hostagent.transport.host import HostTransport, group_socket
from hostagent.transport.interfaces import entry_of, interface_with, mtu_bytes
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Kind, Status
from kvproto.blocks import TRIAL
from kvproto.ids import format_address
from kvproto.probes import PROBE_MAGIC, PROBE_NAMESPACE, probe_bytes, probe_key
from kvproto.rpc import control_pb2 as pb
from kvproto.wire.data import Fabric
from kvproto.wire.layouts import IPV4_BYTES, UDP_BYTES

log = logging.getLogger(__name__)

EXAMINING_ENGINE: Final = EngineId(0)
"""No connection has this number."""
_DATAGRAM: Final = struct.Struct(f">{len(PROBE_MAGIC)}sQ?")
"""Magic, examination, whether it is a large one."""
"""Linux, include/uapi/linux/sockios.h."""
_ROUTES: Final = "/proc/net/route"
_SOURCES = {source: pb.Source.Value(f"SOURCE_{source.name}") for source in ChunkSource}


class _StepError(Exception):
    """The step did not work; one line."""


class Examined:
    """Takes steps with `run`, says how they ended through `send`."""

    def __init__(
        self,
        handle: Callable[[events.EngineEvent], None],
        memory: PoolMemory,
        transport: HostTransport,
        directory: DirectoryReplica,
        data_port: int,
        fabric: Callable[[], Fabric],
        send: Callable[[pb.FromAgent], None],
        certificate_ends_s: Callable[[], float] | None,
    ) -> None:
        """`handle(event)`: takes requests, whose answers come to `answer`; `data_port`, `fabric()`: where casts go;
        `certificate_ends_s()`: when this node's certificate expires; None: it has none."""
        self._handle = handle
        self._memory = memory
        self._transport = transport
        self._directory = directory
        self._data_port = data_port
        self._fabric = fabric
        self._send = send
        self._certificate_ends_s = certificate_ends_s
        self._loop = asyncio.get_running_loop()
        self._steps: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._requests = 0
        self._chunks: dict[ChunkKey, asyncio.TimerHandle] = {}
        """What examinations left in the pool, and when it goes."""
        self._listening: socket.socket | None = None
        self._group_ears: socket.socket | None = None
        self._group_heard: tuple[str, bool, str, int] = "", False, "", 0
        """By them; whether without being in it; at which address and interface."""
        self._ears: asyncio.TimerHandle | None = None
        self._heard: dict[int, defaultdict[tuple[str, bool, bool], int]] = {}
        """By examination: datagrams by (source address, large, to the group)."""

    def run(self, task: pb.Task) -> None:
        """Take a step; its TaskResult follows."""
        if len(self._steps) >= limits.EXAMINATION_STEPS_MAX:
            refused = pb.TaskResult(task=task.task, status=pb.TaskResult.REFUSED, detail="too many steps at once")
            self._send(pb.FromAgent(task_result=refused))
            return
        step = self._loop.create_task(self._run(task))
        self._steps.add(step)
        step.add_done_callback(self._steps.discard)

    def answer(self, answer: Any) -> None:
        """The core's answer to a request of ours."""
        waiting = self._waiting.pop(answer.request, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
        elif isinstance(answer, effects.FetchAnswered):
            self._loop.call_soon(self._handle, events.LeaseReleased(EXAMINING_ENGINE, answer.lease))

    def close(self) -> None:
        """Give everything up."""
        for step in self._steps:
            step.cancel()
        for timer in self._chunks.values():
            timer.cancel()
        self._chunks.clear()
        self._end_listening()

    async def _run(self, task: pb.Task) -> None:
        result = pb.TaskResult(task=task.task, status=pb.TaskResult.DONE)
        timeout_s = (task.timeout_ms or limits.TASK_TIMEOUT_MS) / 1000
        try:
            async with asyncio.timeout(timeout_s):
                result.probe.CopyFrom(await self._step(task.probe, timeout_s))
        except _StepError as error:
            result.status, result.detail = pb.TaskResult.FAILED, str(error)
        except TimeoutError:
            result.status, result.detail = pb.TaskResult.FAILED, f"not done within {timeout_s:g} s"
        except Exception:  # a defect of ours: whoever examines learns of it, the agent goes on
            log.exception("a step of an examination failed")
            result.status, result.detail = pb.TaskResult.FAILED, "a defect of the agent: see its log"
        self._send(pb.FromAgent(task_result=result))

    async def _step(self, probe: pb.Probe, timeout_s: float) -> pb.ProbeResult:
        match probe.WhichOneof("step"):
            case "look":
                return self._look(probe.examination, probe.look)
            case "send":
                return self._send_datagrams(probe.examination, probe.send)
            case "hear":
                return await self._hear(probe.examination, probe.hear)
            case "put":
                return await self._put(probe_key(probe.examination, probe.put.number), probe.put.size_bytes)
            case "get":
                key = probe_key(probe.examination, probe.get.number)
                return await self._get(key, probe.get, timeout_s)
            case "drop":
                numbers = probe.drop.numbers
                return await self._drop([probe_key(probe.examination, number) for number in numbers] or self._chunks)
        raise _StepError("this agent does not know the step: update it")

    # ------------------------------------------------------------------ datagrams

    def _look(self, examination: int, step: pb.ProbeLook) -> pb.ProbeResult:
        data = self._transport.casts.data_socket()
        ends_s = int(self._certificate_ends_s()) if self._certificate_ends_s is not None else 0
        facts = pb.ProbeFacts(unix_ns=time.time_ns(), hears=data is not None, certificate_ends_s=ends_s)
        if data is not None:
            self._listen(data)
            self._heard = {examination: defaultdict(int)}
            place = entry_of(data.getsockname()[0])
            if place is not None and not place.is_loopback:
                facts.interface = place.interface
                facts.mtu_bytes = mtu_bytes(place.interface)
                facts.prefix_bits = place.prefix_bits
                facts.routes = place.interface in _default_interfaces()
            if step.block:
                facts.watches = self._hear_group(data.getsockname()[0], step)
            else:
                self._leave_group()
        return pb.ProbeResult(facts=facts)

    def _listen(self, data: socket.socket) -> None:
        self._stop_listening()
        self._listening = data
        with contextlib.suppress(BlockingIOError):
            while True:
                data.recvfrom(1)
        self._loop.add_reader(data.fileno(), self._take_datagrams, data)
        self._ears = self._loop.call_later(limits.EXAMINATION_LIFETIME_S, self._end_listening)

    def _stop_listening(self) -> None:
        if self._ears is not None:
            self._ears.cancel()
        if self._listening is not None and self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
        self._listening = None

    def _end_listening(self) -> None:
        self._stop_listening()
        self._leave_group()

    def _leave_group(self) -> None:
        if self._group_ears is not None:
            self._loop.remove_reader(self._group_ears.fileno())  # if there is one
            self._group_ears.close()
            self._group_ears = None

    def _hear_group(self, address: str, step: pb.ProbeLook) -> bool:
        """Listen to a group; whether that could be done as asked. The kernel reports a group to the network when its
        first socket joins: one that casts come to is not reported anew. Who listens already goes on: switches may take
        a while to let a new member have anything."""
        group, interface = self._group(step.block), interface_with(address)
        heard = group, step.watches, address, 0 if interface is None else socket.if_nametoindex(interface)
        if self._group_ears is not None and self._group_heard == heard:
            return True
        self._leave_group()
        if step.watches and interface is None:
            return False
        try:
            if step.watches and interface is not None:
                self._group_ears = watching_socket(interface, group)
            else:
                self._group_ears = group_socket(address, (group,), self._data_port)
                take_only(self._group_ears, UDP_BYTES, PROBE_MAGIC[:4])  # casts may come to this group, too
        except (OSError, TransportError) as error:
            log.debug("a group cannot be %s here: %s", "watched" if step.watches else "joined", error)
            self._leave_group()
            return False
        self._group_heard = heard
        self._loop.add_reader(self._group_ears.fileno(), self._take_of_group, self._group_ears)
        return True

    def _take_of_group(self, ears: socket.socket) -> None:
        for _ in range(limits.CONTROL_BATCH_DATAGRAMS):
            try:
                packet, source = ears.recvfrom(limits.EXAMINATION_PACKET_BYTES_MAX)
            except OSError:
                return
            datagram, address = datagram_of(packet) if self._group_heard[1] else (packet, source[0])
            self._count(datagram, address, by_group=True)

    def _take_datagrams(self, data: socket.socket) -> None:
        for _ in range(limits.CONTROL_BATCH_DATAGRAMS):
            try:
                datagram, source = data.recvfrom(limits.EXAMINATION_PACKET_BYTES_MAX)
            except OSError:  # nothing more, or an ICMP error of something that was sent
                return
            self._count(datagram, source[0], by_group=False)

    def _count(self, datagram: bytes, address: str, *, by_group: bool) -> None:
        if len(datagram) >= _DATAGRAM.size:
            magic, examination, large = _DATAGRAM.unpack_from(datagram)
            if magic == PROBE_MAGIC and examination in self._heard:
                self._heard[examination][address, large, by_group] += 1

    def _send_datagrams(self, examination: int, step: pb.ProbeSend) -> pb.ProbeResult:
        data = self._transport.casts.data_socket()
        if data is None:
            raise _StepError("casts do not go through a socket here")
        if not limits.EXAMINATION_SMALL_BYTES <= step.packet_bytes <= limits.EXAMINATION_PACKET_BYTES_MAX:
            raise _StepError(f"no packet of {step.packet_bytes} bytes")
        result = pb.ProbeResult()
        addresses = {number: node for number in step.nodes if (node := self._address(number)) is not None}
        for number in set(step.nodes) - addresses.keys():
            result.unsent.add(node=number, reason="the directory does not know it")
        if step.block:
            addresses = {0: self._group(step.block)}
        for number, address in addresses.items():
            for large, packet_bytes in ((False, limits.EXAMINATION_SMALL_BYTES), (True, step.packet_bytes)):
                body = _DATAGRAM.pack(PROBE_MAGIC, examination, large)
                body = body.ljust(packet_bytes - IPV4_BYTES - UDP_BYTES, b"\0")
                reason = self._send_some(data, body, address)
                if reason:
                    result.unsent.add(node=number, large=large, reason=reason)
        return result

    def _group(self, block: int) -> str:
        if block > TRIAL:
            raise _StepError(f"there is no block {block} of members")
        return format_address(self._fabric().group_of(block))

    def _address(self, number: int) -> str | None:
        node = self._directory.node(number)
        return None if node is None else format_address(node.address)

    def _send_some(self, data: socket.socket, body: bytes, address: str) -> str:
        for _ in range(limits.EXAMINATION_DATAGRAMS):
            try:
                data.sendto(body, (address, self._data_port))
            except BlockingIOError:
                continue  # casts fill the buffer: the path works
            except OSError as error:
                return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"
        return ""

    async def _hear(self, examination: int, step: pb.ProbeHear) -> pb.ProbeResult:
        heard = self._heard.get(examination)
        if heard is None:
            raise _StepError("another examination has begun")
        nodes = {number: node for number in step.nodes if (node := self._address(number)) is not None}
        by_group = step.by_group
        until_s = self._loop.time() + step.wait_ms / 1000
        while self._loop.time() < until_s and not all(
            heard[address, large, by_group] for address in nodes.values() for large in (False, True)
        ):
            await asyncio.sleep(limits.EXAMINATION_RETRY_S)
        if by_group and self._group_heard[0] != self._group(TRIAL):
            self._leave_group()  # the kernel copies for it what is cast
        result = pb.ProbeResult()
        for number, address in nodes.items():
            small, large = (heard[address, size, by_group] for size in (False, True))
            result.heard.add(node=number, small=small, large=large)
        return result

    # ------------------------------------------------------------------ chunks

    async def _put(self, key: ChunkKey, size_bytes: int) -> pb.ProbeResult:
        self._keep(key, size_bytes)
        reserved = await self._ask(
            lambda request: events.ReserveRequested(
                EXAMINING_ENGINE, request, key, None, size_bytes, 0, PROBE_NAMESPACE
            )
        )
        if reserved.status is not Status.OK:
            raise _StepError(f"put: {reserved.status.name.lower().replace('_', ' ')}")
        # Nothing is awaited between here and the commit: a step that is given up leaves no reservation.
        self._memory.array(reserved.offset, size_bytes)[:] = probe_bytes(key, size_bytes)
        await self._ask(lambda request: events.CommitRequested(EXAMINING_ENGINE, request, reserved.lease))
        return pb.ProbeResult()

    async def _get(self, key: ChunkKey, step: pb.ProbeGet, timeout_s: float) -> pb.ProbeResult:
        size_bytes = step.size_bytes
        self._keep(key, size_bytes)
        until_s = self._loop.time() + 0.9 * timeout_s
        while not self._is_announced(key, step.from_switch):
            if self._loop.time() > until_s:
                raise _StepError("the directory here does not name the chunk")
            await asyncio.sleep(limits.EXAMINATION_RETRY_S)
        started_ns = time.monotonic_ns()
        make = functools.partial(self._fetch_event, key, max(0.001, until_s - self._loop.time()))
        got: effects.FetchAnswered = await self._ask(make)
        try:
            if not got.chunks:
                raise _StepError(got.status.name.lower().replace("_", " "))
            (chunk,) = got.chunks
            if not np.array_equal(self._memory.array(chunk.offset, chunk.size_bytes), probe_bytes(key, size_bytes)):
                raise _StepError("the bytes are wrong")
        finally:
            self._handle(events.LeaseReleased(EXAMINING_ENGINE, got.lease))
        took_us = max(1, (time.monotonic_ns() - started_ns) // 1000)
        return pb.ProbeResult(source=_SOURCES[chunk.source], took_us=took_us)

    def _is_announced(self, key: ChunkKey, from_switch: bool) -> bool:
        entry = self._directory.find(key)
        return entry is not None and (not from_switch or (entry.served and not entry.holders))

    @staticmethod
    def _fetch_event(key: ChunkKey, deadline_s: float, request: int) -> events.EngineEvent:
        return events.ChunksRequested(EXAMINING_ENGINE, request, (key,), deadline_s, None)

    async def _drop(self, keys: Any) -> pb.ProbeResult:
        for key in [key for key in keys if key in self._chunks]:
            self._chunks.pop(key).cancel()
            await self._ask(functools.partial(self._drop_event, key))
        return pb.ProbeResult()

    @staticmethod
    def _drop_event(key: ChunkKey, request: int) -> events.EngineEvent:
        return events.KeysRequested(EXAMINING_ENGINE, request, Kind.DROP, (key,))

    def _keep(self, key: ChunkKey, size_bytes: int) -> None:
        """Have the chunk dropped in time, whatever becomes of it. Raises _StepError for what is too much."""
        if not 0 < size_bytes <= limits.EXAMINATION_CHUNK_BYTES_MAX:
            raise _StepError(f"no chunk of {size_bytes} bytes")
        if len(self._chunks) >= limits.EXAMINATION_CHUNKS_MAX and key not in self._chunks:
            raise _StepError(f"{len(self._chunks)} chunks of examinations are here already")
        if key in self._chunks:
            self._chunks[key].cancel()
        self._chunks[key] = self._loop.call_later(limits.EXAMINATION_LIFETIME_S, self._outlived, key)

    def _outlived(self, key: ChunkKey) -> None:
        self._chunks.pop(key, None)
        self._requests += 1
        self._handle(self._drop_event(key, self._requests))

    async def _ask(self, make: Callable[[int], events.EngineEvent]) -> Any:
        self._requests += 1
        request = self._requests
        future = self._waiting[request] = self._loop.create_future()
        try:
            self._handle(make(request))
            return await future
        finally:
            self._waiting.pop(request, None)


def _default_interfaces() -> set[str]:
    """Of /proc/net/route: rows of interface, destination, gateway, ..., with destination 0 for the default."""
    with open(_ROUTES) as routes:
        rows = [line.split() for line in routes.readlines()[1:]]
    return {row[0] for row in rows if row[1] == "00000000"}
