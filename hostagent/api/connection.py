"""One engine's connection to the local API: its frames become events for the core, the core's answers frames.

Requests that cost much, or that wait while others do, have their turns (`Turns`), in slices (`Slices`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, assert_never, cast

from hostagent import limits
from hostagent.api.slices import LongFetch, LongRelease, Slices, is_sliced
from hostagent.api.tenancy import Pace
from hostagent.api.turns import AT_ONCE_US, COSTS_US, LONG_KEYS_US, OTHER_US, RELEASE_SLICE_US, TURN_US, Turns
from hostagent.core import effects, events
from hostagent.core.events import EngineEvent, EngineId, LeaseId
from kvchunk.ids import ChunkKey
from kvclient import messages
from kvclient.messages import Frame, Hint, Kind, MalformedFrameError, Status
from kvpolicy.tiers.prefill import Prefill

log = logging.getLogger(__name__)

Answer: TypeAlias = (
    effects.ReserveAnswered
    | effects.CommitAnswered
    | effects.FetchAnswered
    | effects.FetchPartAnswered
    | effects.PartsAnswered
    | effects.KeysAnswered
    | effects.ChunksKept
    | effects.LeaseLeft
)


class TurnTaker:
    """Gives connections whose requests wait their turns, in pieces that leave the event loop to others in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: Turns[EngineConnection] = Turns()
        self.is_busy = False
        """Whether anybody waits for a turn."""

    def add(self, connection: EngineConnection) -> None:
        """It has requests that wait."""
        self.waiting.add(connection)
        if not self.is_busy:
            self.is_busy = True
            self._loop.call_later(0, self._run)

    def _run(self) -> None:
        left_us = TURN_US
        try:
            while left_us > 0 and (turn := self.waiting.take()) is not None:
                connection, cost_us = turn
                left_us -= cost_us
                connection.handle_next()
        finally:  # a request that fails stops nobody else's
            self.is_busy = bool(self.waiting)
            if self.is_busy:
                self._loop.call_later(0, self._run)


class LoneFiles(Protocol):
    """Of whoever serves lone gets (`hostagent.lone_gets`, which imports more than this package may)."""

    @property
    def peers(self) -> Mapping[str, object]:
        """Nodes that engines may get chunks from, by name."""

    def open(self, engine: EngineId) -> tuple[int, int]:
        """Descriptors of a socket and of a landing for a new engine, to be passed on and closed. Raises OSError."""

    def end(self, engine: EngineId) -> None:
        """The engine has gone. Idempotent."""

    def learn(self) -> None:
        """Feed the core what engines got so."""


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections of an agent have in common."""

    handle: Callable[[EngineEvent], None]
    stats: Callable[[], dict[str, float]]
    lone: LoneFiles | None
    turns: TurnTaker


class EngineConnection(asyncio.Protocol):
    """One engine."""

    def __init__(
        self,
        sock: socket.socket,
        engine: EngineId,
        service: Service,
        gone: Callable[[EngineId], None],
        pace: Pace,
    ) -> None:
        self._sock = sock
        self._lone = service.lone
        self._engine = engine
        self._handle = service.handle
        self._stats = service.stats
        self.registered_bytes = 0
        """What this engine has registered with a device, as it says."""
        self._connection_ended = gone
        self._pace = pace if pace.is_limited else None
        self._transport: asyncio.Transport | None = None
        self._frames = messages.FrameReader()
        self._waiting: deque[Frame] = deque()
        """Requests that came and are not handled yet."""
        self._slices: Slices | LongFetch | LongRelease | None = None
        """The request that is being worked before these."""
        self._turns = service.turns
        self.paid_us = 0
        self._is_held = False
        """Its tenant may not ask for more now."""
        self._reads_answers = True
        """False while the engine leaves so many answers unread that nothing more is done for it."""
        self._open = True

    # ------------------------------------------------------------------ connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        transport = cast("asyncio.Transport", transport)  # other loops' inherit from nothing
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take requests, and handle those whose turn it is."""
        if self._lone is not None and self._lone.peers:
            # What this engine has got by lone gets comes before what it asks for now.
            self._lone.learn()
        try:
            self._waiting.extend(self._frames.feed(data))
        except MalformedFrameError as error:
            self._refuse(error)
        else:
            self._pump()

    @property
    def next_us(self) -> int | None:
        """What the next request costs, or the one at work; None: there is none, or it may not be handled now."""
        if not self._reads_answers or not self._open or self._is_held:
            return None
        if isinstance(self._slices, LongRelease):
            return RELEASE_SLICE_US
        if self._slices is not None:
            frame = self._slices.frame
        elif self._waiting:
            frame = self._waiting[0]
        else:
            return None
        base_us, key_us = COSTS_US.get(frame.kind, OTHER_US)
        if frame.count > limits.SLICE_KEYS:
            key_us = LONG_KEYS_US.get(frame.kind, key_us)
        return base_us + key_us * frame.count

    @property
    def is_at_work(self) -> bool:
        """Whether slices are left of the request that was begun; each of a lease costs by itself."""
        return self._slices is not None and not isinstance(self._slices, LongRelease)

    def _pump(self) -> None:
        """Handle what costs little while nobody else waits. All else waits for its turn."""
        waiting, turns, left_us = self._waiting, self._turns, AT_ONCE_US
        may_go_on = self._pace is None and self._slices is None
        try:
            while may_go_on and waiting and not turns.is_busy and self._reads_answers and self._open:
                frame = waiting[0]
                base_us, key_us = COSTS_US.get(frame.kind, OTHER_US)
                left_us -= base_us + key_us * frame.count
                if left_us < 0:
                    break
                self._dispatch(waiting.popleft())
                may_go_on = self._slices is None
        except (MalformedFrameError, struct.error) as error:
            self._refuse(error)
        if (waiting or self._slices is not None) and self._open and self._transport is not None:
            self._transport.pause_reading()
            turns.add(self)

    def handle_next(self) -> None:
        """Handle the request that waits for longest, or its next slice, unless the tenant may not ask for more now."""
        if self._pace is not None and self._slices is None:
            loop = asyncio.get_running_loop()
            wait_s = self._pace.wait_s(loop.time())
            if wait_s:
                self._is_held = True
                loop.call_later(wait_s, self._let_go)
                return
        try:
            if self._slices is not None:
                self._handle_slice(self._slices)
            else:
                self._dispatch(self._waiting.popleft())
        except (MalformedFrameError, struct.error) as error:
            self._refuse(error)
        if not self._waiting and self._slices is None and self._open and self._transport is not None:
            self._transport.resume_reading()

    def _let_go(self) -> None:
        self._is_held = False
        self._pump()

    def pause_writing(self) -> None:
        """The engine leaves answers unread: nothing more is done for it until it reads."""
        self._reads_answers = False

    def resume_writing(self) -> None:
        """The engine reads again."""
        self._reads_answers = True
        self._pump()

    def _refuse(self, error: Exception) -> None:
        log.warning("an engine's connection is closed: %s", error)
        self.end()

    def connection_lost(self, _exc: Exception | None) -> None:
        """The engine has gone: what it held is given back."""
        self._close()

    def end(self) -> None:
        """Close; what the engine held is given back at once."""
        self._close()
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        if self._open:
            self._open = False
            # Before its leases end: an engine that is still reading learns from its socket that they have.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._connection_ended(self._engine)

    # ------------------------------------------------------------------ answers

    def answer(self, answer: Answer) -> None:
        """Send an answer as a frame."""
        match answer:
            case effects.FetchAnswered(_, request, status, lease, chunks, places) if places is not None:
                self._send(Kind.FETCH_EACH, request, status, messages.pack_found(lease, places, chunks), len(chunks))
            case effects.FetchAnswered(_, request, status, lease, chunks):
                self._send(Kind.FETCH, request, status, messages.pack_fetched(lease, chunks), len(chunks))
            case effects.FetchPartAnswered(_, request, lease, chunks):
                body = messages.pack_fetched(lease, chunks)
                self._send(Kind.FETCH_PART, request, Status.OK, body, len(chunks))
            case effects.PartsAnswered(_, request, status, _, _, outside) if outside is not None:
                self._send(Kind.FETCH_PARTS, request, status, messages.OUT_OF_CHUNK.pack(*outside))
            case effects.PartsAnswered(_, request, status, lease, parts):
                self._send(Kind.FETCH_PARTS, request, status, messages.pack_parts(lease, parts), len(parts))
            case effects.ReserveAnswered(_, request, status, lease):
                body = messages.LEASE.pack(lease) if status is Status.OK else b""
                self._send(Kind.RESERVE, request, status, body)
            case effects.CommitAnswered(_, request, status, digest):
                body = digest if status is Status.OK else b""
                self._send(Kind.COMMIT, request, status, body)
            case effects.KeysAnswered(_, _, _, values) if isinstance(self._slices, Slices):
                self._slices.slice_answered(values)
            case effects.KeysAnswered(_, request, kind, values):
                self._send(kind, request, Status.OK, values, len(values))
            case effects.ChunksKept(_, _, goes_on):
                if isinstance(self._slices, LongFetch):
                    self._slices.slice_kept(goes_on=goes_on)
            case effects.LeaseLeft(engine, lease):
                if self._slices is None:
                    self._slices = LongRelease(events.LeaseReleased(engine, lease, limits.SLICE_KEYS))
                elif isinstance(self._slices, LongRelease):
                    self._slices.lease_left()
            case _:
                assert_never(answer)

    def _send(self, kind: Kind, request: int, status: Status, body: bytes = b"", count: int = 0) -> None:
        if self._open and self._transport is not None:
            self._transport.write(messages.pack(kind, request, body, status=status, count=count))

    # ------------------------------------------------------------------ requests

    def _dispatch(self, frame: Frame) -> None:
        handler = HANDLERS.get(frame.kind)
        if handler is None:
            raise MalformedFrameError(f"unknown kind {frame.kind}")
        if frame.count <= limits.SLICE_KEYS:
            handler(self, frame)
        elif frame.count > messages.KEYS_MAX:
            if frame.kind not in messages.ONE_WAY:
                self._send(Kind(frame.kind), frame.request, Status.TOO_MANY_KEYS)
        elif is_sliced(frame):
            self._slices = Slices(frame)
            self._handle_slice(self._slices)
        else:
            handler(self, frame)

    def _begin_fetch(self, frame: Frame, request: events.ChunksRequested) -> None:
        """The first slice of a long fetch."""
        self._slices = LongFetch(frame, request)
        self._handle_slice(self._slices)

    def _handle_slice(self, slices: Slices | LongFetch | LongRelease) -> None:
        """The next slice of a request about many chunks; with the last one it is answered."""
        if not isinstance(slices, Slices):
            try:
                self._handle(slices.take())
            finally:
                if slices.is_over:
                    self._slices = None
            return
        part = slices.take()
        HANDLERS[part.kind](self, part)
        if slices.is_over:
            self._slices, values = None, slices.values
            if values is not None:
                self._send(Kind(part.kind), part.request, Status.OK, values, len(values))

    def _on_fetch(self, frame: Frame) -> None:
        deadline_us, recompute_us, queue_us, attention_share, behind, expected_us = messages.FETCH.unpack_from(
            frame.body
        )
        deadline_s = min(deadline_us / 1e6, limits.API_DEADLINE_S_MAX)
        if not 0 <= attention_share <= 1:
            raise MalformedFrameError(f"attention_share is {attention_share}: it must be between 0 and 1")
        prefill = None
        if recompute_us != messages.NO_RECOMPUTE:
            prefill = Prefill(recompute_us / 1e6, attention_share, queue_us / 1e6, behind)
        body, traceparent = messages.split_traceparent(frame)
        keys = tuple(map(ChunkKey, messages.unpack_keys(body, frame.count, messages.FETCH.size)))
        expected_s = min(expected_us / 1e6, limits.API_DEADLINE_S_MAX)
        request = events.ChunksRequested(
            self._engine,
            frame.request,
            keys,
            deadline_s,
            prefill,
            expected_s,
            traceparent=traceparent,
            streamed=frame.kind == Kind.FETCH_STREAM,
        )
        if frame.count > limits.SLICE_KEYS:
            self._begin_fetch(frame, request)
        else:
            self._handle(request)

    def _on_fetch_each(self, frame: Frame) -> None:
        (deadline_us,) = messages.FETCH_EACH.unpack_from(frame.body)
        deadline_s = min(deadline_us / 1e6, limits.API_DEADLINE_S_MAX)
        body, traceparent = messages.split_traceparent(frame)
        keys = tuple(map(ChunkKey, messages.unpack_keys(body, frame.count, messages.FETCH_EACH.size)))
        request = events.ChunksRequested(
            self._engine, frame.request, keys, deadline_s, None, traceparent=traceparent, any_order=True
        )
        if frame.count > limits.SLICE_KEYS:
            self._begin_fetch(frame, request)
        else:
            self._handle(request)

    def _on_fetch_parts(self, frame: Frame) -> None:
        deadline_s, keys, ranges = messages.unpack_fetch_parts(frame)
        try:
            messages.check_parts(keys, ranges)
        except ValueError:
            self._send(Kind.FETCH_PARTS, frame.request, Status.MALFORMED)
            return
        deadline_s = min(deadline_s, limits.API_DEADLINE_S_MAX)
        self._handle(events.PartsRequested(self._engine, frame.request, tuple(map(ChunkKey, keys)), ranges, deadline_s))

    def _on_lock(self, frame: Frame) -> None:
        (hold_us,) = messages.LOCK.unpack_from(frame.body)
        hold_s = min(hold_us / 1e6, limits.API_LOCK_S_MAX)
        self._handle(
            events.KeysRequested(self._engine, frame.request, Kind.LOCK, _keys(frame, messages.LOCK.size), hold_s)
        )

    def _on_cancel(self, frame: Frame) -> None:
        self._handle(events.CancelRequested(self._engine, messages.CANCEL.unpack(frame.body)[0]))

    def _on_release(self, frame: Frame) -> None:
        self._handle(events.LeaseReleased(self._engine, _lease(frame), limits.SLICE_KEYS))

    def _on_reserve(self, frame: Frame) -> None:
        key, parent, size_bytes, position = messages.RESERVE.unpack_from(frame.body)
        namespace = frame.body[messages.RESERVE.size :]
        self._handle(
            events.ReserveRequested(
                self._engine,
                frame.request,
                ChunkKey(key),
                ChunkKey(parent) if parent != messages.NO_KEY else None,
                size_bytes,
                position if position != messages.NO_POSITION else None,
                _text(namespace) if namespace else "",
            )
        )

    def _on_commit(self, frame: Frame) -> None:
        lease, region_offset = messages.COMMIT.unpack(frame.body)
        self._handle(events.CommitRequested(self._engine, frame.request, LeaseId(lease), region_offset))

    def _on_abort(self, frame: Frame) -> None:
        self._handle(events.AbortRequested(self._engine, _lease(frame)))

    def _on_keys(self, frame: Frame) -> None:
        self._handle(events.KeysRequested(self._engine, frame.request, Kind(frame.kind), _keys(frame)))

    def _on_claim(self, frame: Frame) -> None:
        size_bytes, keys, etas_s = messages.unpack_claim(frame)
        claimed = tuple(map(ChunkKey, keys))
        self._handle(events.ClaimMade(self._engine, claimed, size_bytes, tuple(etas_s), frame.request))

    def _on_disclaim(self, frame: Frame) -> None:
        self._handle(events.ClaimWithdrawn(self._engine, _keys(frame) if frame.count else None))

    def _on_stats(self, frame: Frame) -> None:
        if len(frame.body) == messages.STATS.size:
            (self.registered_bytes,) = messages.STATS.unpack(frame.body)
        figures = json.dumps(self._stats(), separators=(",", ":")).encode()
        self._send(Kind.STATS, frame.request, Status.OK, figures)

    def _on_hint(self, frame: Frame) -> None:
        hint, within_ms = messages.HINT.unpack_from(frame.body)
        if hint not in (Hint.SESSION_ENDED, Hint.EXPECTED):
            raise MalformedFrameError(f"unknown hint {hint}")
        self._handle(events.HintGiven(_keys(frame, messages.HINT.size), Hint(hint), within_ms))

    def _on_warm(self, frame: Frame) -> None:
        size_bytes, nodes, wait_ms = messages.WARM.unpack_from(frame.body)
        namespace = frame.body[messages.WARM.size :]
        if len(namespace) > messages.NAMESPACE_BYTES_MAX:
            raise MalformedFrameError(f"a namespace of {len(namespace)} bytes")
        self._handle(events.WarmWished(self._engine, _text(namespace), size_bytes, nodes, wait_ms))


def _keys(frame: Frame, offset: int = 0) -> tuple[ChunkKey, ...]:
    return tuple(map(ChunkKey, messages.unpack_keys(frame.body, frame.count, offset)))


def _text(namespace: bytes) -> str:
    try:
        return namespace.decode()
    except UnicodeDecodeError as error:
        raise MalformedFrameError("a namespace is not UTF-8") from error


def _lease(frame: Frame) -> LeaseId:
    return LeaseId(messages.LEASE.unpack(frame.body)[0])


HANDLERS: dict[int, Callable[[EngineConnection, Frame], None]] = {
    Kind.RESERVE: EngineConnection._on_reserve,
    Kind.COMMIT: EngineConnection._on_commit,
    Kind.ABORT: EngineConnection._on_abort,
    Kind.FETCH: EngineConnection._on_fetch,
    Kind.FETCH_STREAM: EngineConnection._on_fetch,
    Kind.RELEASE: EngineConnection._on_release,
    Kind.CONTAINS: EngineConnection._on_keys,
    Kind.PIN: EngineConnection._on_keys,
    Kind.UNPIN: EngineConnection._on_keys,
    Kind.DROP: EngineConnection._on_keys,
    Kind.STATS: EngineConnection._on_stats,
    Kind.HINT: EngineConnection._on_hint,
    Kind.WARM: EngineConnection._on_warm,
    Kind.CANCEL: EngineConnection._on_cancel,
    Kind.CLAIM: EngineConnection._on_claim,
    Kind.DISCLAIM: EngineConnection._on_disclaim,
    Kind.FETCH_EACH: EngineConnection._on_fetch_each,
    Kind.FETCH_PARTS: EngineConnection._on_fetch_parts,
    Kind.LOCK: EngineConnection._on_lock,
    Kind.UNLOCK: EngineConnection._on_keys,
}
