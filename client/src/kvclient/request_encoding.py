"""What engines ask of their agent, for every client alike: without a socket. Pure; standard library only.

Each function checks its arguments (ValueError and TypeError name the one that makes no sense). The client sends the
message in its own way, waits, and gives the answer to `Request.read`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvchunk.parts import ByteRange
from kvclient import messages
from kvclient.errors import expect
from kvclient.messages import Frame, Hint, Kind, Where
from kvclient.terms import COUNT_MAX, FetchTerms, check_fetch, check_seconds, check_size, check_whole

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message:
    """One frame but for its number."""

    kind: Kind
    body: bytes = b""
    count: int = 0
    status: int = 0

    def frame(self, number: int) -> bytes:
        """The frame. Raises ValueError for more keys than any frame counts."""
        if self.count > 0xFFFF:
            raise ValueError(f"{self.count} keys in one request")
        return messages.pack(self.kind, number, self.body, status=self.status, count=self.count)


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A message that is answered."""

    message: Message
    read: Callable[[Frame], T]
    """What the answer says. Raises AgentError when it is a refusal."""
    deadline_s: float = 0.0
    """The agent may take this long."""


# ---------------------------------------------------------------------- fetch and put


def fetch(keys: Sequence[bytes], deadline_s: float, traceparent: str | None, terms: FetchTerms) -> Message:
    """The leading chunks of a prefix, at once."""
    check_fetch(keys, deadline_s, terms)
    return _traced(Kind.FETCH, keys, messages.pack_fetch(keys, deadline_s, terms), traceparent)


def fetch_stream(keys: Sequence[bytes], deadline_s: float, traceparent: str | None, terms: FetchTerms) -> Message:
    """The leading chunks of a prefix, one after the other."""
    check_fetch(keys, deadline_s, terms)
    return _traced(Kind.FETCH_STREAM, keys, messages.pack_fetch(keys, deadline_s, terms), traceparent)


def fetch_any_order(keys: Sequence[bytes], deadline_s: float, traceparent: str | None) -> Message:
    """Whichever of the chunks there are."""
    check_fetch(keys, deadline_s, {})
    body = messages.FETCH_EACH.pack(int(deadline_s * 1e6)) + messages.pack_keys(keys)
    return _traced(Kind.FETCH_EACH, keys, body, traceparent)


def fetch_ranges(keys: Sequence[bytes], deadline_s: float, ranges: Sequence[ByteRange]) -> Message:
    """Ranges of whichever of the chunks there are."""
    check_fetch(keys, deadline_s, {})
    messages.check_parts(keys, ranges)
    return Message(Kind.FETCH_PARTS, messages.pack_fetch_parts(keys, ranges, deadline_s), len(keys))


def _traced(kind: Kind, keys: Sequence[bytes], body: bytes, traceparent: str | None) -> Message:
    trace = messages.pack_traceparent(traceparent)
    return Message(kind, body + trace, len(keys), len(trace))


def cancel(fetch: int) -> Message:
    """The fetch of this number is no longer wanted."""
    return Message(Kind.CANCEL, messages.CANCEL.pack(fetch))


def give_back(kind: Kind, lease: int) -> Message:
    """A lease ends: RELEASE or ABORT."""
    return Message(kind, messages.LEASE.pack(lease))


def reserve(key: bytes, parent: bytes | None, size_bytes: int, position: int | None, namespace: str) -> Message:
    """Room for a chunk."""
    check_size(size_bytes)
    if position is not None:
        check_whole(position, "position", 0, messages.NO_POSITION - 1)
    if parent == key:
        raise ValueError("a chunk is not its own parent: give the key of the chunk before it, or None for the first")
    messages.pack_keys([key] if parent is None else [key, parent])
    body = messages.RESERVE.pack(
        key,
        parent if parent is not None else messages.NO_KEY,
        size_bytes,
        messages.NO_POSITION if position is None else position,
    )
    return Message(Kind.RESERVE, body + messages.pack_namespace(namespace))


def commit(lease: int, offset: int) -> Message:
    """The chunk lies at `offset` of the write region."""
    return Message(Kind.COMMIT, messages.COMMIT.pack(lease, offset))


# ---------------------------------------------------------------------- about chunks


def contains(keys: Sequence[bytes]) -> Request[list[Where]]:
    """Where chunks are."""
    message = Message(Kind.CONTAINS, messages.pack_keys(keys), len(keys))
    return Request(message, lambda answer: messages.unpack_places(expect(answer, "look up")))


def lock(keys: Sequence[bytes], hold_s: float) -> Request[list[bool]]:
    """Keep chunks for a while."""
    check_seconds(hold_s=hold_s)
    return with_each(Kind.LOCK, keys, messages.LOCK.pack(int(hold_s * 1e6)))


def with_each(kind: Kind, keys: Sequence[bytes], head: bytes = b"") -> Request[list[bool]]:
    """PIN, UNPIN, LOCK, UNLOCK, DROP each of these chunks; whether it was done."""
    message = Message(kind, head + messages.pack_keys(keys), len(keys))
    return Request(message, lambda answer: [bool(value) for value in expect(answer, kind.name.lower()).body])


def stats(registered_bytes: int = 0) -> Request[dict[str, float]]:
    """The agent's figures; `registered_bytes`: what this client has registered with a device, for them."""
    return Request(Message(Kind.STATS, messages.STATS.pack(registered_bytes) if registered_bytes else b""), _figures)


def _figures(answer: Frame) -> dict[str, float]:
    figures: dict[str, float] = json.loads(expect(answer, "give figures").body)
    return figures


# ---------------------------------------------------------------------- not answered


class Notices(ABC):
    """What a client tells its agent, which does not answer."""

    @abstractmethod
    def notify(self, message: Message) -> None:
        """Send it. Raises AgentUnavailableError."""

    def claim(self, keys: Sequence[bytes], size_bytes: int, etas_s: Sequence[float]) -> None:
        """This engine computes these chunks now, in prefix order, and puts each in about `etas_s` seconds from now.

        Others that want them may wait for them instead of computing them, too. Claim again whenever a time changes; put
        every chunk as soon as it is computed. A claim ends with the put, with `disclaim`, or when it is late.
        """
        check_size(size_bytes)
        for at in range(0, len(keys), messages.KEYS_MAX):
            part = slice(at, at + messages.KEYS_MAX)
            body = messages.pack_claim(keys[part], size_bytes, etas_s[part])
            self.notify(Message(Kind.CLAIM, body, len(keys[part])))

    def disclaim(self, keys: Sequence[bytes] | None = None) -> None:
        """These chunks are not computed after all: whoever waits for them goes on at once. None: all of this client."""
        if keys is None:
            self.notify(Message(Kind.DISCLAIM))
            return
        for part in _parts(keys):
            self.notify(Message(Kind.DISCLAIM, messages.pack_keys(part), len(part)))

    def session_end(self, keys: Sequence[bytes]) -> None:
        """These chunks and what hangs below them are not expected to be used again."""
        for part in _parts(keys):
            self.notify(Message(Kind.HINT, messages.pack_hint(part, Hint.SESSION_ENDED), len(part)))

    def expect_reuse(self, keys: Sequence[bytes], *, within_s: float) -> None:
        """These chunks are expected to be used again in about `within_s` seconds."""
        check_seconds(within_s=within_s)
        body = messages.pack_hint(keys, Hint.EXPECTED, min(int(within_s * 1000), 0xFFFF_FFFF))
        self.notify(Message(Kind.HINT, body, len(keys)))

    def warm(self, namespace: str, size_bytes: int, *, nodes: int = 0, wait_s: float = 0.0) -> None:
        """An engine starts: bring `size_bytes` at most of the chunks of this namespace that are fetched most, into free
        room of this node's pool, in the background.

        `nodes`: so many nodes start such an engine about now (0: unknown); the controller waits for them, `wait_s`
        (whole milliseconds) at most, so that one cast serves all.
        """
        check_size(size_bytes)
        check_whole(nodes, "nodes", 0, COUNT_MAX)
        check_seconds(wait_s=wait_s)
        body = messages.WARM.pack(size_bytes, nodes, int(wait_s * 1000)) + messages.pack_namespace(namespace)
        self.notify(Message(Kind.WARM, body))


def _parts(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """As many at a time as one frame takes."""
    return (keys[at : at + messages.KEYS_MAX] for at in range(0, len(keys), messages.KEYS_MAX))
