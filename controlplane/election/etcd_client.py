"""A thin client of etcd over gRPC: what an election asks of it, and no more.

Of several servers one is asked; when it does not answer, the next one is. A user's password becomes a token, which
goes with each question, and which is asked for anew when the server has forgotten it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from controlplane.election.contract import StoreUnavailableError
from controlplane.election.election_config import EtcdUser
from controlplane.election.etcd_rpc import etcd_pb2 as etcd
from kvdaemon.tls_settings import TlsSettings
from kvdaemon.what_answers import in_words

_Reply = TypeVar("_Reply", bound=Message)
_Found = TypeVar("_Found")
_OPTIONS: Final = [
    # It must not go through a proxy that happens to be in the environment.
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
]
_STALE_TOKEN: Final = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
)
"""What servers answer to a token that has expired or is of another server's start, that is older than the last change
of users and roles, and to none (api/v3rpc/rpctypes of etcd)."""
_NO_USERS: Final = "etcdserver: authentication is not enabled"


class EtcdClient:
    """One connection at a time. Raises StoreUnavailableError."""

    def __init__(self, endpoints: Sequence[str], tls: TlsSettings | Path | None, user: EtcdUser | None = None) -> None:
        """`endpoints`: HOST:PORT of the servers; `tls`: see `EtcdConfig`; `user` None: a certificate says who asks."""
        self._endpoints = endpoints
        self._tls = tls
        self._user = user
        self.token: str | None = None
        """Of the user; None: to be asked for."""
        self._turn = 0
        self._channel: grpc.aio.Channel | None = None

    @property
    def address(self) -> str:
        """Of the server that is asked."""
        return self._endpoints[self._turn]

    async def close(self) -> None:
        """End the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    # -- what can be asked

    async def read(self, key: bytes, other: bytes) -> tuple[etcd.KeyValue | None, etcd.KeyValue]:
        """Two keys as they are at one moment: None where there is no `key`, an empty pair where there is no `other`."""
        reads = [etcd.RequestOp(request_range=etcd.RangeRequest(key=one)) for one in (key, other)]
        reply = await self._call("KV/Txn", etcd.TxnRequest(success=reads), etcd.TxnResponse)
        found = [response.response_range.kvs for response in reply.responses]
        if len(found) != len(reads):
            raise StoreUnavailableError("it answers another question than it was asked")
        return (found[0][0] if found[0] else None), (found[1][0] if found[1] else etcd.KeyValue())

    async def write(self, compares: Sequence[etcd.Compare], puts: Sequence[etcd.PutRequest]) -> int:
        """Write all of this if all comparisons hold. Returns the revision of what was written; 0: they do not."""
        request = etcd.TxnRequest(compare=compares, success=[etcd.RequestOp(request_put=one) for one in puts])
        reply = await self._call("KV/Txn", request, etcd.TxnResponse)
        return reply.header.revision if reply.succeeded else 0

    async def grant(self, ttl_s: int) -> int:
        """A lease of so many seconds, or of the least that the server grants."""
        return (await self._call("Lease/LeaseGrant", etcd.LeaseGrantRequest(TTL=ttl_s), etcd.LeaseGrantResponse)).ID

    async def revoke(self, lease: int) -> None:
        """End a lease, and with it the keys that are bound to it; one that has ended already is no matter."""
        with contextlib.suppress(_NotFoundError):
            await self._call("Lease/LeaseRevoke", etcd.LeaseRevokeRequest(ID=lease), etcd.LeaseRevokeResponse)

    async def keep_alive(self, lease: int) -> bool:
        """Begin the time of a lease anew. Returns whether it was still there."""
        return await self._with_fresh_token(lambda: self._keep_alive(lease))

    async def _keep_alive(self, lease: int) -> bool:
        async def asked() -> AsyncIterator[etcd.LeaseKeepAliveRequest]:
            yield etcd.LeaseKeepAliveRequest(ID=lease)

        stream = self._stream(self._connected(), "Lease/LeaseKeepAlive", asked(), etcd.LeaseKeepAliveResponse)
        async with contextlib.aclosing(stream) as replies:
            async for reply in replies:
                return reply.TTL > 0
        raise StoreUnavailableError("it ended the stream of renewals")

    async def watch(self, key: bytes, tell: Callable[[], None]) -> None:
        """Call `tell` whenever the key has changed, until the stream ends."""
        ended = asyncio.Event()

        async def asked() -> AsyncIterator[etcd.WatchRequest]:
            yield etcd.WatchRequest(create_request=etcd.WatchCreateRequest(key=key))
            await ended.wait()  # the stream lasts as long as its requests

        # A connection of its own: the other one ends when a server does not answer.
        async with self._new_channel() as channel:
            stream = self._stream(channel, "Watch/Watch", asked(), etcd.WatchResponse)
            try:
                async with contextlib.aclosing(stream) as replies:
                    async for reply in replies:
                        if reply.canceled:
                            return
                        # What changed before the watch began is news, too.
                        tell()
            finally:
                ended.set()

    # -- inside

    async def _with_fresh_token(self, ask: Callable[[], Awaitable[_Found]]) -> _Found:
        """Ask; once more where the server has forgotten the user's token."""
        try:
            return await ask()
        except _StaleTokenError:
            return await ask()

    async def _metadata(self, channel: grpc.aio.Channel) -> list[tuple[str, str]]:
        """What says who asks: the user's token. Raises what `_answering` turns into StoreUnavailableError."""
        if self._user is None:
            return []
        if self.token is None:
            self.token = await self._new_token(channel, self._user)
        return [("token", self.token)] if self.token else []

    async def _new_token(self, channel: grpc.aio.Channel, user: EtcdUser) -> str:
        """Empty: the server asks nobody who he is."""
        try:
            password = user.password_file.read_text().rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise StoreUnavailableError(f"{user.password_file} cannot be read: {why}") from error
        call: grpc.aio.UnaryUnaryMultiCallable[Message, bytes] = channel.unary_unary(
            "/etcdserverpb.Auth/Authenticate", _serialized, _unchanged
        )
        try:
            reply = await call(etcd.AuthenticateRequest(name=user.name, password=password))
        except grpc.aio.AioRpcError as error:
            if error.details() == _NO_USERS:
                return ""
            raise
        return etcd.AuthenticateResponse.FromString(reply).token

    async def _call(self, method: str, request: Message, reply: type[_Reply]) -> _Reply:
        return await self._with_fresh_token(lambda: self._call_once(method, request, reply))

    async def _call_once(self, method: str, request: Message, reply: type[_Reply]) -> _Reply:
        channel = self._connected()
        call: grpc.aio.UnaryUnaryMultiCallable[Message, bytes] = channel.unary_unary(
            f"/etcdserverpb.{method}", _serialized, _unchanged
        )
        async with self._answering(channel):
            return reply.FromString(await call(request, metadata=await self._metadata(channel)))

    async def _stream(
        self, channel: grpc.aio.Channel, method: str, requests: AsyncIterator[Message], reply: type[_Reply]
    ) -> AsyncGenerator[_Reply]:
        call: grpc.aio.StreamStreamMultiCallable[Message, bytes] = channel.stream_stream(
            f"/etcdserverpb.{method}", _serialized, _unchanged
        )
        async with self._answering(channel):
            stream = call(requests, metadata=await self._metadata(channel))
            try:
                async for one in stream:
                    yield reply.FromString(one)
            finally:
                stream.cancel()

    def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = self._new_channel()
        return self._channel

    def _new_channel(self) -> grpc.aio.Channel:
        """With the certificate as it is now."""
        if self._tls is None:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        files = [self._tls] if isinstance(self._tls, Path) else [self._tls.ca, self._tls.key, self._tls.cert]
        try:
            content = [path.read_bytes() for path in files]
        except OSError as error:
            raise StoreUnavailableError(f"{error.filename} cannot be read: {error.strerror}") from error
        return grpc.aio.secure_channel(self.address, grpc.ssl_channel_credentials(*content), options=_OPTIONS)

    @contextlib.asynccontextmanager
    async def _answering(self, channel: grpc.aio.Channel) -> AsyncIterator[None]:
        """Failures become StoreUnavailableError; whoever does not answer is not asked the next time."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise _NotFoundError(error.details() or "") from error
            if self._user is not None and error.details() in _STALE_TOKEN:
                self.token = None
                raise _StaleTokenError(f"it has forgotten the user {self._user.name}") from error
            said = in_words(error.details() or "")
            await self._turn_away(channel)
            # What gRPC says at length is for its authors.
            words = "it cannot be reached" if said.startswith("failed to connect") else said
            raise StoreUnavailableError(f"{error.code().name.lower()}: {words}") from error
        except DecodeError as error:
            await self._turn_away(channel)
            raise StoreUnavailableError("it does not speak etcd's API, version 3") from error
        except asyncio.CancelledError:
            # It was too slow for whoever asked; at the end of all it makes no difference.
            await self._turn_away(channel)
            raise

    async def _turn_away(self, channel: grpc.aio.Channel) -> None:
        """The next question goes to the next server, on a new connection."""
        self.token = None  # it may be worth nothing to another server
        if channel is self._channel:
            self._turn = (self._turn + 1) % len(self._endpoints)
            await self.close()


class _StaleTokenError(StoreUnavailableError):
    """The user's token is to be asked for anew."""


class _NotFoundError(StoreUnavailableError):
    """There is no such lease."""


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _unchanged(reply: bytes) -> bytes:
    return reply
