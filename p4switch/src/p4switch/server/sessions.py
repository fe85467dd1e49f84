"""Streams as the device sees them: who is there, who is primary, and getting messages to them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.arbitration import Arbiter, AwaitWrites, Notify, Order, Request, StreamId, Terminate
from p4switch.server.limits import ROLES_MAX, STREAMS_MAX
from p4switch.server.status import Code

log = logging.getLogger(__name__)


class StreamSink(Protocol):
    """The way back to one client."""

    def send(self, message: p4r.StreamMessageResponse, *, droppable: bool) -> None:
        """Queue a message; a droppable one is lost when the client is too slow. Never blocks."""
        ...

    def end(self, code: Code, message: str) -> None:
        """End the stream with a status, after the queued messages. Never blocks."""
        ...


class Sessions:
    """The streams of one device and their arbitration. Thread-safe.

    `await_writes` returns when every Write that has begun is done. It is called without locks that a Write needs.
    """

    def __init__(self, device_id: int, await_writes: Callable[[], None]) -> None:
        self._device_id = device_id
        self._arbiter = Arbiter(device_id, STREAMS_MAX, ROLES_MAX)
        self._await_writes = await_writes
        self._sinks: dict[StreamId, StreamSink] = {}
        self._next_id = 1
        self._state_lock = threading.Lock()
        self._order_lock = threading.Lock()
        """Held while orders are carried out, so that clients see them in the order of the decisions. Taken
        before `_state_lock`, and never by a thread that is within a Write."""

    def open(self, sink: StreamSink) -> StreamId:
        """A client has opened a stream."""
        with self._state_lock:
            stream = StreamId(self._next_id)
            self._next_id += 1
            self._sinks[stream] = sink
            return stream

    def close(self, stream: StreamId) -> None:
        """A client is gone."""
        with self._order_lock:
            with self._state_lock:
                self._sinks.pop(stream, None)
                orders = self._arbiter.disconnect(stream)
            self._carry_out(orders)

    def arbitrate(self, stream: StreamId, update: p4r.MasterArbitrationUpdate) -> None:
        """A client has sent MasterArbitrationUpdate."""
        election_id = None
        if update.HasField("election_id"):
            election_id = update.election_id.high << 64 | update.election_id.low
        request = Request(update.device_id, update.role.name, election_id, update.role.HasField("config"))
        with self._order_lock:
            with self._state_lock:
                orders = self._arbiter.update(stream, request)
            self._carry_out(orders)

    def check_write(self, role: str, election_id: p4r.Uint128 | None) -> None:
        """Raise StatusError unless these ids are the primary's."""
        number = None if election_id is None else election_id.high << 64 | election_id.low
        with self._state_lock:
            self._arbiter.check_write(role, number)

    def is_primary(self, stream: StreamId) -> bool:
        """Whether the stream is the primary of its role."""
        with self._state_lock:
            return self._arbiter.is_primary(stream)

    def has_primary(self) -> bool:
        """Whether anybody would hear an announcement."""
        with self._state_lock:
            return bool(self._arbiter.primaries())

    def streams(self) -> int:
        """How many clients have a stream."""
        with self._state_lock:
            return len(self._sinks)

    def roles(self) -> dict[str, bool]:
        """The roles that clients have taken, and whether each has a primary client now."""
        with self._state_lock:
            return self._arbiter.roles()

    def announce(self, message: p4r.StreamMessageResponse) -> None:
        """Send to the primary client of every role."""
        with self._state_lock:
            sinks = [self._sinks[s] for s in self._arbiter.primaries() if s in self._sinks]
        for sink in sinks:
            sink.send(message, droppable=True)

    def reply(self, stream: StreamId, message: p4r.StreamMessageResponse) -> None:
        """Send to one client."""
        with self._state_lock:
            sink = self._sinks.get(stream)
        if sink is not None:
            sink.send(message, droppable=True)

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Notify(stream, role, election_id, code):
                    with self._state_lock:
                        sink = self._sinks.get(stream)
                    if sink is not None:
                        sink.send(self._notification(role, election_id, code), droppable=False)
                case AwaitWrites():
                    self._await_writes()
                case Terminate(stream, code, message):
                    log.info("stream %d ended: %s: %s", stream, code.name, message)
                    with self._state_lock:
                        sink = self._sinks.pop(stream, None)
                    if sink is not None:
                        sink.end(code, message)

    def _notification(self, role: str, election_id: int | None, code: Code) -> p4r.StreamMessageResponse:
        message = p4r.StreamMessageResponse()
        update = message.arbitration
        update.device_id = self._device_id
        if role:
            update.role.name = role
        if election_id is not None:
            update.election_id.high = election_id >> 64
            update.election_id.low = election_id & ((1 << 64) - 1)
        update.status.code = code
        update.status.message = _MEANING[code]
        return message


_MEANING = {
    Code.OK: "you are the primary client",
    Code.ALREADY_EXISTS: "another client is primary",
    Code.NOT_FOUND: "there is no primary client",
}
