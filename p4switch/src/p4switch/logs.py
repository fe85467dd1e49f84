"""The log on standard error: lines for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error", "off")
FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """`{"time": RFC 3339, "level": ..., "logger": ..., "message": ..., "exception": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, style: str) -> None:
    """Send the log to standard error; `level` is one of LEVELS, `style` one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    number = logging.CRITICAL + 1 if level == "off" else getattr(logging, level.upper())
    logging.basicConfig(level=number, handlers=[handler])
