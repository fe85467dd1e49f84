"""Who is at the other end of a call, and what it may ask for: one table, held against every call."""

from __future__ import annotations

import contextlib
import logging
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from kvdaemon.identity import Identity, Role, identities
from kvproto.rpc import control_pb2
from p4switch.doorkeeper import Doorkeeper

log = logging.getLogger(__name__)

_SERVICES: Final = control_pb2.DESCRIPTOR.services_by_name
CALLERS: Final[Mapping[str, Role]] = {
    _SERVICES["Coordinator"].full_name: Role.AGENT,
    _SERVICES["Operator"].full_name: Role.OPERATOR,
}
"""By service: whose certificate its methods take. What is not listed here is refused to everybody."""
_URIS: Final = "peer_uri"
"""The property of gRPC's authentication context with the URIs of a certificate's subject alternative names. An
authority lets its users choose e-mail addresses and DNS names more freely: those name nobody here."""


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
    names = context.auth_context().get(_URIS, ())
    address = urllib.parse.unquote(context.peer()).removeprefix("ipv4:").removeprefix("ipv6:")
    host = address if address.startswith("unix:") else address.rpartition(":")[0]
    return Peer(host, identities(name.decode(errors="replace") for name in names))


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic for type checkers only
    """Ends every call whose caller has not the identity that CALLERS demands, before the service sees it."""

    def __init__(self, trust_domain: str | None) -> None:
        """`trust_domain` None: there is no TLS, and everybody may call everything."""
        self._trust_domain = trust_domain
        self.door: Doorkeeper | None = None
        """Of the port, as soon as that is known: hears who has spoken."""

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
        return _checked(handler, lambda context: self._refusal(method, context))

    def _refusal(self, method: str, context: Any) -> str:
        reason = "" if self._trust_domain is None else _unfit(method, peer_of(context), self._trust_domain)
        if not reason and self.door is not None:
            self.door.spoke(context.peer())
        return reason


def _unfit(method: str, peer: Peer, trust_domain: str) -> str:
    """Why a call is refused; empty if it is not."""
    role = CALLERS.get(method.strip("/").partition("/")[0])
    if role is None:
        return f"nobody may call {method}"
    if peer.has(role, trust_domain):
        return ""
    log.warning("%s was refused to call %s", peer, method)
    needed = f"spiffe://{trust_domain}/{role.value}" + ("/NODE" if role is Role.AGENT else "")
    return f"{peer} may not call {method.strip('/').rpartition('/')[2]}: that takes the certificate of {needed}"


def _checked(
    handler: grpc.RpcMethodHandler[Any, Any], refusal: Callable[[Any], str]
) -> grpc.RpcMethodHandler[Any, Any]:
    """The same handler, for callers that are not refused."""
    inner: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    async def check(context: Any) -> None:
        if reason := refusal(context):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

    async def answer(request: Any, context: Any) -> Any:
        await check(context)
        return await inner(request, context)

    async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
        await check(context)
        async with contextlib.aclosing(inner(request, context)) as all_answers:
            async for one in all_answers:
                yield one

    sides = ("stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming))
    make = getattr(grpc, f"{'_'.join(sides)}_rpc_method_handler")
    checked: grpc.RpcMethodHandler[Any, Any] = make(
        answers if handler.response_streaming else answer, handler.request_deserializer, handler.response_serializer
    )
    return checked
