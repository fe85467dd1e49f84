"""One P4Runtime device: pipeline configuration, writes and reads, streams, and events from the data plane.

Thread-safe. Two locks: `_state_lock` is held while forwarding state or configuration is read or changed; Sessions has
its own. A thread holding `_state_lock` may call Sessions.check_write, is_primary and announce, and nothing else of it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server import packet_io
from p4switch.server.arbitration import StreamId
from p4switch.server.forwarding import ForwardingState
from p4switch.server.limits import EVENT_WAIT_MS_MAX
from p4switch.server.migration import carry_over
from p4switch.server.schema import Schema
from p4switch.server.sessions import Sessions, StreamSink
from p4switch.server.status import StatusError, denied, invalid, not_found, precondition, unimplemented
from p4switch.server.target import ConfigError, DigestEvent, Event, IdleEvent, PacketInEvent, Target

log = logging.getLogger(__name__)

NO_PIPELINE = "no forwarding pipeline config has been set"
"""finsy and others recognize these words."""

Request = p4r.SetForwardingPipelineConfigRequest
Query = p4r.GetForwardingPipelineConfigRequest


@dataclass(frozen=True, slots=True)
class Configured:
    """A pipeline configuration and the forwarding state that belongs to it."""

    config: p4r.ForwardingPipelineConfig
    state: ForwardingState


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a Read found: entities in order, and one outcome per query (None for success)."""

    entities: Iterable[p4r.Entity]
    outcomes: tuple[StatusError | None, ...]


class Device:
    """What the gRPC service talks to."""

    def __init__(self, device_id: int, target: Target) -> None:
        self.device_id = device_id
        self._target = target
        self._state_lock = threading.Lock()
        self._sessions = Sessions(device_id, self._await_writes)
        self._active: Configured | None = None
        self._saved: Configured | None = None
        self._stopping = threading.Event()
        self._pump = threading.Thread(target=self._pump_events, name="p4runtime-events", daemon=True)
        self._pump.start()

    def close(self) -> None:
        """Stop the thread that takes events."""
        self._stopping.set()
        self._pump.join()

    # -- pipeline configuration ------------------------------------------------------------------

    def load(self, config: p4r.ForwardingPipelineConfig) -> None:
        """Realize a configuration that came with the command line. Raises StatusError."""
        configured = self._configure(config, pushed=False)
        with self._state_lock:
            self._commit(configured)

    def set_pipeline(self, request: Request) -> None:
        """SetForwardingPipelineConfig. Raises StatusError."""
        self._check_device(request.device_id)
        self._check_primary(request)
        has_config = request.HasField("config")
        match request.action:
            case Request.VERIFY:
                self._configure(_required(request), pushed=True)
            case Request.VERIFY_AND_SAVE:
                configured = self._configure(_required(request), pushed=True)
                with self._state_lock:
                    self._check_primary(request)
                    self._saved = configured
            case Request.VERIFY_AND_COMMIT:
                configured = self._configure(_required(request), pushed=True)
                with self._state_lock:
                    self._check_primary(request)
                    self._commit(configured)
            case Request.COMMIT:
                if has_config:
                    raise invalid("COMMIT takes no config: it realizes the one saved before")
                with self._state_lock:
                    self._check_primary(request)
                    if self._saved is None:
                        raise not_found("no forwarding pipeline config is saved")
                    self._commit(self._saved)
            case Request.RECONCILE_AND_COMMIT:
                configured = self._configure(_required(request), pushed=True)
                with self._state_lock:
                    self._check_primary(request)
                    if self._active is not None:
                        carry_over(self._active.state, configured.state)
                    self._commit(configured)
            case _:
                raise invalid(f"no action {request.action}")

    def get_pipeline(self, query: Query) -> p4r.GetForwardingPipelineConfigResponse:
        """GetForwardingPipelineConfig. Raises StatusError."""
        self._check_device(query.device_id)
        with self._state_lock:
            current = self._current()
        response = p4r.GetForwardingPipelineConfigResponse()
        if current is None:
            return response
        config = response.config
        config.SetInParent()
        if current.config.HasField("cookie"):
            config.cookie.CopyFrom(current.config.cookie)
        if query.response_type in (Query.ALL, Query.P4INFO_AND_COOKIE):
            config.p4info.CopyFrom(current.config.p4info)
        if query.response_type in (Query.ALL, Query.DEVICE_CONFIG_AND_COOKIE):
            config.p4_device_config = current.config.p4_device_config
        return response

    # -- entities --------------------------------------------------------------------------------

    def write(self, request: p4r.WriteRequest) -> list[StatusError | None]:
        """Write: one outcome an update. Raises StatusError when the request as a whole is refused."""
        self._check_device(request.device_id)
        with self._state_lock:
            self._check_primary(request)
            return self._state().write(request.updates, request.atomicity)

    def read(self, request: p4r.ReadRequest) -> ReadResult:
        """Read: a consistent picture. Raises StatusError when the request as a whole is refused."""
        self._check_device(request.device_id)
        found: list[Iterator[p4r.Entity]] = []
        outcomes: list[StatusError | None] = []
        with self._state_lock:
            state = self._state()
            for query in request.entities:
                try:
                    found.append(state.read(query))
                except StatusError as error:
                    outcomes.append(error)
                else:
                    outcomes.append(None)
        return ReadResult(itertools.chain.from_iterable(found), tuple(outcomes))

    # -- streams ---------------------------------------------------------------------------------

    def open_stream(self, sink: StreamSink) -> StreamId:
        """A client has opened a StreamChannel."""
        return self._sessions.open(sink)

    def close_stream(self, stream: StreamId) -> None:
        """A StreamChannel has ended."""
        self._sessions.close(stream)

    def sessions(self) -> dict[str, Any]:
        """Streams, and the roles with a primary client, for statistics."""
        return {"streams": self._sessions.streams(), "roles": self._sessions.roles()}

    def stream_message(self, stream: StreamId, message: p4r.StreamMessageRequest) -> None:
        """A client has sent a message on its stream; refusals go back as StreamError."""
        kind = message.WhichOneof("update")
        if kind == "arbitration":
            self._sessions.arbitrate(stream, message.arbitration)
            return
        try:
            match kind:
                case "packet":
                    self._packet_out(stream, message.packet)
                case "digest_ack":
                    self._digest_ack(stream, message.digest_ack)
                case _:
                    raise unimplemented("only arbitration, packet-out and digest acknowledgements are understood")
        except StatusError as error:
            self._sessions.reply(stream, _stream_error(error, message))

    def _packet_out(self, stream: StreamId, message: p4r.PacketOut) -> None:
        if not self._sessions.is_primary(stream):
            raise denied("only the primary client may send packets")
        active = self._active
        if active is None:
            raise precondition(NO_PIPELINE)
        if not self._target.has_cpu_port():
            raise precondition("the switch was started without a CPU port")
        self._target.packet_out(packet_io.packet_out(active.state.schema, message))

    def _digest_ack(self, stream: StreamId, ack: p4r.DigestListAck) -> None:
        if not self._sessions.is_primary(stream):
            raise denied("only the primary client may acknowledge digests")
        with self._state_lock:
            if self._active is None:
                raise precondition(NO_PIPELINE)
            self._active.state.digests.acknowledge(ack)

    # -- events from the data plane --------------------------------------------------------------

    def _pump_events(self) -> None:
        while not self._stopping.is_set():
            for event in self._target.events(self._wait_s()):
                try:
                    self._handle(event)
                except Exception:
                    # A mistake about one event must not silence all that follow.
                    log.exception("an event of the data plane could not be handled: %s", type(event).__name__)
            with self._state_lock:
                lists = [] if self._active is None else self._active.state.digests.due(time.time_ns())
            for digest_list in lists:
                self._sessions.announce(p4r.StreamMessageResponse(digest=digest_list))

    def _wait_s(self) -> float:
        with self._state_lock:
            deadline_ns = None if self._active is None else self._active.state.digests.next_deadline_ns()
        wait_s = EVENT_WAIT_MS_MAX / 1000
        if deadline_ns is not None:
            wait_s = min(wait_s, max(0, deadline_ns - time.time_ns()) / 1e9)
        return wait_s

    def _handle(self, event: Event) -> None:
        match event:
            case PacketInEvent(frame):
                active = self._active
                if active is not None:
                    packet = packet_io.packet_in(active.state.schema, frame)
                    self._sessions.announce(p4r.StreamMessageResponse(packet=packet))
            case DigestEvent():
                self._handle_digest(event)
            case IdleEvent():
                self._handle_idle(event)

    def _handle_digest(self, event: DigestEvent) -> None:
        with self._state_lock:
            active = self._active
            if active is None or active.state.pipeline is not event.pipeline or not self._sessions.has_primary():
                return
            digest_list = active.state.digests.add(event.digest, event.leaves, time.time_ns())
        if digest_list is not None:
            self._sessions.announce(p4r.StreamMessageResponse(digest=digest_list))

    def _handle_idle(self, event: IdleEvent) -> None:
        with self._state_lock:
            active = self._active
            if active is None or active.state.pipeline is not event.pipeline:
                return
            entry = active.state.tables.idle_entry(event.table, event.handle)
        if entry is not None:
            message = p4r.StreamMessageResponse()
            message.idle_timeout_notification.table_entry.append(entry)
            message.idle_timeout_notification.timestamp = time.time_ns()
            self._sessions.announce(message)

    # -- helpers ---------------------------------------------------------------------------------

    def _check_device(self, device_id: int) -> None:
        if device_id != self.device_id:
            raise not_found(f"no device {device_id}: this switch is device {self.device_id}")

    def _check_primary(self, request: p4r.WriteRequest | Request) -> None:
        election_id = request.election_id if request.HasField("election_id") else None
        self._sessions.check_write(request.role, election_id)

    def _await_writes(self) -> None:
        with self._state_lock:
            pass

    def _current(self) -> Configured | None:
        """What reads and writes refer to: a saved configuration, else the active one."""
        return self._saved or self._active

    def _state(self) -> ForwardingState:
        current = self._current()
        if current is None:
            raise precondition(NO_PIPELINE)
        return current.state

    def _configure(self, config: p4r.ForwardingPipelineConfig, *, pushed: bool) -> Configured:
        """Compile and prepare, without touching the running pipeline. May take seconds; call without locks.

        `pushed`: it came over P4Runtime, not from whoever runs the switch.
        """
        try:
            program = self._target.compile(config.p4_device_config, pushed=pushed)
            kept = p4r.ForwardingPipelineConfig()
            kept.CopyFrom(config)
            if not kept.p4info.ByteSize():
                kept.p4info.CopyFrom(program.p4info)
            schema = Schema.build(kept.p4info, program.index)
            pipeline = self._target.prepare(program)
        except ConfigError as error:
            raise invalid(str(error)) from error
        return Configured(kept, ForwardingState(schema, pipeline, self._target))

    def _commit(self, configured: Configured) -> None:
        self._target.commit(configured.state.pipeline)
        self._active = configured
        self._saved = None


def _required(request: Request) -> p4r.ForwardingPipelineConfig:
    if not request.HasField("config"):
        raise invalid("the request has no config")
    return request.config


def _stream_error(error: StatusError, request: p4r.StreamMessageRequest) -> p4r.StreamMessageResponse:
    response = p4r.StreamMessageResponse()
    response.error.canonical_code = error.code
    response.error.message = error.message
    match request.WhichOneof("update"):
        case "packet":
            response.error.packet_out.packet_out.CopyFrom(request.packet)
        case "digest_ack":
            response.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
        case _:
            response.error.other.SetInParent()
    return response
