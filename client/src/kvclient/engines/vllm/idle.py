"""Withdraws what the pool has lost from routers while an engine has nothing to do and makes no steps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_events import KVEventBatch

from kvclient import messages
from kvclient.client import AgentClient, AgentError, AgentUnavailableError
from kvclient.engines.settings import Settings
from kvclient.engines.vllm.events import PoolNews
from kvclient.messages import Where

log = logging.getLogger("vllm.kvcast")


class IdleNews:
    """A thread that looks where the chunks are that routers know of, while no step does so."""

    def __init__(self, settings: Settings, news: PoolNews, scheduler: Any, last_step_s: Callable[[], float]) -> None:
        """`scheduler`: vLLM's, whose publisher is used; `last_step_s`: when its last step ended (monotonic)."""
        self._settings = settings
        self._news = news
        self._scheduler = scheduler
        self._last_step_s = last_step_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvcast-idle-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        period_s = self._settings.events_sweep_s
        while not self._closed.wait(period_s):
            if time.monotonic() - self._last_step_s() >= period_s:
                self._look()

    def _look(self) -> None:
        chunks = self._news.announced_keys()
        keys = [key for chunk in chunks for key in chunk]
        if not keys:
            return
        where: list[Where] = []
        try:
            with AgentClient(self._settings.socket, answer_timeout_s=self._settings.answer_timeout_s) as client:
                for at in range(0, len(keys), messages.KEYS_MAX):
                    where += client.contains(keys[at : at + messages.KEYS_MAX])
        except (AgentUnavailableError, AgentError, OSError):
            return  # the scheduler's own connection says so; a later look finds what there is then
        self._news.sweep_ended(chunks, where)
        events = self._news.take()
        if events:
            try:
                self._scheduler.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))
            except RuntimeError:
                log.debug("kvcast: the engine ends, so no more events are published")
