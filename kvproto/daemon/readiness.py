"""How a daemon says that it does its work: a line, a file for scripts, a notification for service managers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvproto.daemon.errors import CannotRunError

log = logging.getLogger(__name__)

NOTIFY_VARIABLE = "NOTIFY_SOCKET"
"""Set by systemd for services of Type=notify, and by the testbed. See sd_notify(3)."""


@contextlib.contextmanager
def ready(name: str, facts: Mapping[str, str], path: Path | None) -> Iterator[None]:
    """Inside it the daemon is ready: whoever waits is told the facts, and the file at `path`, if any, has them.

    Raises CannotRunError when the file cannot be written.
    """
    if path is not None:
        try:
            write_ready_file(path, {"pid": os.getpid(), **facts})
        except OSError as error:
            raise CannotRunError(f"cannot write ready_file {path}: {error.strerror}") from error
    try:
        print(name, "ready", *(f"{key}={value or 'off'}" for key, value in facts.items()), flush=True)
        notify_ready()
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def write_ready_file(path: Path, facts: Mapping[str, object]) -> None:
    """Write facts as JSON; the file appears whole or not at all. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def notify_ready() -> None:
    """Tell whoever started this process, if it wants to know."""
    address = os.environ.get(NOTIFY_VARIABLE)
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        try:
            notifier.sendto(b"READY=1", address.replace("@", "\0", 1) if address.startswith("@") else address)
        except OSError as error:
            # Nobody listens any more; that is no reason not to work.
            log.warning("cannot notify %s: %s", address, error.strerror)
