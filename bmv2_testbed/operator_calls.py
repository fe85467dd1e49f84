"""What the testbed asks of the controller, as an operator would."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from bmv2_testbed.errors import TestbedError
from kvdaemon.identity import Role
from kvdaemon.tls import Certificates
from kvdaemon.tls_settings import TlsSettings
from kvproto.rpc import control_pb2, control_pb2_grpc

_CALL_S = 5.0
RECONNECT_AT_ONCE = (("grpc.min_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
"""Channel options: a restarted controller must be found at once, not after gRPC's backoff of minutes."""


def _channel(address: str, tls: Mapping[str, str] | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(address, RECONNECT_AT_ONCE)
    files = TlsSettings(Path(tls["cert"]), Path(tls["key"]), Path(tls["ca"]))
    credentials, options = Certificates(files, Role.OPERATOR).for_channel()
    return grpc.secure_channel(address, credentials, [*options, *RECONNECT_AT_ONCE])


class ControllerCalls:
    """A channel to the controller. Methods raise TestbedError with one line."""

    def __init__(self, address: str, tls: Mapping[str, str] | None = None) -> None:
        """`tls`: paths of the operator's `cert`, `key` and `ca`; None: the controller speaks plainly."""
        self._address = address
        self._channel = _channel(address, tls)
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

    def _statuses(self, deadline_s: float) -> Iterator[control_pb2.StatusReply]:
        """The status now and after each change, until the deadline; goes on with a controller that comes back."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            call: Any = self._operator.Watch(control_pb2.StatusRequest(), timeout=left_s, wait_for_ready=True)
            try:
                yield from call
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise TestbedError(f"controller at {self._address}: {_words(error)}") from error
            finally:
                call.cancel()

    def await_ready(self, nodes: int, needs_switch: bool, deadline_s: float) -> None:
        """Wait until that many nodes are attached and, if there is one, the switch is programmed and has seen them."""
        seen = "no answer"
        for status in self._statuses(deadline_s):
            attached = sum(node.state == "attached" for node in status.nodes)
            placed = sum(node.HasField("member") or bool(node.port_problem) for node in status.nodes)
            seen = f"{attached} of {nodes} nodes attached, {placed} seen by the switch ({status.switch_view.state})"
            if attached >= nodes and (not needs_switch or (status.switch_view.state == "ready" and placed >= nodes)):
                return
        raise TestbedError(f"the cluster is not ready in time: {seen}")

    def serve_from_switch(self, last_key: bytes, chunks: int, unpinned: bool, deadline_s: float) -> None:
        """Have the switch take in a prefix, and wait until it serves every chunk of it.

        `unpinned`: the pin is taken back then. The switch keeps what nothing else needs room for."""
        pinned, served = False, 0
        for _ in self._statuses(deadline_s):
            # Agents announce chunks a moment after the put, many at a time.
            pinned = pinned or self._pin_in_switch(last_key)
            served = self._served(last_key) if pinned else 0
            if served >= chunks:
                if unpinned:
                    self._unpin(last_key)
                return
        raise TestbedError(f"the switch serves only {served} of {chunks} chunks in time")

    def _pin_in_switch(self, last_key: bytes) -> bool:
        """False: the controller does not know the chunk yet."""
        try:
            self._operator.Pin(control_pb2.PinRequest(key_hex=last_key.hex(), in_switch=True), timeout=_CALL_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return False
            raise TestbedError(f"controller at {self._address}: {_words(error)}") from error
        return True

    def _unpin(self, last_key: bytes) -> None:
        try:
            self._operator.Unpin(control_pb2.PinRequest(key_hex=last_key.hex()), timeout=_CALL_S)
        except grpc.RpcError as error:
            raise TestbedError(f"controller at {self._address}: {_words(error)}") from error

    def _served(self, last_key: bytes) -> int:
        try:
            listed = list(self._operator.List(control_pb2.ListRequest(key_hex=last_key.hex()), timeout=_CALL_S))
        except grpc.RpcError as error:
            raise TestbedError(f"controller at {self._address}: {_words(error)}") from error
        return sum(view.switch_state == "serving" for view in listed)


def _words(error: Any) -> str:
    return f"{error.code().name.lower()}: {error.details()}"
