"""Who is at the other end of a call, and what it may ask for: one table, held against every call."""

from __future__ import annotations

import contextlib
import logging
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from kvdaemon.identity import Identity, Role, identities
from kvproto.rpc import control_pb2

log = logging.getLogger(__name__)

_SERVICES: Final = control_pb2.DESCRIPTOR.services_by_name
CALLERS: Final[Mapping[str, Role]] = {
    _SERVICES["Coordinator"].full_name: Role.AGENT,
    _SERVICES["Operator"].full_name: Role.OPERATOR,
}
"""By service: whose certificate its methods take. What is not listed here is refused to everybody."""
_NAMES: Final = "x509_subject_alternative_name"
"""A property of gRPC's authentication context."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end. `identities`: the names in its certificate; none without TLS."""

    address: str = ""
    """Of its host, as gRPC shows it, without the port."""
    identities: tuple[Identity, ...] = ()

    def has(self, role: Role, trust_domain: str, node: str = "") -> bool:
        """Whether it is of this role (an agent: of this node)."""
        wanted = (trust_domain, role)
        return any((one.trust_domain, one.role) == wanted and node in ("", one.node) for one in self.identities)

    def speaker(self, node: str) -> str:
        """Who speaks for a node: the certificate's name, and without TLS the host that the stream comes from."""
        own = [str(one) for one in self.identities if one.node == node]
        return own[0] if own else self.address

    def __str__(self) -> str:
        """For a message."""
        return ", ".join(map(str, self.identities)) or f"the certificate shown from {self.address}"


def peer_of(context: Any) -> Peer:
    """Of a call under way."""
    names = context.auth_context().get(_NAMES, ())
    address = urllib.parse.unquote(context.peer()).removeprefix("ipv4:").removeprefix("ipv6:")
    host = address if address.startswith("unix:") else address.rpartition(":")[0]
    return Peer(host, identities(name.decode(errors="replace") for name in names))


class Authorisation(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic for type checkers only
    """Ends every call whose caller has not the identity that CALLERS demands, before the service sees it."""

    def __init__(self, trust_domain: str) -> None:
        self._trust_domain = trust_domain

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of the service, behind the check."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler  # no such method: gRPC says so itself
        method: str = handler_call_details.method
        if handler.response_streaming:
            return _streaming(handler, lambda context: self._refusal(method, context))
        return _unary(handler, lambda context: self._refusal(method, context))

    def _refusal(self, method: str, context: Any) -> str:
        """Why the call is refused; empty if it is not."""
        service = method.strip("/").partition("/")[0]
        role = CALLERS.get(service)
        peer = peer_of(context)
        if role is None:
            return f"nobody may call {method}"
        if peer.has(role, self._trust_domain):
            return ""
        log.warning("%s was refused to call %s", peer, method)
        needed = f"spiffe://{self._trust_domain}/{role.value}" + ("/NODE" if role is Role.AGENT else "")
        return f"{peer} may not call {method.strip('/').rpartition('/')[2]}: that takes the certificate of {needed}"


def _streaming(
    handler: grpc.RpcMethodHandler[Any, Any], refusal: Callable[[Any], str]
) -> grpc.RpcMethodHandler[Any, Any]:
    behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
    if behaviour is None:
        raise AssertionError("a handler without its function")
    inner: Callable[[Any, Any], AsyncGenerator[Any, None]] = behaviour  # type: ignore[assignment]  # of grpc.aio

    async def checked(request: Any, context: Any) -> AsyncIterator[Any]:
        if reason := refusal(context):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        async with contextlib.aclosing(inner(request, context)) as answers:
            async for answer in answers:
                yield answer

    make = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
    return make(checked, handler.request_deserializer, handler.response_serializer)


def _unary(handler: grpc.RpcMethodHandler[Any, Any], refusal: Callable[[Any], str]) -> grpc.RpcMethodHandler[Any, Any]:
    behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
    if behaviour is None:
        raise AssertionError("a handler without its function")
    inner: Callable[[Any, Any], Awaitable[Any]] = behaviour

    async def checked(request: Any, context: Any) -> Any:
        if reason := refusal(context):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        return await inner(request, context)

    make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
    return make(checked, handler.request_deserializer, handler.response_serializer)
