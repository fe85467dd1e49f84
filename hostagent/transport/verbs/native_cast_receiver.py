"""Receiving casts from the ring of a `CastEnd` in a thread in C, on the seam that datagrams from a socket use."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable

from hostagent.native.library import structure
from hostagent.transport.host import Host
from hostagent.transport.native_receiver import Broken, NativeIntake
from hostagent.transport.verbs.cast_end import CastEnd
from hostagent.transport.verbs.device import RdmaPort, VerbsError
from hostagent.transport.verbs.queues import CompletionChannel, CompletionQueue
from kvproto.wire.data import Fabric


class NativeCastReceiver:
    """Receives casts to one fabric's group into their places in the pool; the sink hears of many at once."""

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
