"""Casts over UD queue pairs in threads in C, on the seams that datagrams from a socket use: posted and taken without
the event loop.

They leave by a queue pair that `NativeCastQueue` owns and replaces; the thread reports what left, many segments at
once. They arrive at a queue pair attached to the fabric's groups (`CastEnd`), in a ring of receives that is built once.
Each row of the ring begins with the 40 bytes that stand for a GRH and carry the IP header over RoCEv2: source and DSCP
are read there. The NIC has checked Q_Key and ICRC.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from hostagent import limits
from hostagent.native.library import NativeThread, structure
from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import Host
from hostagent.transport.native_receiver import Broken, NativeIntake
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.cast_chains import (
    CastChain,
    ChainCache,
    RegisteredMemory,
    dropped_for,
    make_sending_pair,
    queue_depth,
)
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError, gid_of
from hostagent.transport.verbs.queues import CompletionChannel, CompletionQueue, QueuePair
from kvchunk.ids import ChunkKey
from kvproto.ids import Address, format_address
from kvproto.wire.data import Fabric

_CACHE_LINE_BYTES = 64


class ReceiveRing:
    """Rows for messages, and the chains of work requests that give them to the NIC, a block of rows at a time."""

    def __init__(self, port: RdmaPort, rows_count: int, message_bytes: int) -> None:
        """`rows_count`: a multiple of VERBS_RECEIVE_BLOCK_ROWS. Raises VerbsError."""
        self.rows_count = rows_count
        # A byte more than a message needs, so that a longer one is seen to be longer.
        needed_bytes = abi.GRH_BYTES + message_bytes + 1
        self.row_bytes = -(-needed_bytes // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES
        self._memory = RegisteredMemory(port, rows_count * self.row_bytes, "the receive ring (data.receive_buffer)")
        self.rows = self._memory.bytes_.reshape(rows_count, self.row_bytes)
        index = np.arange(rows_count, dtype=np.uint64)
        self._pieces = np.zeros(rows_count, abi.SGE)
        self._pieces["address"] = self._memory.address + index * self.row_bytes
        self._pieces["length"] = self.row_bytes
        self._pieces["lkey"] = self._memory.region.local_key
        self._requests = np.zeros(rows_count, abi.RECV_WR)
        self._requests["wr_id"] = index
        self._requests["sg_list"] = self._pieces.ctypes.data + index * abi.SGE.itemsize
        self._requests["num_sge"] = 1
        self.requests_address: int = self._requests.ctypes.data
        self._chains = self.requests_address + (index + 1) * abi.RECV_WR.itemsize
        self._chains[limits.VERBS_RECEIVE_BLOCK_ROWS - 1 :: limits.VERBS_RECEIVE_BLOCK_ROWS] = 0

    def post_all(self, queue_pair: QueuePair) -> None:
        """Give all rows to the NIC, whoever has linked them otherwise since. Raises VerbsError."""
        self._requests["next"] = self._chains
        for block in range(self.rows_count // limits.VERBS_RECEIVE_BLOCK_ROWS):
            self.post(queue_pair, block)

    def post(self, queue_pair: QueuePair, block: int) -> None:
        """Give a block of rows to the NIC, in one call. Raises VerbsError."""
        first = block * limits.VERBS_RECEIVE_BLOCK_ROWS
        queue_pair.post_recv(self.requests_address + first * abi.RECV_WR.itemsize)

    def close(self) -> None:
        """After the queue pair."""
        self._memory.close()


class CastEnd:
    """The end at which casts to a fabric's groups for this node arrive: ring, completion queue, and a queue pair in all
    of them."""

    def __init__(self, port: RdmaPort, fabric: Fabric, host: Host) -> None:
        """Raises VerbsError."""
        self._port = port
        self._fabric = fabric
        block = limits.VERBS_RECEIVE_BLOCK_ROWS
        facts = port.facts
        wanted = min(
            host.config.receive_buffer_bytes // fabric.segment_bytes, facts.queue_entries_max, facts.completions_max
        )
        rows_count = max(limits.VERBS_RECEIVE_BLOCKS_MIN, wanted // block) * block
        self.waiting_bytes_max = rows_count * fabric.segment_bytes
        """Bytes of segments that can wait for us."""
        with contextlib.ExitStack() as undo:
            self.ring = ReceiveRing(port, rows_count, fabric.message_bytes)
            undo.callback(self.ring.close)
            self.channel = CompletionChannel(port)
            undo.callback(self.channel.close)
            self.completions = CompletionQueue(port, self.channel, rows_count, rows_count)
            undo.callback(self.completions.close)
            self.queue_pair = self._make_queue_pair()
            undo.callback(lambda: self.queue_pair.destroy())
            self._closing = undo.pop_all()

    def renew(self) -> None:
        """A fresh queue pair, with all rows posted, instead of one that broke. Raises VerbsError."""
        self.queue_pair.destroy()
        self.queue_pair = self._make_queue_pair()

    def close(self) -> None:
        """After whoever takes completions."""
        self._closing.close()

    def _make_queue_pair(self) -> QueuePair:
        queue, port = self.completions, self._port
        pair = QueuePair(port, abi.QPT_UD, (queue, 1, 1), (queue, self.ring.rows_count))
        try:
            mask = abi.QP_PKEY_INDEX | abi.QP_PORT | abi.QP_QKEY
            pair.modify(abi.QPS_INIT, mask, port_num=port.facts.port, qkey=self._fabric.qkey)
            self.ring.post_all(pair)
            pair.modify(abi.QPS_RTR)
            for group in self._fabric.groups:
                pair.attach(gid_of(format_address(group)))
        except VerbsError:
            pair.destroy()
            raise
        return pair


class NativeCastReceiver:
    """Receives casts to a fabric's groups into their places in the pool; the sink hears of many at once."""

    def __init__(
        self,
        port: RdmaPort,
        fabric: Fabric,
        host: Host,
        broken: Callable[[VerbsError], None],
        *,
        threaded: bool = True,
    ) -> None:
        """`broken` gets the reason why nothing is received any more; then call `close`. Raises VerbsError."""
        self._counters = host.counters
        self._loop = host.loop
        self._broken = broken
        with contextlib.ExitStack() as undo:
            self._end = CastEnd(port, fabric, host)
            undo.callback(self._end.close)
            self.waiting_bytes_max = self._end.waiting_bytes_max
            self.intake = NativeIntake(
                host, _parts_of(port, self._end), fabric, broke=self._queue_broke, threaded=threaded
            )
            """What receives."""
            undo.callback(self.intake.close)
            self._closing = undo.pop_all()

    def close(self) -> None:
        """No more casts. Idempotent."""
        self._closing.close()

    def _queue_broke(self, what: Broken) -> None:
        """Nothing comes until there is another queue pair, if there can be one."""
        if what is Broken.COMPLETIONS:
            self._broken(VerbsError("the completion queue of casts is broken"))
            return
        self._counters.drop("cast_receive_queue_pair")
        try:
            self._end.renew()
        except VerbsError as error:
            self._broken(error)
            return
        self.intake.renew(self._end.queue_pair.address, self._end.queue_pair.number)


def completion_queue_parts(port: RdmaPort, queue: CompletionQueue, channel: CompletionChannel) -> ctypes.Structure:
    """What the data path in C needs to take completions; the objects outlive its use."""
    return structure("completion_queue")(
        queue=queue.pointer,
        channel=ctypes.cast(channel.pointer, ctypes.c_void_p),
        poll=ctypes.cast(port.poll_cq, ctypes.c_void_p),
        request_notify=ctypes.cast(port.request_notify, ctypes.c_void_p),
        get_event=ctypes.cast(port.library.ibv_get_cq_event, ctypes.c_void_p),
        acknowledge=ctypes.cast(port.library.ibv_ack_cq_events, ctypes.c_void_p),
        fd=channel.fd,
    )


def _parts_of(port: RdmaPort, end: CastEnd) -> ctypes.Structure:
    ring, pair = end.ring, end.queue_pair
    return structure("receive_queue")(
        completions=completion_queue_parts(port, end.completions, end.channel),
        queue_pair=pair.address,
        post=ctypes.cast(port.post_recv, ctypes.c_void_p),
        requests=ring.requests_address,
        rows=ring.rows.ctypes.data,
        rows_count=ring.rows_count,
        row_bytes=ring.row_bytes,
        number=pair.number,
    )


_OUTCOMES = 64
"""Most outcomes fetched by one call."""
_Chain: Final = structure("chain")


class NativeCastQueue:
    """Sends runs of segments in order, as fast as the queue pair takes them; reports what left by its completions."""

    def __init__(
        self,
        port: RdmaPort,
        pool: MemoryRegion,
        host: Host,
        library: ctypes.CDLL,
        broken: Callable[[VerbsError], None],
    ) -> None:
        """`broken` gets the reason why nothing is sent any more; then give up and close.

        Raises VerbsError, MemoryError, or OSError when the system has no more threads or descriptors.
        """
        self._port, self._library = port, library
        self._loop: asyncio.AbstractEventLoop = host.loop
        self._counters = host.counters
        self._sent = host.segments_sent
        self._failed = host.segments_failed
        self._broken = broken
        self._depth = queue_depth(port)
        self._chains = ChainCache(port, pool, host)
        self._runs: dict[int, CastChain] = {}
        """Those that are not over, by id."""
        self._silent: set[int] = set()
        """Of these, those to one of several groups, but for the last one: it reports for all."""
        self._last_run = 0
        self._outcomes = (structure("outcome") * _OUTCOMES)()
        self._open = True
        with contextlib.ExitStack() as undo:
            undo.callback(self._chains.close)
            self._channel = CompletionChannel(port)
            undo.callback(self._channel.close)
            self._completions = CompletionQueue(port, self._channel, self._depth, limits.CAST_BATCH_PACKETS)
            undo.callback(self._completions.close)
            self._queue_pair = make_sending_pair(port, self._completions, self._depth)
            undo.callback(lambda: self._queue_pair.destroy())
            thread = NativeThread(library, "queue_sender", self._loop, lambda wake: (self._parts(), wake), self._drain)
            undo.callback(thread.close)
            self._sender = thread.pointer
            self._closing = undo.pop_all()

    def use_fabric(self, fabric: Fabric) -> None:
        """Forget chains of other fabrics; runs already queued still leave as they were."""
        self._chains.use_fabric(fabric, self._runs.values())

    def add(self, chunk: ChunkPlace, first: int, count: int, groups: Sequence[Address]) -> None:
        """Queue segments [first, first + count) for each of these groups; their outcome is reported later, once, maybe
        in parts."""
        for group in groups:
            chain = self._chains.of(chunk, first, count, group)
            if chain is None:
                if group == groups[-1]:
                    self._loop.call_soon(self._failed, chunk.key, count)
                continue
            self._chains.close_retired([chain, *self._runs.values()])
            self._last_run += 1
            run = _Chain(requests=chain.requests_address, id=self._last_run, first=first, count=count)
            if self._library.dp_queue_sender_add(self._sender, ctypes.byref(run)):
                raise MemoryError("no memory for a run of the data path's sender")
            self._runs[self._last_run] = chain
            if group != groups[-1]:
                self._silent.add(self._last_run)

    def give_up(self) -> None:
        """Others send from now on: segments not known to have left are reported as failed, later. Then close."""
        self._library.dp_queue_sender_give_up(self._sender)
        sent, failed, _, _ = self._outcomes_now()
        for tell, counts in ((self._sent, sent), (self._failed, failed)):
            for key, count in counts.items():
                self._loop.call_soon(tell, key, count)

    def close(self) -> None:
        """Send and report nothing more, except segments that were given up. Idempotent."""
        self._open = False
        self._closing.close()
        self._runs.clear()

    # ------------------------------------------------------------------ inside

    def _parts(self) -> ctypes.Structure:
        return structure("send_queue")(
            completions=completion_queue_parts(self._port, self._completions, self._channel),
            queue_pair=self._queue_pair.address,
            post=ctypes.cast(self._port.post_send, ctypes.c_void_p),
            number=self._queue_pair.number,
            depth=self._depth,
            run_max=limits.VERBS_CAST_CHAIN_SEGMENTS,
        )

    def _drain(self) -> None:
        sent, failed, broken, status = self._outcomes_now()
        if broken is not Broken.NOT:
            # Before anybody hears that a chunk is not sent any more.
            self._queue_pair.destroy()
        for tell, counts in ((self._sent, sent), (self._failed, failed)):
            for key, count in counts.items():
                if self._open:
                    tell(key, count)
        if not self._open:
            return
        self._chains.close_retired(self._runs.values())
        if broken is not Broken.NOT:
            self._renew(broken, status)

    def _outcomes_now(self) -> tuple[Counter[ChunkKey], Counter[ChunkKey], Broken, int]:
        """Segments sent and failed, by chunk; what broke, and the status of the completion that said so."""
        sent: Counter[ChunkKey] = Counter()
        failed: Counter[ChunkKey] = Counter()
        broken, status = ctypes.c_uint32(), ctypes.c_uint32()
        taken = _OUTCOMES
        while taken == _OUTCOMES:
            taken = self._library.dp_queue_sender_drain(
                self._sender, self._outcomes, _OUTCOMES, ctypes.byref(broken), ctypes.byref(status)
            )
            for outcome in self._outcomes[:taken]:
                if outcome.id not in self._silent:
                    key = self._runs[outcome.id].chunk.key
                    if outcome.sent:
                        sent[key] += outcome.sent
                    if outcome.failed:
                        failed[key] += outcome.failed
                if outcome.over:
                    del self._runs[outcome.id]
                    self._silent.discard(outcome.id)
        return sent, failed, Broken(broken.value), status.value

    def _renew(self, broken: Broken, status: int) -> None:
        """What was in the queue is lost, as on any network; a fresh queue pair goes on with the rest."""
        if broken is Broken.COMPLETIONS:
            self._broken(VerbsError("the completion queue of casts that leave is broken"))
            return
        self._counters.drop(dropped_for(status) if status else "cast_post")
        try:
            self._queue_pair = make_sending_pair(self._port, self._completions, self._depth)
        except VerbsError as error:
            self._broken(error)
            return
        self._library.dp_queue_sender_renew(self._sender, self._queue_pair.address, self._queue_pair.number)
