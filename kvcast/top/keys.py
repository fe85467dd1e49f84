"""Keys as they are pressed on a terminal."""

from __future__ import annotations

import contextlib
import os
import termios
import tty
from collections.abc import Iterator
from typing import Final

_NAMED: Final = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1bOH": "home",
    b"\x1b": "escape",
    b"\t": "tab",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
"""Sequences of xterm, as all terminals in use send them; the rest are single characters."""
_INTRODUCERS: Final = (b"\x1b[", b"\x1bO")
"""Of a sequence; without it the first byte is the key Escape."""
_LONGEST: Final = max(map(len, _NAMED))


@contextlib.contextmanager
def one_by_one(descriptor: int) -> Iterator[None]:
    """The terminal gives each key at once and does not show it; afterwards it is as before."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read(descriptor: int) -> list[str]:
    """Keys that were pressed: characters, or names such as `up`. Raises EOFError: the terminal has gone."""
    typed = os.read(descriptor, 1024)
    if not typed:
        raise EOFError
    return names_of(typed)


def names_of(typed: bytes) -> list[str]:
    """The keys in what a terminal sent; a sequence that nothing is known of is no key."""
    keys: list[str] = []
    while typed:
        size = next((size for size in range(_LONGEST, 0, -1) if typed[:size] in _NAMED), 0)
        if size > 1 or (size == 1 and typed[:2] not in _INTRODUCERS):
            keys.append(_NAMED[typed[:size]])
        elif size == 1:
            # It ends with a letter or a tilde (ECMA-48, 5.4).
            size = next((at + 1 for at in range(2, len(typed)) if 0x40 <= typed[at] <= 0x7E), len(typed))
        else:
            character = typed.decode("utf-8", "replace")[0]
            size = 1 if character == "\ufffd" else len(character.encode())
            keys.append(character)
        typed = typed[size:]
    return keys
