"""What the testbed asks of the controller, as an operator would."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import grpc

from bmv2_testbed.errors import TestbedError
from kvproto.rpc import control_pb2, control_pb2_grpc

_POLL_S = 0.05
_CALL_S = 5.0
RECONNECT_AT_ONCE = (("grpc.min_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
"""Of a channel: what is killed and started again must be found at once, not after gRPC's backoff of minutes."""


class ControllerCalls:
    """A channel to the controller. Methods raise TestbedError with one line."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, RECONNECT_AT_ONCE)
        self._operator = control_pb2_grpc.OperatorStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def status(self) -> control_pb2.StatusReply:
        """The controller's view of everything."""
        try:
            reply: control_pb2.StatusReply = self._operator.Status(control_pb2.StatusRequest(), timeout=_CALL_S)
        except grpc.RpcError as error:
            raise TestbedError(f"controller at {self._address}: {_words(error)}") from error
        return reply

    def await_ready(self, nodes: int, needs_switch: bool, deadline_s: float) -> None:
        """Wait until that many nodes are attached and, if there is one, the switch is programmed."""
        seen = "no answer"
        while time.monotonic() < deadline_s:
            try:
                status = self.status()
            except TestbedError as error:
                seen = str(error)
            else:
                attached = sum(node.state == "attached" for node in status.nodes)
                seen = f"{attached} of {nodes} nodes attached, switch {status.switch_view.state}"
                if attached >= nodes and (not needs_switch or status.switch_view.state == "ready"):
                    return
            time.sleep(_POLL_S)
        raise TestbedError(f"the cluster is not ready in time: {seen}")

    def serve_from_switch(self, last_key: bytes, chunks: int, deadline_s: float) -> None:
        """Have the switch take in a prefix, and wait until it serves every chunk of it."""
        try:
            self._pin_in_switch(last_key, deadline_s)
            served = 0
            while time.monotonic() < deadline_s:
                listed = self._operator.List(control_pb2.ListRequest(key_hex=last_key.hex()), timeout=_CALL_S)
                served = sum(view.switch_state == "serving" for view in listed)
                if served >= chunks:
                    return
                time.sleep(_POLL_S)
        except grpc.RpcError as error:
            raise TestbedError(f"controller at {self._address}: {_words(error)}") from error
        raise TestbedError(f"the switch serves only {served} of {chunks} chunks in time")

    def _pin_in_switch(self, last_key: bytes, deadline_s: float) -> None:
        request = control_pb2.PinRequest(key_hex=last_key.hex(), in_switch=True)
        while True:
            try:
                self._operator.Pin(request, timeout=_CALL_S)
            except grpc.RpcError as error:
                # Agents announce what was put a moment later, many chunks at a time.
                if error.code() is not grpc.StatusCode.NOT_FOUND or time.monotonic() > deadline_s:
                    raise
                time.sleep(_POLL_S)
            else:
                return


def _words(error: Any) -> str:
    return f"{error.code().name.lower()}: {error.details()}"
