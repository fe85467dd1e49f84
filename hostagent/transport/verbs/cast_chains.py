"""Work requests of whole chunks, built once, any part of which is posted in one call.

Each message is two pieces of memory, chunk header and segment, both registered: the NIC gathers them, adds BTH, DETH
and ICRC, and no byte of a chunk is touched here. Knows nothing of who posts them when.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import Host
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError, gid_of
from hostagent.transport.verbs.queues import AddressHandle, CompletionQueue, QueuePair
from kvchunk.ids import ChunkKey
from kvproto.ids import Address, format_address
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
        keys = np.ctypeslib.as_array(pool.local_keys)
        pieces["lkey"][:, 1] = keys[(chunk.offset + index * size) // pool.step_bytes]
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
        self.requests_address: int = start

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


class ChainCache:
    """Chains of the chunks sent lately, for one fabric, and of those that are still being sent."""

    def __init__(self, port: RdmaPort, pool: MemoryRegion, host: Host) -> None:
        self._port = port
        self._pool = pool
        self._host = host
        self._chains: OrderedDict[tuple[ChunkKey, Address], CastChain] = OrderedDict()
        """By chunk and group."""
        self._retired: list[CastChain] = []
        """Evicted, maybe with requests in the queue."""
        self._groups: dict[Address, AddressHandle] = {}

    def use_fabric(self, fabric: Fabric, in_use: Iterable[CastChain]) -> None:
        """Forget chains of other fabrics, except those in use."""
        self._retired.extend(self._chains.values())
        self._chains.clear()
        self.close_retired(in_use)
        self._fabric = fabric

    def of(self, chunk: ChunkPlace, first: int, count: int, group: Address) -> CastChain | None:
        """The chunk's chain to a group, built before or now. None where the NIC takes no more memory. Raises ValueError
        for segments that the chunk does not have."""
        segments = -(-chunk.size_bytes // self._fabric.segment_bytes)
        if not 0 <= first < first + count <= segments:
            raise ValueError(f"segments {first}+{count} of {segments}")
        name = chunk.key, group
        known = self._chains.get(name)
        if known is not None and known.chunk == chunk:
            self._chains.move_to_end(name)
            return known
        if known is not None:
            self._retired.append(self._chains.pop(name))
        try:
            chain = CastChain(self._port, chunk, self._pool, self._fabric, self._handle_of(group))
        except VerbsError:
            self._host.counters.drop("cast_headers_unregistered", count)
            return None
        self._chains[name] = chain
        if len(self._chains) > limits.CAST_PREPARED_CHUNKS_MAX:
            self._retired.append(self._chains.popitem(last=False)[1])
        return chain

    def _handle_of(self, group: Address) -> AddressHandle:
        """Raises VerbsError."""
        handle = self._groups.get(group)
        if handle is None:
            gid = gid_of(format_address(group))
            handle = self._groups[group] = AddressHandle(self._port, gid, limits.MULTICAST_TTL)
        return handle

    def close_retired(self, in_use: Iterable[CastChain]) -> None:
        """Close those that are neither cached nor in use."""
        if not self._retired:
            return
        kept = {id(chain) for chain in in_use}
        for chain in self._retired:
            if id(chain) not in kept:
                chain.close()
        self._retired = [chain for chain in self._retired if id(chain) in kept]

    def close(self) -> None:
        """After the queue pair."""
        for chain in (*self._chains.values(), *self._retired):
            chain.close()
        for group in self._groups.values():
            group.close()


def make_sending_pair(port: RdmaPort, queue: CompletionQueue, depth: int) -> QueuePair:
    """A UD queue pair for casts, ready to send. Raises VerbsError."""
    pair = QueuePair(port, abi.QPT_UD, (queue, depth, PIECES), (queue, 1))
    try:
        # Its own Q_Key matters to nobody: each message carries the one of its fabric.
        mask = abi.QP_PKEY_INDEX | abi.QP_PORT | abi.QP_QKEY
        pair.modify(abi.QPS_INIT, mask, port_num=port.facts.port, qkey=0)
        pair.modify(abi.QPS_RTR)
        pair.modify(abi.QPS_RTS, abi.QP_SQ_PSN, sq_psn=0)
    except VerbsError:
        pair.destroy()
        raise
    return pair


def queue_depth(port: RdmaPort) -> int:
    """Work requests that a queue for casts has."""
    return min(limits.VERBS_CAST_QUEUE_SEGMENTS, port.facts.queue_entries_max)


def dropped_for(status: int) -> str:
    """The reason under which segments are counted that a completion with this status ended."""
    return "cast_send_" + abi.status_name(status)
