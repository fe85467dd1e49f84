"""Tokens of P4_16. `>>` is left as two `>` tokens, as type arguments may end in it; the parser joins them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from p4switch.frontend.source import Reporter

_WORDS = (
    "abstract action actions apply bool bit break const continue control default else entries enum error exit extern "
    "false for header header_union if in inout int key list match_kind out package parser priority return select state "
    "string struct switch table this transition true tuple type typedef value_set varbit void _"
)
KEYWORDS = frozenset(_WORDS.split())
SOFT_KEYWORDS = frozenset({"actions", "apply", "entries", "key", "priority", "state", "type", "list"})
"""Keywords that also serve as names."""

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<number>\d+[ws](?:0[xX][0-9a-fA-F_]+|0[dD][0-9_]+|0[oO][0-7_]+|0[bB][01_]+|\d[0-9_]*)"
    r"|0[xX][0-9a-fA-F_]+|0[dD][0-9_]+|0[oO][0-7_]+|0[bB][01_]+|\d[0-9_]*)"
    r'|(?P<string>"(?:\\.|[^"\\])*")'
    r"|(?P<operator>&&&|\.\.\.|\{#\}|\|\+\|=|\|-\|=|<<=|\|\+\||\|-\||\.\.|<<|&&|\|\||==|!=|>=|<=|\+\+|\+=|-=|\*=|/=|%=|&=|\|=|\^=|\+:"
    r"|[-+*/%|&^~()\[\]{}<>!:,?.=;@])",
    re.S,
)
_NUMBER = re.compile(r"(?:(\d+)([ws]))?(0[xXdDoObB])?([0-9a-fA-F_]+)$")
_BASES = {"x": 16, "d": 10, "o": 8, "b": 2}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "0": "\0"}


@dataclass(slots=True)
class Tokens:
    """The token stream as parallel lists, ended by one token of kind 'end'.

    kind: 'name', 'keyword', 'number', 'string', 'operator', 'end'.
    """

    kinds: list[str]
    texts: list[str]
    offsets: list[int]


def tokenize(reporter: Reporter) -> Tokens:
    """Cut the reporter's source into tokens. A character that starts none is an error there."""
    text = reporter.source.text
    kinds: list[str] = []
    texts: list[str] = []
    offsets: list[int] = []
    at = 0
    for match in _TOKEN.finditer(text):
        if match.start() != at:
            break
        kind = match.lastgroup
        if kind != "space":
            word = match.group()
            kinds.append("keyword" if kind == "name" and word in KEYWORDS else str(kind))
            texts.append(word)
            offsets.append(at)
        at = match.end()
    if at < len(text):
        what = "this string does not end" if text[at] == '"' else f"unexpected character {text[at]!r}"
        raise reporter.fail(at, what)
    kinds.append("end")
    texts.append("")
    offsets.append(max(0, len(text.rstrip()) - 1))
    return Tokens(kinds, texts, offsets)


def parse_number(text: str) -> tuple[int, int | None, bool] | None:
    """Value, width (None for an arbitrary-precision literal) and signedness of a number token; None if malformed."""
    match = _NUMBER.match(text)
    if match is None:
        return None
    width, sign, base, digits = match.groups()
    digits = digits.replace("_", "")
    try:
        value = int(digits, _BASES[base[1].lower()] if base else 10)
    except ValueError:
        return None
    return value, int(width) if width else None, sign == "s"


def unescape(text: str) -> str:
    """The characters of a string token."""
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), text[1:-1], flags=re.S)
