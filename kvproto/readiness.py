"""How a daemon says that it does its work: a file for scripts, a notification for service managers. Not pure."""

import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

NOTIFY_VARIABLE = "NOTIFY_SOCKET"
"""Set by systemd for services of Type=notify, and by the testbed. See sd_notify(3)."""


def write_ready_file(path: Path, facts: Mapping[str, object]) -> None:
    """Write facts as JSON; the file appears whole or not at all. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    beside.rename(path)


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
