"""Messages to the service manager that started a daemon (sd_notify(3)), and the files it keeps over restarts.

A service manager with a file descriptor store (systemd: `FileDescriptorStoreMax`) takes descriptors from a service,
keeps them when the service ends, however it ends, and hands them to its next start (sd_pid_notify_with_fds(3),
sd_listen_fds(3)).
"""

from __future__ import annotations

import logging
import os
import socket
from array import array
from collections.abc import Sequence
from typing import Final

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
