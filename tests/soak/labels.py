"""Namespaces of every kind that engines of a soak put under: what terminals, markup, pages and file names obey, the
shortest and the longest."""

from __future__ import annotations

from typing import Final

from kvproto.limits import NAMESPACE_BYTES_MAX

LABELS: Final = (
    "",
    "a",
    "plain/tenant",
    "\x1b]0;owned\x07",
    "\x1b]52;c;b3duZWQ=\x07",
    "\x1b[2J\x1b[31;1mred",
    "\x9b31mred",
    "".join(map(chr, range(1, 32))) + "\x7f\x80\x85\x9d",
    "[/x]",
    "[bold]x[/bold] [link=https://a.example]y",
    "\u202egnp.exe\u2066\u200b",
    "line\nfeed\r\u2028end",
    ":skull: \U0001f480\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "'quotes' \"and\" `more`",
    "back\\slash\\n\\x1b[0m%s{0}$(id);#",
    "../../etc/passwd",
    "<script>alert(1)</script>&amp;<!--",
    "n" * NAMESPACE_BYTES_MAX,
    "\u20ac" * (NAMESPACE_BYTES_MAX // 3),
)


def label_of(number: int) -> str:
    """Of the prefix with this number."""
    return LABELS[number % len(LABELS)]


def obeyed(text: str) -> set[str]:
    """Characters of a text that a terminal obeys instead of showing them; ends of lines are its own."""
    return {one for one in text if not one.isprintable() and one not in "\r\n"}
