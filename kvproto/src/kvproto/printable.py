"""Strings of others as text that a terminal or a log shows and does not obey. Pure.

The one owner of that question: whoever writes a string that it did not make itself to a terminal, a log or an error
message lets it pass here.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with what is no visible character and no space (control characters, line breaks, marks that turn the
    direction of writing, halves of surrogate pairs) as Python would write it in a string: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """The same for text whose line breaks are our own: a traceback, a message of several lines."""
    return "\n".join(map(printable, text.split("\n")))
