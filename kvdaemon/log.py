"""A daemon's log on standard error: as text or as JSON lines, at a level that signals change while it runs."""

from __future__ import annotations

import copy
import json
import logging
import signal
import sys
from asyncio import AbstractEventLoop
from datetime import UTC, datetime

from kvproto.printable import printable, printable_lines

LOG_FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, whose, message, and exception if there is one."""

    def __init__(self, whose: str = "") -> None:
        """`whose`: the daemon's name, in every line."""
        super().__init__()
        self._whose = whose

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name}
        if self._whose:
            line["whose"] = self._whose
        line["message"] = printable(record.getMessage())
        if record.exc_info:
            line["exception"] = printable_lines(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class Lines(logging.Formatter):
    """Text, one line a record but for tracebacks: what peers put into names neither breaks lines nor moves a terminal's
    cursor."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        shown = copy.copy(record)
        shown.msg, shown.args = printable(record.getMessage()), ()
        return printable_lines(super().format(shown))


def log_to_stderr(level: str, whose: str = "", form: str = "text") -> None:
    """`level`: one of `checks.LOG_LEVELS`; `form`: one of LOG_FORMATS; `whose`: a name in every line, where logs of
    several daemons are read together."""
    handler = logging.StreamHandler(sys.stderr)
    words = f"%(asctime)s {whose} %(levelname)s" if whose else "%(asctime)s %(levelname)s"
    handler.setFormatter(JsonLines(whose) if form == "json" else Lines(f"{words} %(name)s: %(message)s"))
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
    root.setLevel(level.upper())


def change_level_by_signals(loop: AbstractEventLoop, level: str) -> None:
    """SIGUSR1: log everything, as with level debug. SIGUSR2: log what the configuration says, `level`, again."""

    def set_level(name: str) -> None:
        logging.getLogger().setLevel(name.upper())
        logging.getLogger(__name__).log(logging.getLogger().getEffectiveLevel(), "the log's level is %s now", name)

    loop.add_signal_handler(signal.SIGUSR1, set_level, "debug")
    loop.add_signal_handler(signal.SIGUSR2, set_level, level)
