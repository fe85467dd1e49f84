"""A P4Runtime client that is primary in a role of its own, so that a controller stays what it is."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc

from p4switch.errors import SwitchError
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.proto import status_pb2
from p4switch.server.status import Code

ROLE = "simple_switch_CLI"
ANSWER_S = 10.0
"""How long a switch may take for an answer."""
MESSAGE_BYTES_MAX = 64 << 20


class RefusedError(Exception):
    """What the switch says to a command that it does not take."""


class Client:
    """Connected to the switch at an address. Use as a context manager. Raises SwitchError when none is there."""

    def __init__(self, address: str, device_id: int | None) -> None:
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.enable_http_proxy", 0)]
        )
        self._requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._elected: queue.SimpleQueue[p4r.MasterArbitrationUpdate | None] = queue.SimpleQueue()
        self._election_id: p4r.Uint128 | None = None
        self._listener: threading.Thread | None = None
        try:
            self.device_id = self._found_device() if device_id is None else device_id
            self.p4info = self._pipeline(self.device_id).config.p4info
        except grpc.RpcError as error:
            self._channel.close()
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise SwitchError(f"no switch answers at {address}: start it with that --thrift-port") from error
            raise SwitchError(f"{address}: {error.details()}") from error

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._channel.close()
        if self._listener is not None:
            self._listener.join()

    def read(self, *queries: p4r.Entity) -> Iterator[p4r.Entity]:
        """What the switch has for each query. Raises RefusedError."""
        call = self._channel.unary_stream(
            "/p4.v1.P4Runtime/Read", p4r.ReadRequest.SerializeToString, p4r.ReadResponse.FromString
        )
        try:
            for response in call(p4r.ReadRequest(device_id=self.device_id, entities=queries), timeout=ANSWER_S):
                yield from response.entities
        except grpc.RpcError as error:
            raise RefusedError(_why(error)) from error

    def write(self, updates: Sequence[tuple[p4r.Update.Type.ValueType, p4r.Entity]]) -> None:
        """Insert, modify or delete, in this order. Raises RefusedError."""
        try:
            self._write(updates)
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND):
                raise RefusedError(_why(error)) from error
            self._become_primary()
            try:
                self._write(updates)
            except grpc.RpcError as again:
                raise RefusedError(_why(again)) from again

    def _write(self, updates: Sequence[tuple[p4r.Update.Type.ValueType, p4r.Entity]]) -> None:
        if self._election_id is None:
            self._become_primary()
        request = p4r.WriteRequest(
            device_id=self.device_id,
            role=ROLE,
            election_id=self._election_id,
            updates=[p4r.Update(type=kind, entity=entity) for kind, entity in updates],
        )
        self._channel.unary_unary(
            "/p4.v1.P4Runtime/Write", p4r.WriteRequest.SerializeToString, p4r.WriteResponse.FromString
        )(request, timeout=ANSWER_S)

    def _become_primary(self) -> None:
        """Another console in the role is outdone: whoever types last is primary."""
        self._election_id = p4r.Uint128(low=time.time_ns())
        if self._listener is None:
            self._listener = threading.Thread(target=self._listen, name="p4runtime-stream", daemon=True)
            self._listener.start()
        update = p4r.MasterArbitrationUpdate(
            device_id=self.device_id, role=p4r.Role(name=ROLE), election_id=self._election_id
        )
        self._requests.put(p4r.StreamMessageRequest(arbitration=update))
        try:
            answer = self._elected.get(timeout=ANSWER_S)
        except queue.Empty:
            raise RefusedError("the switch does not answer") from None
        if answer is None or answer.status.code != Code.OK:
            raise RefusedError(
                "the switch does not take commands from here" if answer is None else answer.status.message
            )

    def _listen(self) -> None:
        """Take all that comes for the primary: packets and digests come to this role as well."""
        call = self._channel.stream_stream(
            "/p4.v1.P4Runtime/StreamChannel",
            p4r.StreamMessageRequest.SerializeToString,
            p4r.StreamMessageResponse.FromString,
        )
        try:
            for message in call(iter(self._requests.get, None)):
                # Whoever is outdone hears of it too; only the answer to an update of one's own says OK.
                if message.HasField("arbitration") and message.arbitration.status.code == Code.OK:
                    self._elected.put(message.arbitration)
        except grpc.RpcError:
            pass  # the console ends, or the next write says why
        self._elected.put(None)

    def _found_device(self) -> int:
        """The only device of the switch: it names that to whoever asks for another one."""
        try:
            self._pipeline(0)
        except grpc.RpcError as error:
            named = re.search(r"this switch is device (\d+)", error.details() or "")
            if named is None:
                raise
            return int(named[1])
        return 0

    def _pipeline(self, device_id: int) -> p4r.GetForwardingPipelineConfigResponse:
        query = p4r.GetForwardingPipelineConfigRequest
        answer: p4r.GetForwardingPipelineConfigResponse = self._channel.unary_unary(
            "/p4.v1.P4Runtime/GetForwardingPipelineConfig",
            query.SerializeToString,
            p4r.GetForwardingPipelineConfigResponse.FromString,
        )(query(device_id=device_id, response_type=query.P4INFO_AND_COOKIE), timeout=ANSWER_S)
        return answer


def _why(error: Any) -> str:
    """The first update's or query's own error, where the switch gives one for each."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                one = p4r.Error()
                if detail.Unpack(one) and one.canonical_code:
                    return str(one.message)
    return str(error.details())
