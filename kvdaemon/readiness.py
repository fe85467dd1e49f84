"""How a daemon says that it does its work: a line, a file for scripts, a notification for service managers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvdaemon.errors import CannotRunError
from kvdaemon.files import replace_file
from kvdaemon.notify import notify
from kvdaemon.streams import say

WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"
"""Set by systemd for services with WatchdogSec. See sd_watchdog_enabled(3)."""


@contextlib.contextmanager
def ready(name: str, facts: Mapping[str, str], path: Path | None) -> Iterator[None]:
    """The daemon is ready inside this context: it prints the facts and notifies its starter; `path`, if any, has them.

    Raises CannotRunError when the file cannot be written.
    """
    if path is not None:
        try:
            replace_file(path, json.dumps({"pid": os.getpid(), **facts}).encode() + b"\n")
        except OSError as error:
            raise CannotRunError(f"cannot write ready_file {path}: {error.strerror}") from error
    spare_collections()
    try:
        say(" ".join([name, "ready", *(f"{key}={value or 'off'}" for key, value in facts.items())]))
        notify_ready()
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def spare_collections() -> None:
    """Take what the start has made (modules, classes, configuration) out of what the garbage collector looks at.

    It stays until the process ends. A full collection that visits all of it stops a daemon for 30 ms of processor time,
    in the middle of somebody's fetch.
    """
    gc.collect()
    gc.freeze()


def notify_ready() -> None:
    """Notify whoever started this process, if it asked for that."""
    notify("READY=1")


async def tell_alive() -> None:
    """Have systemd's watchdog see that the event loop turns, until cancelled; where none asks, returns at once."""
    period_us = os.environ.get(WATCHDOG_VARIABLE, "")
    asked = os.environ.get(WATCHDOG_PID_VARIABLE, str(os.getpid()))
    if not period_us.isdigit() or not int(period_us) or asked != str(os.getpid()):
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(period_us) / 1e6 / 2)
