"""The log on standard error: lines for people, or one JSON object per line."""

from __future__ import annotations

import copy
import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error", "off")
FORMATS = ("text", "json")


def printable(text: str) -> str:
    """The text with what is no visible character and no space as Python writes it in a string: programs, packets and
    controllers put what they like into names and messages, and a terminal would obey it."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """The same for text whose line breaks are our own."""
    return "\n".join(map(printable, text.split("\n")))


class TextFormatter(logging.Formatter):
    """One line a record, and a traceback's."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        shown = copy.copy(record)
        shown.msg, shown.args = printable(record.getMessage()), ()
        return printable_lines(super().format(shown))


class JsonFormatter(logging.Formatter):
    """`{"time": RFC 3339, "level": ..., "logger": ..., "message": ..., "exception": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        if record.exc_info:
            line["exception"] = printable_lines(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, style: str) -> None:
    """Send the log to standard error; `level` is one of LEVELS, `style` one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    number = logging.CRITICAL + 1 if level == "off" else getattr(logging, level.upper())
    logging.basicConfig(level=number, handlers=[handler])
