"""Strings of others, as a terminal and a log may have them."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from kvdaemon.log import JsonLines, Lines
from kvproto.printable import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("acme/prod é 漢", "acme/prod é 漢"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\nb\r", "a\\nb\\r"),
        ("\u202egnp", "\\u202egnp"),
        ("\x9b31m\ud800", "\\x9b31m\\ud800"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
    assert printable_lines(f"{text[:1]}\n{text[:1]}") == "\n".join([printable(text[:1])] * 2)


def test_a_log_has_one_line_for_a_message_and_no_control_characters() -> None:
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        record = logging.LogRecord(
            "n", logging.INFO, "", 1, "from %s", ("n1\n2026 INFO forged\x1b[1m",), sys.exc_info()
        )
    text = Lines("%(levelname)s %(message)s").format(record)
    first, *traceback = text.splitlines()
    assert first == "INFO from n1\\n2026 INFO forged\\x1b[1m"
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "ValueError: \\x1b[2J"
    said = json.loads(JsonLines().format(record))
    assert said["message"] == "from n1\\n2026 INFO forged\\x1b[1m"
    assert "\x1b" not in text + said["exception"]
