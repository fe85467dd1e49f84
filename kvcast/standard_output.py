"""Standard output as it is on users' machines: full disks, readers that went away, encodings without our characters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

from kvdaemon.streams import FULL, drop_output, take_any_text

EXIT_NO_OUTPUT: Final = 1


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command whose words go to standard output, and see that they got there; returns its exit status.

    One line on standard error says that they did not. argparse ends by SystemExit after --help; that passes.
    """
    take_any_text()
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output (head, less) went away; nothing is left to say.
        drop_output()
        return 0
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        drop_output()
        print(f"{name}: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return EXIT_NO_OUTPUT


def bad_word(words: Sequence[str]) -> str | None:
    """What is wrong with a command line, or None: bytes that are no text come as halves of characters, which nothing
    that we send or print can hold."""
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            return f"{word.encode(errors='replace').decode()!r} is not UTF-8"
    return None
