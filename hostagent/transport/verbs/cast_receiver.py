"""Receiving casts on a UD queue pair attached to the fabric's group, into a ring of receives that is built once.

A UD queue pair completes its receives in the order in which they were posted, so the ring is read like a stream:
rows [i, i + n) are the next n messages, as one array, without a copy. Each row begins with the 40 bytes that stand for
a GRH and carry the IP header over RoCEv2: source and DSCP are read there. The NIC has checked Q_Key and ICRC.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from hostagent import limits
from hostagent.transport.casts import deliver
from hostagent.transport.host import Host
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.cast_sender import RegisteredMemory
from hostagent.transport.verbs.device import RdmaPort, VerbsError, gid_of
from hostagent.transport.verbs.queues import (
    CompletionChannel,
    CompletionQueue,
    Completions,
    CompletionWatch,
    QueuePair,
)
from kvproto.ids import format_address
from kvproto.wire.data import Fabric, decode_messages
from kvproto.wire.layouts import KV_DATA_BYTES

_IP = abi.GRH_BYTES - 20
"""Where the IPv4 header begins in a row."""
_PAYLOAD = abi.GRH_BYTES + KV_DATA_BYTES
_CACHE_LINE_BYTES = 64


class ReceiveRing:
    """Rows for messages, and the chains of work requests that give them to the NIC, a block of rows at a time."""

    def __init__(self, port: RdmaPort, rows_count: int, message_bytes: int) -> None:
        """`rows_count`: a multiple of VERBS_RECEIVE_BLOCK_ROWS. Raises VerbsError."""
        self.rows_count = rows_count
        # A byte more than a message needs, so that a longer one is seen to be longer.
        row_bytes = abi.GRH_BYTES + message_bytes + 1
        self._row_step = -(-row_bytes // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES
        self._memory = RegisteredMemory(port, rows_count * self._row_step, "the receive ring (data.receive_buffer)")
        self.rows = self._memory.bytes_.reshape(rows_count, self._row_step)
        index = np.arange(rows_count, dtype=np.uint64)
        self._pieces = np.zeros(rows_count, abi.SGE)
        self._pieces["address"] = self._memory.address + index * self._row_step
        self._pieces["length"] = self._row_step
        self._pieces["lkey"] = self._memory.region.local_key
        self._requests = np.zeros(rows_count, abi.RECV_WR)
        self._requests["wr_id"] = index
        self._requests["sg_list"] = self._pieces.ctypes.data + index * abi.SGE.itemsize
        self._requests["num_sge"] = 1
        self._requests["next"] = self._requests.ctypes.data + (index + 1) * abi.RECV_WR.itemsize
        self._requests["next"][limits.VERBS_RECEIVE_BLOCK_ROWS - 1 :: limits.VERBS_RECEIVE_BLOCK_ROWS] = 0

    def post(self, queue_pair: QueuePair, block: int) -> None:
        """Give a block of rows to the NIC, in one call. Raises VerbsError."""
        first = block * limits.VERBS_RECEIVE_BLOCK_ROWS
        queue_pair.post_recv(self._requests.ctypes.data + first * abi.RECV_WR.itemsize)

    def close(self) -> None:
        """After the queue pair."""
        self._memory.close()


class CastReceiver:
    """Receives casts to one fabric's group and gives the good ones to the sink."""

    def __init__(self, port: RdmaPort, fabric: Fabric, host: Host, broken: Callable[[VerbsError], None]) -> None:
        """`broken` gets the reason why nothing is received any more; then call `close`. Raises VerbsError."""
        self._port = port
        self._fabric = fabric
        self._own = host.own
        self._sink = host.sink
        self._counters = host.counters
        self._open = True
        block = limits.VERBS_RECEIVE_BLOCK_ROWS
        facts = port.facts
        wanted = min(
            host.config.receive_buffer_bytes // fabric.segment_bytes, facts.queue_entries_max, facts.completions_max
        )
        rows_count = max(limits.VERBS_RECEIVE_BLOCKS_MIN, wanted // block) * block
        self.waiting_bytes_max = rows_count * fabric.segment_bytes
        """Bytes of segments that can wait for us."""
        with contextlib.ExitStack() as undo:
            self._ring = ReceiveRing(port, rows_count, fabric.message_bytes)
            undo.callback(self._ring.close)
            self._channel = CompletionChannel(port)
            undo.callback(self._channel.close)
            self._completions = CompletionQueue(port, self._channel, rows_count, rows_count)
            undo.callback(self._completions.close)
            self._start()
            undo.callback(lambda: self._queue_pair.destroy())
            self._watch = CompletionWatch(
                self._channel, self._completions, host.loop, self._completed, broken, by_clock=True
            )
            undo.callback(self._watch.close)
            self._closing = undo.pop_all()

    def close(self) -> None:
        """No more casts. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._closing.close()

    def _start(self) -> None:
        """A fresh queue pair with the whole ring posted, attached to the group."""
        queue, port = self._completions, self._port
        pair = QueuePair(port, abi.QPT_UD, (queue, 1, 1), (queue, self._ring.rows_count))
        try:
            mask = abi.QP_PKEY_INDEX | abi.QP_PORT | abi.QP_QKEY
            pair.modify(abi.QPS_INIT, mask, port_num=port.facts.port, qkey=self._fabric.qkey)
            for block in range(self._ring.rows_count // limits.VERBS_RECEIVE_BLOCK_ROWS):
                self._ring.post(pair, block)
            pair.modify(abi.QPS_RTR)
            pair.attach(gid_of(format_address(self._fabric.group)))
        except VerbsError:
            pair.destroy()
            raise
        self._queue_pair = pair
        self._next_row = 0
        self._posted = self._ring.rows_count
        self._consumed = 0
        """Rows read but not yet given back to the NIC."""
        self._next_block = 0

    def _completed(self, completions: Completions) -> None:
        completions = completions[completions["qp_num"] == self._queue_pair.number]
        if (completions["status"] != abi.WC_SUCCESS).any():
            self._counters.drop("cast_receive_queue_pair")
            self._queue_pair.destroy()
            self._start()
            return
        count = len(completions)
        if count == self._posted:
            # The NIC had no row left when we looked: later messages were lost, and nothing says how many.
            self._counters.cast_receive_overflows += 1
        for start in range(0, count, limits.VERBS_RECEIVE_BATCH_ROWS):
            self._take(completions[start : start + limits.VERBS_RECEIVE_BATCH_ROWS])
            if not self._open:
                return

    def _take(self, completions: Completions) -> None:
        """Some messages in a row: up to the end of the ring, then from its beginning."""
        count = len(completions)
        before_end = min(count, self._ring.rows_count - self._next_row)
        self._pass_on(self._next_row, completions[:before_end])
        if before_end < count and self._open:
            self._pass_on(0, completions[before_end:])
        if not self._open:
            return
        self._next_row = (self._next_row + count) % self._ring.rows_count
        self._posted -= count
        self._consumed += count
        while self._consumed >= limits.VERBS_RECEIVE_BLOCK_ROWS:
            self._ring.post(self._queue_pair, self._next_block)
            self._next_block = (self._next_block + 1) % (self._ring.rows_count // limits.VERBS_RECEIVE_BLOCK_ROWS)
            self._consumed -= limits.VERBS_RECEIVE_BLOCK_ROWS
            self._posted += limits.VERBS_RECEIVE_BLOCK_ROWS

    def _pass_on(self, first: int, completions: Completions) -> None:
        rows = self._ring.rows[first : first + len(completions)]
        counters, fabric = self._counters, self._fabric
        lengths = completions["byte_len"].astype(np.int64) - abi.GRH_BYTES
        sources = rows[:, _IP + 12 : _IP + 16].copy().view(">u4")[:, 0].astype(np.uint32)
        from_switch = (rows[:, _IP + 1] >> 2) == fabric.from_switch_dscp
        counters.cast_batches_received += 1
        # The kernel loops our own casts back; those that the switch sends after this node filled it do count.
        foreign = (sources != self._own) | from_switch
        if not foreign.all():
            counters.drop("own_cast", int((~foreign).sum()))
            rows, lengths, sources = rows[foreign], lengths[foreign], sources[foreign]
            from_switch = from_switch[foreign]
        batch = decode_messages(rows, lengths, sources, fabric, from_switch, offset=abi.GRH_BYTES)
        deliver(batch, rows[:, _PAYLOAD : _PAYLOAD + fabric.segment_bytes], self._sink, counters)


assert limits.VERBS_RECEIVE_BATCH_ROWS % limits.VERBS_RECEIVE_BLOCK_ROWS == 0
