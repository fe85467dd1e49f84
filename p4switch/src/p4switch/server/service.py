"""The gRPC shell around Device: RPCs in, statuses with P4Runtime's error details out."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from p4switch import doorkeeper
from p4switch.errors import SwitchError
from p4switch.listening import host_and_port, is_local, why_not
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.proto import status_pb2
from p4switch.server.device import Device
from p4switch.server.limits import (
    ERROR_DETAILS_BYTES_MAX,
    KEEPALIVE_ANSWER_MS,
    KEEPALIVE_MS,
    MESSAGE_BYTES_MAX,
    METADATA_BYTES_DEFAULT,
    READ_BYTES_PER_MESSAGE_MAX,
    READ_ENTITIES_PER_MESSAGE,
    RPC_WORKERS,
    STATUS_MESSAGE_BYTES_MAX,
    STREAM_QUEUE_MAX,
    STREAMS_MAX,
)
from p4switch.server.peers import check_local_user
from p4switch.server.status import Code, StatusError
from p4switch.server.tls import Certificates, TlsFiles, check_controller

log = logging.getLogger(__name__)

API_VERSION = "1.4.1"
"""The version of the P4Runtime specification that the server answers by."""

ERROR_SPACE = "p4switch"

FLAG = "--grpc"

_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_Request = TypeVar("_Request", bound=Message)
_Admission = Callable[[grpc.ServicerContext], None]
"""Raises StatusError for a peer that may not speak at all."""


class P4RuntimeServer:
    """A gRPC server for one device. Use as a context manager, or call start and stop."""

    def __init__(self, device: Device, address: str, tls: TlsFiles | None = None, *, insecure: bool = False) -> None:
        """Bind `address`: HOST:PORT (port 0 picks one) or unix:PATH. Raises SwitchError when that cannot be done.

        Who shows no certificate must be of the switch's own user on this machine, or root; `insecure`: anybody.
        """
        _check_address(address)
        self._controllers = frozenset() if tls is None else tls.controllers
        self._takes_anybody = insecure or (tls is not None and tls.ca is not None)
        credentials = None if tls is None else Certificates(tls).credentials()
        if not is_local(address) and (tls is None or tls.ca is None):
            log.warning(
                "P4Runtime on %s asks for no certificates: %s (see --tls-cert, --tls-ca)",
                address,
                "whoever reaches it controls the switch" if insecure else "it answers this machine only",
            )
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)
        self._device = device
        self._server = grpc.server(
            futures.ThreadPoolExecutor(RPC_WORKERS, thread_name_prefix="p4runtime"),
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
                *doorkeeper.OPTIONS,
                # A primary that stands still, or whose machine has vanished, must not stay primary...
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_ANSWER_MS),
                ("grpc.http2.ping_timeout_ms", KEEPALIVE_ANSWER_MS),  # gRPC's own is a minute, and it counts
                ("grpc.http2.max_pings_without_data", 0),
                # ...and clients may ask after us as often as they like.
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        self._server.add_generic_rpc_handlers((_handlers(self),))
        try:
            with _owners_and_groups():
                if credentials is None:
                    self._port = self._server.add_insecure_port(address)
                else:
                    self._port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise _why_not(address) from error
        self._door = doorkeeper.Doorkeeper(self._port)
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._watch_door, name="p4runtime-door", daemon=True)
        host, _, given = address.rpartition(":")
        self.address = f"{host}:{self._port}" if given == "0" else address
        """Where clients find the server, with the port that was chosen."""

    def __enter__(self) -> P4RuntimeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()
        self._watch.start()

    def stop(self) -> None:
        """End streams and RPCs, and close the port."""
        self._stopped.set()
        self._watch.join()
        self._server.stop(grace=0.2).wait()

    def _watch_door(self) -> None:
        ended = 0
        while not self._stopped.wait(doorkeeper.LOOK_S):
            before, ended = ended, self._door.look()
            if ended and not before:
                log.warning("%d silent connections to P4Runtime were too many and are ended", ended)

    def admit(self, context: grpc.ServicerContext) -> None:
        """Raise StatusError for a peer that is nobody's business here."""
        if not self._takes_anybody:
            check_local_user(context, self._port)
        self._door.spoke(context.peer())

    # -- RPCs ------------------------------------------------------------------------------------

    def capabilities(self, _: p4r.CapabilitiesRequest, __: grpc.ServicerContext) -> p4r.CapabilitiesResponse:
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def set_pipeline(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        check_controller(self._controllers, context)
        self._device.set_pipeline(request)
        return p4r.SetForwardingPipelineConfigResponse()

    def get_pipeline(
        self, request: p4r.GetForwardingPipelineConfigRequest, _: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        return self._device.get_pipeline(request)

    def write(self, request: p4r.WriteRequest, context: grpc.ServicerContext) -> p4r.WriteResponse:
        check_controller(self._controllers, context)
        outcomes = self._device.write(request)
        if any(outcomes):
            _abort_with_details(context, outcomes, "some updates failed")
        return p4r.WriteResponse()

    def read(self, request: p4r.ReadRequest, context: grpc.ServicerContext) -> Iterator[p4r.ReadResponse]:
        result = self._device.read(request)
        yield from _responses(result.entities)
        if any(result.outcomes):
            _abort_with_details(context, result.outcomes, "some queries failed")

    def stream(
        self, requests: Iterator[p4r.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageResponse]:
        check_controller(self._controllers, context)
        if not self._streams.acquire(blocking=False):
            raise StatusError(Code.RESOURCE_EXHAUSTED, f"{STREAMS_MAX} streams are open already")
        sink = _QueueSink()
        stream = self._device.open_stream(sink)
        try:
            if not context.add_callback(lambda: sink.end(Code.CANCELLED, "the client is gone")):
                return
            reader = threading.Thread(
                target=self._read_stream, args=(stream, requests, sink), name=f"p4runtime-stream-{stream}", daemon=True
            )
            reader.start()
            yield from sink
        finally:
            self._device.close_stream(stream)
            self._streams.release()

    def _read_stream(self, stream: Any, requests: Iterator[p4r.StreamMessageRequest], sink: _QueueSink) -> None:
        try:
            for request in requests:
                self._device.stream_message(stream, request)
        except StatusError as error:
            sink.end(error.code, error.message)
        except grpc.RpcError:
            log.debug("stream %d was cancelled", stream)
        finally:
            sink.end(Code.OK, "")


class _QueueSink:
    """Messages for one client, from any thread to the one that serves its stream."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[p4r.StreamMessageResponse | StatusError] = queue.SimpleQueue()
        self.dropped = 0

    def send(self, message: p4r.StreamMessageResponse, *, droppable: bool) -> None:
        if droppable and self._queue.qsize() >= STREAM_QUEUE_MAX:
            self.dropped += 1
            return
        self._queue.put(message)

    def end(self, code: Code, message: str) -> None:
        self._queue.put(StatusError(code, message))

    def __iter__(self) -> Iterator[p4r.StreamMessageResponse]:
        """Messages until the stream ends; raises StatusError when it ends for a reason."""
        while True:
            item = self._queue.get()
            if not isinstance(item, StatusError):
                yield item
            elif item.code in (Code.OK, Code.CANCELLED):
                return
            else:
                raise item


@contextlib.contextmanager
def _owners_and_groups() -> Iterator[None]:
    """Files that are made meanwhile (a UNIX socket's) are nobody else's."""
    before = os.umask(0o777)
    os.umask(before | 0o007)
    try:
        yield
    finally:
        os.umask(before)


def _check_address(address: str) -> None:
    """gRPC would listen on port 443 where none is given, and on some other port where it is too large."""
    if not address.startswith("unix:"):
        host_and_port(address, f"{FLAG}, or unix:PATH")


def _why_not(address: str) -> SwitchError:
    if address.startswith("unix:"):
        return SwitchError(f"cannot listen on {address}: does its folder exist, and may this user write there?")
    return why_not(address, FLAG)


def _responses(entities: Iterable[p4r.Entity]) -> Iterator[p4r.ReadResponse]:
    """Entities in messages of bounded size; one empty message when there are none."""
    response, octets, empty = p4r.ReadResponse(), 0, True
    for entity in entities:
        response.entities.append(entity)
        octets += entity.ByteSize()
        if len(response.entities) >= READ_ENTITIES_PER_MESSAGE or octets >= READ_BYTES_PER_MESSAGE_MAX:
            yield response
            response, octets, empty = p4r.ReadResponse(), 0, False
    if response.entities or empty:
        yield response


def _abort_with_details(context: grpc.ServicerContext, outcomes: Sequence[StatusError | None], message: str) -> None:
    """End an RPC with UNKNOWN and one p4.v1.Error an update or query."""
    summary = _summary(outcomes, message)
    details = _details(outcomes, summary)
    if details is not None:
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
    context.abort(grpc.StatusCode.UNKNOWN, summary)


def _details(outcomes: Sequence[StatusError | None], summary: str) -> bytes | None:
    """A google.rpc.Status that clients can receive: whole, or without the texts, or (None) not at all.

    They travel as metadata. A client with gRPC's default limits loses the whole status when they are larger; finsy
    takes 64 KiB. Of what is larger still, the summary in the status message is all that arrives.
    """
    whole = _status(outcomes, summary, with_text=True)
    if len(whole) <= METADATA_BYTES_DEFAULT:
        return whole
    brief = _status(outcomes, summary, with_text=False)
    for candidate, limit in (
        (brief, METADATA_BYTES_DEFAULT),
        (whole, ERROR_DETAILS_BYTES_MAX),
        (brief, ERROR_DETAILS_BYTES_MAX),
    ):
        if len(candidate) <= limit:
            return candidate
    return None


def _status(outcomes: Sequence[StatusError | None], summary: str, *, with_text: bool) -> bytes:
    status = status_pb2.Status(code=Code.UNKNOWN, message=summary)
    for outcome in outcomes:
        error = p4r.Error(canonical_code=Code.OK)
        if outcome is not None:
            error.canonical_code = outcome.code
            if with_text:
                error.message, error.space = outcome.message, ERROR_SPACE
        status.details.add().Pack(error)
    return status.SerializeToString()


def _summary(outcomes: Sequence[StatusError | None], message: str) -> str:
    failed = [o for o in outcomes if o is not None]
    return _clip(f"{message} ({len(failed)} of {len(outcomes)}); the first: {failed[0]}")


def _clip(message: str) -> str:
    """A status message that fits a client's metadata limit, even where every character is escaped."""
    if len(message.encode()) <= STATUS_MESSAGE_BYTES_MAX:
        return message
    kept = message.encode()[:STATUS_MESSAGE_BYTES_MAX].decode(errors="ignore")
    return f"{kept}\n... and {len(message) - len(kept)} characters more"


def _handlers(server: P4RuntimeServer) -> grpc.GenericRpcHandler[Any, Any]:
    """The service's methods. Requests arrive as bytes, so that we refuse malformed messages, with a proper status."""
    admit = server.admit
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Capabilities": _unary(admit, server.capabilities, p4r.CapabilitiesRequest),
        "SetForwardingPipelineConfig": _unary(admit, server.set_pipeline, p4r.SetForwardingPipelineConfigRequest),
        "GetForwardingPipelineConfig": _unary(admit, server.get_pipeline, p4r.GetForwardingPipelineConfigRequest),
        "Write": _unary(admit, server.write, p4r.WriteRequest),
        "Read": _server_stream(admit, server.read, p4r.ReadRequest),
        "StreamChannel": _both_streams(admit, server.stream, p4r.StreamMessageRequest),
    }
    return grpc.method_handlers_generic_handler("p4.v1.P4Runtime", methods)


def _unary(
    admit: _Admission, handler: Callable[[_Request, grpc.ServicerContext], Message], request_class: type[_Request]
) -> grpc.RpcMethodHandler[Any, Any]:
    def guarded(raw: bytes, context: grpc.ServicerContext) -> bytes:
        with _translated(context):
            admit(context)
            return handler(_parse(raw, request_class), context).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(guarded)


def _server_stream(
    admit: _Admission,
    handler: Callable[[_Request, grpc.ServicerContext], Iterator[Message]],
    request_class: type[_Request],
) -> grpc.RpcMethodHandler[Any, Any]:
    def guarded(raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with _translated(context):
            admit(context)
            for response in handler(_parse(raw, request_class), context):
                yield response.SerializeToString()

    return grpc.unary_stream_rpc_method_handler(guarded)


def _both_streams(
    admit: _Admission,
    handler: Callable[[Iterator[_Request], grpc.ServicerContext], Iterator[Message]],
    request_class: type[_Request],
) -> grpc.RpcMethodHandler[Any, Any]:
    def guarded(raw: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with _translated(context):
            admit(context)
            for response in handler((_parse(r, request_class) for r in raw), context):
                yield response.SerializeToString()

    return grpc.stream_stream_rpc_method_handler(guarded)


def _parse(raw: bytes, request_class: type[_Request]) -> _Request:
    try:
        return request_class.FromString(raw)
    except DecodeError as error:
        raise StatusError(Code.INVALID_ARGUMENT, f"this is no {request_class.DESCRIPTOR.name}: {error}") from error


@contextlib.contextmanager
def _translated(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except StatusError as error:
        context.abort(_STATUS[error.code], _clip(error.message))
    except Exception as error:
        if context.code() is None:  # type: ignore[attr-defined]
            log.exception("a request failed within the server")
            context.abort(grpc.StatusCode.INTERNAL, "internal error of the switch; its log says more")
        raise error
