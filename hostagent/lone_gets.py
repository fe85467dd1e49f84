"""Lone gets as the shell has them: engines' sockets and landings, connections to peers, and the thread between them.

The thread (`native/src/gets.h`) serves engines without the event loop. This part lends it connections that have shown
this node's tokens, tells it what the core says (`hostagent.core.lone_chunks`), and feeds the core what was got. An
engine that asks the agent anything finds that it knows of what its lone gets brought: `learn` comes before each
request.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import mmap
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.events import EngineId
from hostagent.memory import seals
from hostagent.memory.pool_memory import PoolMemory, address_of
from hostagent.native.library import DECLARED, NativeThread, counters, structure
from hostagent.tier_metrics import PREFIX
from hostagent.transport.base import Way
from hostagent.transport.peer_connection import begin_connecting
from hostagent.transport.read_protocol import ANSWER_HEAD, READ_HEAD, pack_tokens
from hostagent.transport.read_tokens import TokenBook
from hostagent.tree import ROOT_CONTEXT, hashed
from kvchunk.ids import ChunkKey
from kvclient import lone
from kvproto.integrity import Integrity, digest_of

log = logging.getLogger(__name__)
_NS: Final = 1_000_000_000
_PEERS_MAX: Final = DECLARED.constants["DP_GET_PEERS"]
_COUNTS: Final = counters("dp_get_count", "DP_GET_")


@dataclass(slots=True, eq=False)
class _Peer:
    """A node that small chunks come from."""

    number: int
    node: str
    endpoint: str
    turn: int
    """Which of several ways is next: one peer begins with this, another with that."""
    way: Way | None = None
    """Of the last connection."""
    shown: bytes = b""
    """Tokens that it has seen on its connection."""
    connecting: socket.socket | None = None
    timer: asyncio.TimerHandle | None = None
    """Of the connection that is being made, or of the next one."""
    tried_s: float | None = None
    """When the last one was begun."""


class LoneGets:
    """Of one agent."""

    def __init__(
        self,
        library: ctypes.CDLL,
        memory: PoolMemory,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[events.Event], None],
        tokens: TokenBook,
        way_to: Callable[[str, int], Way],
    ) -> None:
        """`handle` feeds the core an event; `way_to`: see `HostTransport.way_to`, once the transport has started.
        Raises MemoryError, or OSError when the system has no more threads or descriptors."""
        self._library, self._memory, self._loop, self._handle = library, memory, loop, handle
        self._tokens, self._way_to = tokens, way_to
        self._landings: dict[EngineId, mmap.mmap] = {}
        self.peers: dict[str, _Peer] = {}
        self._numbered: dict[int, _Peer] = {}
        self._got = (structure("got") * limits.LONE_GET_BUFFERS)()
        self._kept: dict[int, tuple[int, int]] = {}
        """Address and bytes of what the core has not decided about, by buffer."""
        self._wishes = (ctypes.c_uint32 * _PEERS_MAX)()
        self._counts = (ctypes.c_uint64 * len(_COUNTS))()
        self._thread = NativeThread(library, "getter", loop, lambda wake: (ctypes.byref(_config(wake)),), self.learn)
        self._getter = self._thread.pointer

    def close(self) -> None:
        """Engines are served no more; the core hears of what they got before. Idempotent."""
        if not self._getter:
            return
        self.learn()
        for peer in self.peers.values():
            self._leave(peer)
        self._thread.close()
        self._getter = None
        self._landings.clear()

    def carriers(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out which effect."""
        return {
            effects.OfferLone: self._offer,
            effects.WithdrawLone: self._withdraw,
            effects.TellLoneCosts: self._tell_costs,
            effects.TakeLone: self._take,
        }

    # ------------------------------------------------------------------ engines

    def open(self, engine: EngineId) -> tuple[int, int]:
        """(descriptor of a socket, descriptor of a landing) for a new engine, to be passed on and closed. Raises
        OSError."""
        own, theirs = lone.pair()
        with own, theirs:
            fd = lone.landing_file()
            try:
                seals.fix_size(fd)
                landing = mmap.mmap(fd, lone.LANDING_BYTES, mmap.MAP_SHARED)
                readers_fd = seals.end_writing(fd)
            finally:
                os.close(fd)
            if error := self._library.dp_getter_admit(self._getter, own.detach(), address_of(landing), engine):
                os.close(readers_fd)
                raise OSError(error, os.strerror(error))
            self._landings[engine] = landing
            return theirs.detach(), readers_fd

    def end(self, engine: EngineId) -> None:
        """The engine has gone. Idempotent."""
        # Mapped until the thread has left it.
        landing = self._landings.pop(engine, None)
        if landing is not None and self._getter:
            self.learn()
            self._library.dp_getter_leave(self._getter, engine)

    # ------------------------------------------------------------------ what the core says

    def _offer(self, effect: effects.OfferLone) -> None:
        if not self._getter:
            return
        peer = self._peer(effect.node, effect.endpoint)
        digest = effect.digest[1:]
        if peer is None or self._library.dp_getter_offer(
            self._getter, effect.key, effect.size_bytes, digest, peer.number
        ):
            # The engine asks the agent for it, as for any other chunk.
            self._library.dp_getter_withdraw(self._getter, effect.key)

    def _withdraw(self, effect: effects.WithdrawLone) -> None:
        if self._getter:
            self._library.dp_getter_withdraw(self._getter, effect.key)

    def _tell_costs(self, effect: effects.TellLoneCosts) -> None:
        cost = effect.cost
        if self._getter:
            self._library.dp_getter_set_costs(self._getter, cost.overhead_s * _NS, _NS / cost.rate_bytes_per_s)

    def _take(self, effect: effects.TakeLone) -> None:
        address, size_bytes = self._kept.pop(effect.buffer)
        chunk = effect.chunk
        if chunk is not None:
            view = self._memory.view(chunk.offset, size_bytes)
            view[:] = ctypes.string_at(address, size_bytes)
        self._library.dp_getter_give_back(self._getter, effect.buffer)
        if chunk is not None:
            # Of the copy, which is what others read from now on.
            self._handle(events.LoneTaken(chunk, hashed(view, Integrity.BLAKE3)))

    # ------------------------------------------------------------------ what the thread says

    def learn(self) -> None:
        """Feed the core what was got, and connect to peers that were wanted."""
        if not self._getter:
            return
        count = self._library.dp_getter_drain(self._getter, self._got, len(self._got))
        if count:
            for got in [self._event(self._got[place]) for place in range(count)]:
                self._handle(got)
            self._renew()
        for place in range(self._library.dp_getter_take_wishes(self._getter, self._wishes)):
            self._connect_soon(self._numbered[self._wishes[place]])

    def _event(self, got: ctypes.Structure) -> events.LoneGot:
        self._kept[got.buffer] = got.bytes, got.size_bytes
        return events.LoneGot(
            EngineId(got.engine),
            ChunkKey(bytes(got.key)),
            got.size_bytes,
            digest_of(Integrity.BLAKE3, bytes(got.digest)),
            self._numbered[got.peer].node,
            got.took_ns / _NS,
            got.buffer,
        )

    def counts(self) -> dict[str, int]:
        """What became of requests, running totals by outcome."""
        if self._getter:
            self._library.dp_getter_read_counts(self._getter, self._counts)
        return dict(zip(_COUNTS, self._counts, strict=True))

    # ------------------------------------------------------------------ peers

    def way_left(self, left: Way) -> None:
        """See `TransportSink.way_left`."""
        for peer in self.peers.values():
            if peer.way == left:
                peer.tried_s = None  # the next one goes by another way, at once
                self._leave(peer)

    def _peer(self, node: str, endpoint: str) -> _Peer | None:
        """None: there are as many as the thread knows. A node that has begun anew listens elsewhere."""
        peer = self.peers.get(node)
        if peer is None:
            if len(self.peers) == _PEERS_MAX:
                return None
            peer = self.peers[node] = _Peer(len(self.peers), node, endpoint, len(self.peers))
            self._numbered[peer.number] = peer
        elif peer.endpoint != endpoint:
            peer.endpoint = endpoint
            self._leave(peer)
        return peer

    def _renew(self) -> None:
        """Connections that have shown other tokens than this node has by now: peers would end them before long."""
        for peer in self.peers.values():
            if peer.shown != self._tokens.shown and peer.connecting is None:
                peer.shown = self._tokens.shown
                self._leave(peer)

    def _leave(self, peer: _Peer) -> None:
        """No connection to it, made or being made."""
        self._end_connecting(peer)
        self._library.dp_getter_part(self._getter, peer.number)

    def _connect_soon(self, peer: _Peer) -> None:
        now_s = self._loop.time()
        if peer.tried_s is None or now_s >= peer.tried_s + limits.LONE_GET_RECONNECT_S:
            self._connect(peer)
        elif peer.timer is None:
            peer.timer = self._loop.call_at(peer.tried_s + limits.LONE_GET_RECONNECT_S, self._connect, peer)

    def _connect(self, peer: _Peer) -> None:
        self._end_connecting(peer)
        peer.tried_s = self._loop.time()
        peer.way = self._way_to(peer.endpoint, peer.turn)
        peer.turn += 1
        peer.connecting, code = begin_connecting(*peer.way)
        if code not in (0, errno.EINPROGRESS):
            self._leave(peer)
            return
        self._loop.add_writer(peer.connecting.fileno(), self._connected, peer)
        peer.timer = self._loop.call_later(limits.READ_CONNECT_TIMEOUT_S, partial(self._leave, peer))

    def _connected(self, peer: _Peer) -> None:
        sock = peer.connecting
        if sock is None:
            raise AssertionError("nothing is being connected")
        shown = self._tokens.shown
        tokens = pack_tokens(shown) if shown else b""
        try:
            failed = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            # A fresh connection takes them whole.
            failed = failed or sock.send(tokens) != len(tokens)
        except OSError:
            failed = True
        if failed:
            self._leave(peer)
            return
        peer.shown = shown
        self._loop.remove_writer(sock.fileno())
        peer.connecting = None
        self._end_connecting(peer)
        self._library.dp_getter_connect(self._getter, peer.number, sock.detach())

    def _end_connecting(self, peer: _Peer) -> None:
        if peer.timer is not None:
            peer.timer.cancel()
            peer.timer = None
        if peer.connecting is not None:
            self._loop.remove_writer(peer.connecting.fileno())
            peer.connecting.close()
            peer.connecting = None


def _config(wake: int) -> ctypes.Structure:
    context = ROOT_CONTEXT.encode()
    config = structure("getter_config")(
        wait_ns=int(limits.LONE_GET_WAIT_S * _NS),
        spin_ns=int(limits.LONE_GET_SPIN_S * _NS),
        owed_ns=int(limits.LONE_GET_RECONNECT_S * _NS),
        tell_ns=int(limits.LONE_GETS_TOLD_S * _NS),
        chunks_max=limits.LONE_GET_CHUNKS_MAX,
        context=context,
        context_bytes=len(context),
        buffers=limits.LONE_GET_BUFFERS,
        wake=wake,
    )
    config.request_head[:], config.answer_head[:] = READ_HEAD, ANSWER_HEAD
    return config


class WatchedLoneGets(Collector):
    """Figures of lone gets, read at each scrape."""

    def __init__(self, gets: LoneGets) -> None:
        self._gets = gets

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time: the name below cannot collide."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        family = CounterMetricFamily(
            f"{PREFIX}_lone_gets", "Requests for one small chunk without the event loop", labels=["outcome"]
        )
        for outcome, count in self._gets.counts().items():
            family.add_metric([outcome], count)
        yield family
