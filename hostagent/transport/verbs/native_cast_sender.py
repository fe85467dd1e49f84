"""Casting over a UD queue pair from a thread in C, which posts and takes completions without the event loop.

Owns the sending queue pair and its replacement; the thread reports what left, many segments at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Final

from hostagent import limits
from hostagent.native.library import NativeThread, structure
from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import Host
from hostagent.transport.native_receiver import Broken
from hostagent.transport.verbs.cast_chains import CastChain, ChainCache, dropped_for, make_sending_pair, queue_depth
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError
from hostagent.transport.verbs.native_cast_receiver import completion_queue_parts
from hostagent.transport.verbs.queues import CompletionChannel, CompletionQueue
from kvchunk.ids import ChunkKey
from kvproto.wire.data import Fabric

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
        self._sent = host.sink.segments_sent
        self._failed = host.sink.segments_failed
        self._broken = broken
        self._depth = queue_depth(port)
        self._chains = ChainCache(port, pool, host)
        self._runs: dict[int, CastChain] = {}
        """Those that are not over, by id."""
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
        """Forget chains of other fabrics; runs already queued still leave as they were. Raises VerbsError."""
        self._chains.use_fabric(fabric, self._runs.values())

    def add(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """Queue segments [first, first + count); their outcome is reported later, maybe in parts."""
        chain = self._chains.of(chunk, first, count)
        if chain is None:
            return
        self._chains.close_retired([chain, *self._runs.values()])
        self._last_run += 1
        run = _Chain(requests=chain.requests_address, id=self._last_run, first=first, count=count)
        if self._library.dp_queue_sender_add(self._sender, ctypes.byref(run)):
            raise MemoryError("no memory for a run of the data path's sender")
        self._runs[self._last_run] = chain

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
                key = self._runs[outcome.id].chunk.key
                if outcome.sent:
                    sent[key] += outcome.sent
                if outcome.failed:
                    failed[key] += outcome.failed
                if outcome.over:
                    del self._runs[outcome.id]
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
