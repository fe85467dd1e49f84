"""The engine's side of the agent for a caller that may not wait: requests are posted, answers looked for later.

For an engine's scheduler. Its thread sends and receives by itself, because handing a request to another thread costs
more than sending it. What is in the pool already is found and leased without the agent. One thread only; standard
library only.

>>> request = client.contains(keys)
>>> for answer in client.poll(0.002):
...     if answer.request == request:
...         places = places_of(answer)
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Sequence
from typing import Unpack

from kvchunk.sources import ChunkSource
from kvclient import messages
from kvclient.attach import ANSWER_TIMEOUT_S, AgentUnavailableError, attach
from kvclient.local import LocalLease, LocalReads
from kvclient.messages import Frame, Hint, Kind, MalformedFrameError, Status, Where
from kvclient.terms import FetchTerms, check_fetch

RECEIVE_BYTES = 1 << 16


class PolledClient:
    """A connection to this node's agent. What cannot be sent at once is sent by later calls, `poll` among them."""

    def __init__(self, socket_path: str | os.PathLike[str], *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Raises AgentUnavailableError, as do all calls once the agent is gone.

        An agent that owes an answer for `answer_timeout_s` (beyond a fetch's own deadline) is gone, too.
        """
        self._path = os.fspath(socket_path)
        self._answer_timeout_s = answer_timeout_s
        attached = attach(self._path)
        self._broken = ""
        self._sock = attached.sock
        self._ended = select.poll()
        self._ended.register(self._sock, 0)
        # Others copy the chunks: only numbers about them are here.
        self._local: LocalReads | None = None
        try:
            if attached.local is not None:
                self._local = LocalReads.opened(*attached.local, self._is_up)
        except BaseException:
            self._sock.close()
            raise
        finally:
            attached.close_files()
        self._sock.setblocking(False)
        self._wanted = select.POLLIN
        self._waiter = select.poll()
        self._waiter.register(self._sock, self._wanted)
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._frames = messages.FrameReader()
        self._unsent: deque[memoryview] = deque()
        self._owed: dict[int, float] = {}
        """Requests not answered yet, and when the agent is given up for each."""
        self._number = 0

    def close(self) -> None:
        """Gives everything back, leases too."""
        self._broken = self._broken or "the client was closed"
        self._sock.close()
        if self._local is not None:
            self._local.close()

    @property
    def is_idle(self) -> bool:
        """Nothing is owed, nothing waits to be sent: there is nothing to poll for."""
        return not self._owed and not self._unsent

    def _is_up(self) -> bool:
        return not self._broken and not self._ended.poll(0)

    # ------------------------------------------------------------------ without the agent

    def holds_here(self, keys: Sequence[bytes]) -> bool:
        """Whether all of these chunks are in this node's pool at this moment. False also where only the agent knows."""
        return self._local is not None and self._local.holds(keys)

    def lease_here(self, keys: Sequence[bytes]) -> LocalLease | None:
        """All of these chunks, if they are in this node's pool; None: one is not, or the agent has to be asked.

        They stay until the lease is released, or the client is closed. `keys` are distinct.
        """
        return None if self._local is None else self._local.lease(keys)

    # ------------------------------------------------------------------ requests

    def contains(self, keys: Sequence[bytes]) -> int:
        """Ask where chunks are; `places_of` the answer. Returns the request's number."""
        return self._ask(Kind.CONTAINS, messages.pack_keys(keys), len(keys))

    def fetch(
        self, keys: Sequence[bytes], *, deadline_s: float, traceparent: str | None = None, **terms: Unpack[FetchTerms]
    ) -> int:
        """As AgentClient.fetch of a prefix, which is not empty; `lease_of` the answer."""
        if not keys:
            raise ValueError("keys is empty: there is nothing to fetch")
        check_fetch(keys, deadline_s, terms)
        body = messages.pack_fetch(keys, deadline_s, terms)
        trace = messages.pack_traceparent(traceparent)
        return self._ask(Kind.FETCH, body + trace, len(keys), deadline_s, status=len(trace))

    def stats(self) -> int:
        """Ask for the agent's figures: the answer's body is a JSON object of numbers."""
        return self._ask(Kind.STATS, b"")

    def cancel(self, fetch: int) -> None:
        """A fetch is no longer wanted: its answer comes soon, with nothing unless it was on its way already."""
        self._post(Kind.CANCEL, messages.CANCEL.pack(fetch))

    def release(self, lease: int) -> None:
        """Unpin what a fetch has leased."""
        self._post(Kind.RELEASE, messages.LEASE.pack(lease))

    def claim(self, keys: Sequence[bytes], size_bytes: int, etas_s: Sequence[float]) -> None:
        """As AgentClient.claim, of KEYS_MAX keys at most."""
        self._post(Kind.CLAIM, messages.pack_claim(keys, size_bytes, etas_s), len(keys))

    def disclaim(self, keys: Sequence[bytes]) -> None:
        """As AgentClient.disclaim, of KEYS_MAX keys at most."""
        self._post(Kind.DISCLAIM, messages.pack_keys(keys), len(keys))

    def session_end(self, keys: Sequence[bytes]) -> None:
        """As AgentClient.session_end."""
        self._post(Kind.HINT, messages.pack_hint(keys, Hint.SESSION_ENDED), len(keys))

    # ------------------------------------------------------------------ answers

    def poll(self, timeout_s: float = 0.0) -> list[Frame]:
        """Answers that have come. Waits up to `timeout_s` for one, if any is owed."""
        self._check()
        if self._unsent:
            self._flush()
        if not self._owed:
            return []
        answers: list[Frame] = []
        give_up_s = time.monotonic() + timeout_s if timeout_s > 0 else 0.0
        while self._await_socket(timeout_s):
            answers = [frame for frame in self._receive() if self._owed.pop(frame.request, None) is not None]
            timeout_s = give_up_s - time.monotonic()
            if answers or timeout_s <= 0:
                break
        if not answers:
            # An answer is late only if looking does not find it: a caller may have been busy for as long as it likes.
            now_s = time.monotonic()
            if any(give_up_s < now_s for give_up_s in self._owed.values()):
                raise self._break("does not answer")
        return answers

    def _await_socket(self, timeout_s: float) -> bool:
        """Whether there is something to receive, or room for what is still to be sent."""
        wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        if wanted != self._wanted:
            self._wanted = wanted
            self._waiter.modify(self._sock, wanted)
        return bool(self._waiter.poll(timeout_s * 1000 if timeout_s > 0 else 0))

    def _receive(self) -> list[Frame]:
        try:
            if self._unsent:
                self._flush()
            # Reuse the same memory: allocating and freeing as much each time costs more than the system call.
            count = self._sock.recv_into(self._received)
            if not count:
                raise self._break("closed the connection")
            return self._frames.feed(bytes(self._received[:count]))
        except BlockingIOError:
            return []
        except (OSError, MalformedFrameError) as error:
            raise self._break(f"went away: {error}") from error

    # ------------------------------------------------------------------ sending

    def _ask(self, kind: Kind, body: bytes, count: int = 0, deadline_s: float = 0.0, *, status: int = 0) -> int:
        number = self._post(kind, body, count, status=status)
        self._owed[number] = time.monotonic() + deadline_s + self._answer_timeout_s
        return number

    def _post(self, kind: Kind, body: bytes, count: int = 0, *, status: int = 0) -> int:
        self._check()
        self._number = self._number % 0xFFFF_FFFF + 1
        self._unsent.append(memoryview(messages.pack(kind, self._number, body, status=status, count=count)))
        self._flush()
        return self._number

    def _flush(self) -> None:
        try:
            while self._unsent:
                frame = self._unsent[0]
                sent = self._sock.send(frame)
                if sent == len(frame):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = frame[sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._break(f"went away: {error.strerror}") from error

    def _check(self) -> None:
        if self._broken:
            raise AgentUnavailableError(self._broken)

    def _break(self, what: str) -> AgentUnavailableError:
        self._broken = f"the agent at {self._path} {what}"
        return AgentUnavailableError(self._broken)


def places_of(answer: Frame) -> list[Where] | None:
    """Where each chunk of a `contains` is; None when the agent refused to say."""
    return messages.unpack_places(answer) if answer.status == Status.OK else None


def lease_of(answer: Frame) -> tuple[int, list[ChunkSource]]:
    """(lease, sources of the leading chunks that it holds) of a `fetch`; no chunks, no lease."""
    if not answer.count:
        return 0, []
    return messages.unpack_sources(answer)
