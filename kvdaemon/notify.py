"""Messages to the service manager that started a daemon (sd_notify(3)), and the files it keeps over restarts.

A service manager with a file descriptor store (systemd: `FileDescriptorStoreMax`) takes descriptors from a service,
keeps them when the service ends, however it ends, and hands them to its next start (sd_pid_notify_with_fds(3),
sd_listen_fds(3)).

How a daemon says that it does its work: a line, a file for scripts, a notification for service managers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import socket
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvdaemon.errors import CannotRunError
from kvdaemon.files import replace_file
from kvdaemon.streams import say

log = logging.getLogger(__name__)

NOTIFY_VARIABLE: Final = "NOTIFY_SOCKET"
"""Set by systemd for services of Type=notify, and by the testbed."""
_TIMEOUT_S: Final = 1.0
"""Whoever asked for messages and reads none holds nothing up for longer."""
_KEPT_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_FIRST_KEPT_FD: Final = 3


def is_listened_to() -> bool:
    """Whether whoever started this process asked for messages."""
    return bool(os.environ.get(NOTIFY_VARIABLE))


def notify(message: str, descriptors: Sequence[int] = ()) -> None:
    """Tell whoever started this process, if it asked for that. Descriptors travel with the message."""
    address = os.environ.get(NOTIFY_VARIABLE)
    if not address:
        return
    target = address.replace("@", "\0", 1) if address.startswith("@") else address
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        notifier.settimeout(_TIMEOUT_S)
        try:
            notifier.sendmsg([message.encode()], rights, 0, target)
        except OSError as error:
            # A service manager that no longer listens must not stop the daemon.
            log.warning("cannot notify %s: %s", address, error.strerror or error)


def keep_file(name: str, descriptor: int) -> None:
    """Have the service manager keep an open file for the next start, if it does that."""
    notify(f"FDSTORE=1\nFDNAME={name}", [descriptor])


def forget_file(name: str) -> None:
    """Have the service manager close the file that it keeps under a name."""
    notify(f"FDSTOREREMOVE=1\nFDNAME={name}")


def kept_files() -> dict[str, int]:
    """The files that the service manager kept, by name; the caller's from now on. The second call finds none."""
    told = {name: os.environ.pop(name, "") for name in _KEPT_VARIABLES}
    if told["LISTEN_PID"] != str(os.getpid()) or not told["LISTEN_FDS"].isdigit():
        return {}
    kept: dict[str, int] = {}
    names = told["LISTEN_FDNAMES"].split(":")
    for number in range(int(told["LISTEN_FDS"])):
        descriptor = _FIRST_KEPT_FD + number
        os.set_inheritable(descriptor, False)
        name = names[number] if number < len(names) else ""
        if name in kept:
            os.close(kept[name])
        kept[name] = descriptor
    return kept


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
