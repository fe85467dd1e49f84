"""An engine that starts asks for the hottest prefixes of its model. A thread, so that no request ever waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kvclient.attach import AgentUnavailableError
from kvclient.client import AgentClient
from kvclient.engines.settings import Settings

AGAIN_S = 1.0
"""Between attempts, while there is no agent or the chunks have no label yet."""


class Warming:
    """Asks once. The agent then fetches in the background, into free room of the node's pool."""

    def __init__(self, settings: Settings, label: Callable[[float], str | None], log: logging.Logger) -> None:
        """`label(wait_s)`: the label of the chunks that the engine can use; None: not known yet. A ValueError ends the
        warming."""
        self._settings = settings
        self._label = label
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
                label = self._label(AGAIN_S)
                if label is not None and self._ask(label):
                    return
                if label is not None:
                    self._closed.wait(AGAIN_S)
        except ValueError as error:
            self._log.warning("kvcast: the engine is not warmed: %s", error)

    def _ask(self, label: str) -> bool:
        """Whether the agent has the request."""
        settings = self._settings
        try:
            with AgentClient(settings.socket, answer_timeout_s=settings.answer_timeout_s) as client:
                client.warm(label, settings.warm_bytes, nodes=settings.warm_nodes, wait_s=settings.warm_wait_s)
                client.stats()  # answered in order: the agent has the request
        except AgentUnavailableError:
            return False
        self._log.info("kvcast: asked for %d MiB of the hottest prefixes of %s", settings.warm_bytes >> 20, label)
        return True
