"""An engine that starts asks for the hottest prefixes of its model. A thread, so that no request ever waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kvclient.attach import AgentUnavailableError
from kvclient.client import AgentClient
from kvclient.engines.settings import Settings

AGAIN_S = 1.0
"""Between attempts, while there is no agent or the chunks have no namespace yet."""


class Warming:
    """Asks once. The agent then fetches in the background, into free room of the node's pool."""

    def __init__(self, settings: Settings, namespace: Callable[[float], str | None], log: logging.Logger) -> None:
        """`namespace(wait_s)`: that of the chunks which the engine can use; None: not known yet. A ValueError ends the
        warming."""
        self._settings = settings
        self._namespace = namespace
        self._log = log
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvcast-warm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The engine ends."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                namespace = self._namespace(AGAIN_S)
                if namespace is not None and self._ask(namespace):
                    return
                if namespace is not None:
                    self._closed.wait(AGAIN_S)
        except ValueError as error:
            self._log.warning("kvcast: the engine is not warmed: %s", error)

    def _ask(self, namespace: str) -> bool:
        """Whether the agent has the request."""
        settings = self._settings
        try:
            with AgentClient(settings.socket, answer_timeout_s=settings.answer_timeout_s) as client:
                client.warm(namespace, settings.warm_bytes, nodes=settings.warm_nodes, wait_s=settings.warm_wait_s)
                client.stats()  # answered in order: the agent has the request
        except AgentUnavailableError:
            return False
        self._log.info("kvcast: asked for %d MiB of the hottest prefixes of %s", settings.warm_bytes >> 20, namespace)
        return True
