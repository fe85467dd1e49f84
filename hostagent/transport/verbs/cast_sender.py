"""Casting over a UD queue pair: work requests of a whole chunk built once, any part of them posted in one call.

Each message is two pieces of memory, chunk header and segment, both registered: the NIC gathers them, adds BTH, DETH
and ICRC, and no byte of a chunk is touched here. Owns the sending queue pair; knows nothing of who receives.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import Host
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError, gid_of
from hostagent.transport.verbs.queues import (
    AddressHandle,
    CompletionChannel,
    CompletionQueue,
    Completions,
    CompletionWatch,
    QueuePair,
)
from kvproto.ids import Address, ChunkKey, format_address
from kvproto.wire.data import Fabric, chunk_headers

PIECES = 3
"""Memory pieces of a message: chunk header, segment, and zeros that pad the last segment."""


class CastChain:
    """The work requests of one chunk, ready to be posted in parts."""

    def __init__(
        self, port: RdmaPort, chunk: ChunkPlace, pool: MemoryRegion, fabric: Fabric, group: AddressHandle
    ) -> None:
        """Raises VerbsError."""
        self.chunk = chunk
        size = fabric.segment_bytes
        headers = chunk_headers(chunk.key, chunk.size_bytes, fabric)
        self.segments: int = len(headers)
        # Headers, and zeros for the end of the last segment, in memory that the NIC may read.
        self._memory = registered = RegisteredMemory(port, headers.nbytes + size, "headers of a chunk")
        registered.bytes_[: headers.nbytes] = headers.reshape(-1)
        index = np.arange(self.segments, dtype=np.uint64)
        pieces = np.zeros((self.segments, PIECES), abi.SGE)
        pieces["lkey"] = registered.region.local_key
        pieces["address"][:, 0] = registered.address + index * headers.shape[1]
        pieces["length"][:, 0] = headers.shape[1]
        pieces["address"][:, 1] = pool.address + chunk.offset + index * size
        pieces["length"][:, 1] = size
        pieces["lkey"][:, 1] = pool.local_key
        last_bytes = chunk.size_bytes - (self.segments - 1) * size
        pieces[-1, 1]["length"] = last_bytes
        pieces[-1, 2]["address"] = registered.address + headers.nbytes
        pieces[-1, 2]["length"] = size - last_bytes
        self._pieces = pieces
        self._requests = requests = np.zeros(self.segments, abi.SEND_WR)
        start = requests.ctypes.data
        requests["next"] = start + (index + 1) * abi.SEND_WR.itemsize
        requests["sg_list"] = pieces.ctypes.data + index * pieces.strides[0]
        requests["num_sge"] = 2
        requests[-1]["num_sge"] = 2 if last_bytes == size else PIECES
        requests["opcode"] = abi.WR_SEND
        requests["ud_ah"] = group.pointer
        requests["ud_qpn"] = abi.MULTICAST_QPN
        requests["ud_qkey"] = fabric.qkey

    def post(self, queue_pair: QueuePair, first: int, count: int, work_id: int) -> None:
        """Post segments [first, first + count); one completion with `work_id` covers all. Raises VerbsError."""
        last = self._requests[first + count - 1]
        following = last["next"]
        last["next"], last["send_flags"], last["wr_id"] = 0, abi.SEND_SIGNALED, work_id
        try:
            queue_pair.post_send(self._requests.ctypes.data + first * abi.SEND_WR.itemsize)
        finally:
            # The queue has its own copies from here on.
            last["next"], last["send_flags"] = following, 0

    def close(self) -> None:
        """Call when none of it is in the queue any more."""
        self._memory.close()


class RegisteredMemory:
    """Anonymous memory, registered for as long as it exists."""

    def __init__(self, port: RdmaPort, size_bytes: int, what: str) -> None:
        """Raises VerbsError."""
        self._map = mmap.mmap(-1, size_bytes)
        self.bytes_: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address: int = self.bytes_.ctypes.data
        self.region: MemoryRegion = port.register(self.address, size_bytes, abi.ACCESS_LOCAL_WRITE, what)

    def close(self) -> None:
        """Unregister; the memory goes with the last array onto it."""
        self.region.close()


@dataclass(slots=True)
class _Job:
    chain: CastChain
    segment: int
    end: int


class CastQueue:
    """Sends jobs in order, as fast as the queue pair takes them; reports what left by its completions."""

    def __init__(self, port: RdmaPort, pool: MemoryRegion, host: Host, broken: Callable[[VerbsError], None]) -> None:
        """`broken` gets the reason why nothing is sent any more; then give up and close. Raises VerbsError."""
        self._port = port
        self._pool = pool
        self._loop = host.loop
        self._counters = host.counters
        self._sent = host.sink.segments_sent
        self._failed = host.sink.segments_failed
        self._broken = broken
        self._depth = min(limits.VERBS_CAST_QUEUE_SEGMENTS, port.facts.queue_entries_max)
        self._chains: OrderedDict[ChunkKey, CastChain] = OrderedDict()
        self._retired: list[CastChain] = []
        """Chains evicted from the cache that may still have requests in the queue."""
        self._groups: dict[Address, AddressHandle] = {}
        self._jobs: deque[_Job] = deque()
        self._posted: deque[tuple[int, CastChain, int]] = deque()
        """The contents of the queue: work id, chain, segments."""
        self._room = self._depth
        self._work_id = 0
        self._scheduled = False
        self._open = True
        with contextlib.ExitStack() as undo:
            self._channel = CompletionChannel(port)
            undo.callback(self._channel.close)
            self._completions = CompletionQueue(port, self._channel, self._depth, limits.CAST_BATCH_PACKETS)
            undo.callback(self._completions.close)
            self._queue_pair = self._make_queue_pair()
            undo.callback(lambda: self._queue_pair.destroy())
            self._watch = CompletionWatch(
                self._channel, self._completions, host.loop, self._completed, broken, by_clock=False
            )
            undo.callback(self._watch.close)
            self._closing = undo.pop_all()

    def use_fabric(self, fabric: Fabric) -> None:
        """Forget chains of other fabrics; jobs already queued still leave as they were. Raises VerbsError."""
        for chain in self._chains.values():
            self._retired.append(chain)
        self._chains.clear()
        self._close_retired()
        self._fabric = fabric
        if fabric.group not in self._groups:
            gid = gid_of(format_address(fabric.group))
            self._groups[fabric.group] = AddressHandle(self._port, gid, limits.MULTICAST_TTL)

    def add(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """Queue segments [first, first + count); their outcome is reported later, maybe in parts."""
        segments = -(-chunk.size_bytes // self._fabric.segment_bytes)
        if not 0 <= first < first + count <= segments:
            raise ValueError(f"segments {first}+{count} of {segments}")
        try:
            chain = self._chain_of(chunk)
        except VerbsError:
            self._counters.drop("cast_headers_unregistered", count)
            self._loop.call_soon(self._failed, chunk.key, count)
            return
        self._jobs.append(_Job(chain, first, first + count))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def give_up(self) -> None:
        """Others send from now on: segments not known to have left are reported as failed, later."""
        for job in self._jobs:
            self._loop.call_soon(self._failed, job.chain.chunk.key, job.end - job.segment)
        self._jobs.clear()
        self._report_lost()

    def close(self) -> None:
        """Send and report nothing more, except segments that were given up."""
        if not self._open:
            return
        self._open = False
        self._closing.close()
        self._jobs.clear()
        self._posted.clear()
        for chain in (*self._chains.values(), *self._retired):
            chain.close()
        for group in self._groups.values():
            group.close()

    # ------------------------------------------------------------------ inside

    def _chain_of(self, chunk: ChunkPlace) -> CastChain:
        known = self._chains.get(chunk.key)
        if known is not None and known.chunk == chunk:
            self._chains.move_to_end(chunk.key)
            return known
        if known is not None:
            self._retired.append(self._chains.pop(chunk.key))
        chain = CastChain(self._port, chunk, self._pool, self._fabric, self._groups[self._fabric.group])
        self._chains[chunk.key] = chain
        if len(self._chains) > limits.CAST_PREPARED_CHUNKS_MAX:
            self._retired.append(self._chains.popitem(last=False)[1])
        self._close_retired()
        return chain

    def _close_retired(self) -> None:
        in_use = {id(job.chain) for job in self._jobs} | {id(chain) for _, chain, _ in self._posted}
        for chain in self._retired:
            if id(chain) not in in_use:
                chain.close()
        self._retired = [chain for chain in self._retired if id(chain) in in_use]

    def _make_queue_pair(self) -> QueuePair:
        queue = self._completions
        pair = QueuePair(self._port, abi.QPT_UD, (queue, self._depth, PIECES), (queue, 1))
        try:
            # Its own Q_Key matters to nobody: each message carries the one of its fabric.
            mask = abi.QP_PKEY_INDEX | abi.QP_PORT | abi.QP_QKEY
            pair.modify(abi.QPS_INIT, mask, port_num=self._port.facts.port, qkey=0)
            pair.modify(abi.QPS_RTR)
            pair.modify(abi.QPS_RTS, abi.QP_SQ_PSN, sq_psn=0)
        except VerbsError:
            pair.destroy()
            raise
        return pair

    def _run(self) -> None:
        self._scheduled = False
        while self._jobs and self._room and self._open:
            job = self._jobs[0]
            count = min(job.end - job.segment, self._room, limits.VERBS_CAST_CHAIN_SEGMENTS)
            self._work_id += 1
            try:
                job.chain.post(self._queue_pair, job.segment, count, self._work_id)
            except VerbsError:
                self._jobs.popleft()
                self._counters.drop("cast_post", job.end - job.segment)
                self._loop.call_soon(self._failed, job.chain.chunk.key, job.end - job.segment)
                self._restart()
                return
            self._posted.append((self._work_id, job.chain, count))
            self._room -= count
            job.segment += count
            if job.segment == job.end:
                self._jobs.popleft()

    def _completed(self, completions: Completions) -> None:
        for work_id, status, number in zip(
            completions["wr_id"].tolist(), completions["status"].tolist(), completions["qp_num"].tolist(), strict=True
        ):
            if number != self._queue_pair.number:
                continue
            if status != abi.WC_SUCCESS:
                self._counters.drop("cast_send_" + abi.WC_STATUS.get(status, str(status)).replace(" ", "_"))
                self._restart()
                break
            # One completion per chain, in order.
            while self._posted and self._posted[0][0] <= work_id:
                _, chain, count = self._posted.popleft()
                self._room += count
                self._sent(chain.chunk.key, count)
                if not self._open:
                    return
        if self._open:
            if self._retired:
                self._close_retired()
            self._run()

    def _restart(self) -> None:
        """The queue pair is in error: its requests are lost, as on any network; a fresh one goes on with the rest."""
        self._queue_pair.destroy()
        self._report_lost()
        self._room = self._depth
        try:
            self._queue_pair = self._make_queue_pair()
        except VerbsError as error:
            self._broken(error)
            return
        if self._jobs and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _report_lost(self) -> None:
        for _, chain, count in self._posted:
            self._loop.call_soon(self._failed, chain.chunk.key, count)
        self._posted.clear()
