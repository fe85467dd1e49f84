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
from collections.abc import Sequence
from typing import Unpack

from kvchunk.sources import ChunkSource
from kvclient import messages, request_encoding
from kvclient.attach import ANSWER_TIMEOUT_S, attach
from kvclient.local import LocalLease, LocalReads
from kvclient.messages import Frame, Kind, Status, Where
from kvclient.nonblocking import NonBlockingConnection
from kvclient.request_encoding import Message, Notices
from kvclient.terms import SECONDS_MAX, FetchTerms, check_seconds


class PolledClient(Notices):
    """A connection to this node's agent. What cannot be sent at once is sent by later calls, `poll` among them."""

    def __init__(self, socket_path: str | os.PathLike[str], *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Raises AgentUnavailableError, as do all calls once the agent is gone.

        An agent that owes an answer for `answer_timeout_s` (beyond a fetch's own deadline) is gone, too.
        """
        path = os.fspath(socket_path)
        check_seconds(answer_timeout_s=answer_timeout_s)
        self._answer_timeout_s = answer_timeout_s
        with attach(path) as attached:
            self._connection = NonBlockingConnection(path, attached.sock)
            # Others copy the chunks: only numbers about them are here.
            self._local: LocalReads | None = None
            if attached.local is not None:
                self._local = LocalReads.opened(*attached.local, self._connection.is_up)
        self._wanted = select.POLLIN
        self._waiter = select.poll()
        self._waiter.register(self._connection, self._wanted)
        self._owed: dict[int, float] = {}
        """Requests not answered yet, and when the agent is given up for each."""

    def close(self) -> None:
        """Gives everything back, leases too."""
        self._connection.close()
        if self._local is not None:
            self._local.close()

    @property
    def is_idle(self) -> bool:
        """Nothing is owed, nothing waits to be sent: there is nothing to poll for."""
        return not self._owed and not self._connection.has_unsent

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
        return self._ask(request_encoding.contains(keys).message)

    def fetch(
        self, keys: Sequence[bytes], *, deadline_s: float, traceparent: str | None = None, **terms: Unpack[FetchTerms]
    ) -> int:
        """As AgentClient.fetch of a prefix; `lease_of` the answer."""
        return self._ask(request_encoding.fetch(keys, deadline_s, traceparent, terms), deadline_s)

    def stats(self) -> int:
        """Ask for the agent's figures: the answer's body is a JSON object of numbers."""
        return self._ask(request_encoding.stats().message)

    def cancel(self, fetch: int) -> None:
        """A fetch is no longer wanted: its answer comes soon, with nothing unless it was on its way already."""
        self.notify(request_encoding.cancel(fetch))

    def release(self, lease: int) -> None:
        """Unpin what a fetch has leased."""
        self.notify(request_encoding.give_back(Kind.RELEASE, lease))

    def notify(self, message: Message) -> None:
        """Send what is not answered, see `Notices`."""
        self._connection.send(message)

    def _ask(self, message: Message, deadline_s: float = 0.0) -> int:
        number = self._connection.send(message)
        self._owed[number] = time.monotonic() + deadline_s + self._answer_timeout_s
        return number

    # ------------------------------------------------------------------ answers

    def poll(self, timeout_s: float = 0.0) -> list[Frame]:
        """Answers that have come. Waits up to `timeout_s` for one, if any is owed."""
        self._connection.check()
        if self._connection.has_unsent:
            self._connection.flush()
        if not self._owed:
            return []
        answers: list[Frame] = []
        give_up_s = time.monotonic() + timeout_s if timeout_s > 0 else 0.0
        while self._await_socket(timeout_s):
            answers = [frame for frame in self._connection.receive() if self._owed.pop(frame.request, None) is not None]
            timeout_s = give_up_s - time.monotonic()
            if answers or timeout_s <= 0:
                break
        if not answers:
            # An answer is late only if looking does not find it: a caller may have been busy for as long as it likes.
            now_s = time.monotonic()
            if any(give_up_s < now_s for give_up_s in self._owed.values()):
                raise self._connection.broken("does not answer")
        return answers

    def _await_socket(self, timeout_s: float) -> bool:
        """Whether there is something to receive, or room for what is still to be sent."""
        wanted = select.POLLIN | (select.POLLOUT if self._connection.has_unsent else 0)
        if wanted != self._wanted:
            self._wanted = wanted
            self._waiter.modify(self._connection, wanted)
        return bool(self._waiter.poll(min(timeout_s, SECONDS_MAX) * 1000 if timeout_s > 0 else 0))


def places_of(answer: Frame) -> list[Where] | None:
    """Where each chunk of a `contains` is; None when the agent refused to say."""
    return messages.unpack_places(answer) if answer.status == Status.OK else None


def lease_of(answer: Frame) -> tuple[int, list[ChunkSource]]:
    """(lease, sources of the leading chunks that it holds) of a `fetch`; no chunks, no lease."""
    if not answer.count:
        return 0, []
    return messages.unpack_sources(answer)
