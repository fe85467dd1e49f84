"""Standard output and standard error of a process: what they do not take ends no daemon, and no traceback says so."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import Final

log = logging.getLogger(__name__)

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Error numbers of a place that takes nothing more."""


def take_any_text() -> None:
    """From now on characters that the locale does not have, and halves of others as in odd file names, are printed as
    escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(line: str) -> None:
    """Print a line, and go on where nobody takes it: a full disk, a reader that went away."""
    try:
        print(line, flush=True)
    except OSError as error:
        log.warning("standard output takes nothing: %s", error.strerror)
        drop_output()


def drop_output() -> None:
    """Send what is still to be printed nowhere: printed again at the end of the process, it would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
