"""An engine's connection to its node's agent, kept up in the background: the engine never waits for it.

While there is no agent the engine runs as if kvcast were not there. One warning says so, and one line that it is back.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from kvclient import forks
from kvclient.attach import AgentUnavailableError

ANSWER_TIMEOUT_S = 5.0
"""Default of how long a hanging agent may hold up a load."""
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits between attempts to connect; the last one repeats."""


class Client(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Client)


class AgentLink(Generic[C]):
    """Holds the client while there is one."""

    def __init__(
        self,
        connect: Callable[..., C],
        socket_path: str,
        log: logging.Logger,
        *,
        level: int = logging.WARNING,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """Tries once at once, then in a thread of its own. Never raises for an agent that is away.

        `connect(socket_path, answer_timeout_s=...)` makes a client or raises AgentUnavailableError.
        `level`: log level of the lines about the agent's going and coming; lower for all but one link of an engine.
        `answer_timeout_s`: see AgentClient.
        """
        self.path = socket_path
        self._log = log
        self._level = level
        self._connect = functools.partial(connect, socket_path, answer_timeout_s=answer_timeout_s)
        self._lock = threading.Lock()
        self._client: C | None = None
        self._closed = threading.Event()
        self._lost = threading.Event()
        self.outages_count = 0
        self._is_parents = False
        """This process was forked from the one that made this, and nobody was told so yet."""
        try:
            self._client = self._connect()
        except (AgentUnavailableError, OSError) as error:
            self._tell_lost(str(error))
        self._supervisor = threading.Thread(target=self._supervise, name=f"kvcast-link-{os.getpid()}", daemon=True)
        self._supervisor.start()
        forks.watch(self)

    def process_forked(self) -> None:
        """See `kvclient.forks`. Whoever uses a connector in the child runs without the pool: the threads that would
        connect anew, and those that copy, are the parent's."""
        self._client, self._is_parents = None, True
        self._lock, self._closed, self._lost = threading.Lock(), threading.Event(), threading.Event()

    @property
    def client(self) -> C | None:
        """The client of this moment."""
        if self._is_parents:
            self._is_parents = False
            self._log.warning("kvcast: %s; the engine runs without the pool here", forks.REMEDY)
        return self._client

    @property
    def away(self) -> bool:
        """Whether there is no agent."""
        return self._client is None

    def connection_lost(self, client: C, reason: str) -> None:
        """A call through `client` failed for want of an agent; several callers may report the same client."""
        with self._lock:
            if self._client is not client:
                return
            self._client = None
        self._tell_lost(reason)
        client.close()

    def close(self) -> None:
        """Give everything back."""
        self._closed.set()
        self._lost.set()
        self._supervisor.join()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _tell_lost(self, reason: str) -> None:
        self.outages_count += 1
        self._log.log(self._level, "kvcast: %s; the engine runs without the pool until the agent answers again", reason)
        self._lost.set()

    def _supervise(self) -> None:
        while not self._closed.is_set():
            self._lost.wait()
            self._lost.clear()
            self._reconnect()

    def _reconnect(self) -> None:
        attempt = 0
        while self._client is None and not self._closed.wait(RETRY_S[min(attempt, len(RETRY_S) - 1)]):
            attempt += 1
            try:
                client = self._connect()
            except (AgentUnavailableError, OSError):
                continue
            with self._lock:
                self._client = client
            self._log.log(self._level, "kvcast: the agent at %s is there", self.path)
