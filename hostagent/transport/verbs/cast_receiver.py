"""Receiving casts from the ring of a `CastEnd` in Python.

A UD queue pair completes its receives in the order in which they were posted, so the ring is read like a stream:
rows [i, i + n) are the next n messages, as one array, without a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.transport.base import ChunkPlace
from hostagent.transport.casts import deliver
from hostagent.transport.host import Host
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.cast_end import CastEnd
from hostagent.transport.verbs.device import RdmaPort, VerbsError
from hostagent.transport.verbs.queues import Completions, CompletionWatch
from kvchunk.ids import ChunkKey
from kvproto.wire.data import Fabric, decode_messages
from kvproto.wire.layouts import KV_DATA_BYTES

_IP = abi.GRH_BYTES - 20
"""Where the IPv4 header begins in a row."""
_PAYLOAD = abi.GRH_BYTES + KV_DATA_BYTES


class CastReceiver:
    """Receives casts to one fabric's group and gives the good ones to the sink."""

    def __init__(self, port: RdmaPort, fabric: Fabric, host: Host, broken: Callable[[VerbsError], None]) -> None:
        """`broken` gets the reason why nothing is received any more; then call `close`. Raises VerbsError."""
        self._fabric = fabric
        self._own = host.own
        self._sink = host.sink
        self._counters = host.counters
        self._open = True
        with contextlib.ExitStack() as undo:
            self._end = CastEnd(port, fabric, host)
            undo.callback(self._end.close)
            self.waiting_bytes_max = self._end.waiting_bytes_max
            self._ring = self._end.ring
            self._begin()
            self._watch = CompletionWatch(
                self._end.channel, self._end.completions, host.loop, self._completed, broken, by_clock=True
            )
            undo.callback(self._watch.close)
            self._closing = undo.pop_all()

    def close(self) -> None:
        """No more casts. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._closing.close()

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """All casts are handed to the sink, which knows what it wants."""

    def forget(self, key: ChunkKey) -> None:
        """As `expect`."""

    def settle(self) -> None:
        """Only the sink writes segments."""

    def drain_receive(self) -> None:
        """Casts are never reported more than a millisecond late."""

    def _begin(self) -> None:
        """The whole ring is posted."""
        self._next_row = 0
        self._posted = self._ring.rows_count
        self._consumed = 0
        """Rows read but not yet given back to the NIC."""
        self._next_block = 0

    def _completed(self, completions: Completions) -> None:
        completions = completions[completions["qp_num"] == self._end.queue_pair.number]
        if (completions["status"] != abi.WC_SUCCESS).any():
            self._counters.drop("cast_receive_queue_pair")
            self._end.renew()
            self._begin()
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
            self._ring.post(self._end.queue_pair, self._next_block)
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
