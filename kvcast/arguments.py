"""Command lines: a parser that declares its arguments when it is asked to parse, and the kinds of arguments."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from kvcast import __version__

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

T = TypeVar("T")
Declare = Callable[[argparse.ArgumentParser], None]


class Command(Protocol):
    """What a module in `kvcast.commands` or `kvlab.commands` offers, and each class of its module `placement`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """Calls `declare` for its arguments only when it has to parse: a command costs the imports of that one command.

    A mistake is one line, said by the parser that the words were for; exit status 2.
    """

    def __init__(self, *args: Any, declare: Declare | None = None, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._declare = declare
        self.forwards_unknown = False

    def declare(self) -> None:
        """Declare the arguments, once."""
        declare, self._declare = self._declare, None
        if declare is not None:
            declare(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.declare()
        found, unknown = super().parse_known_args(args, namespace)
        if self.forwards_unknown:
            found.forwarded = [word for word in unknown if word != "--"]
            return found, []
        if unknown:
            self.error(f"unknown arguments: {' '.join(unknown)}")
        return found, unknown

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """argparse would pass over a full disk in silence."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def add_version(parser: argparse.ArgumentParser, summary: str = "show program's version number and exit") -> None:
    """Declare --version, for `kvcast` and all of its commands: they have one version."""
    parser.add_argument("--version", action="version", version=f"kvcast {__version__}", help=summary)


def forward_unknown(parser: argparse.ArgumentParser) -> None:
    """Collect the words that this parser does not know in `forwarded`, for another program's command line."""
    parser.allow_abbrev = False
    if isinstance(parser, Parser):
        parser.forwards_unknown = True


def add_choice(
    parser: argparse.ArgumentParser, dest: str, summaries: Mapping[str, str], declare: Callable[[str], Declare]
) -> None:
    """Let the first word choose among `summaries`; `declare(word)` gives what declares the arguments behind it."""
    choice = parser.add_subparsers(dest=dest, required=True, metavar=dest.upper(), parser_class=Parser)
    for name, summary in summaries.items():

        def declare_it(chosen: argparse.ArgumentParser, name: str = name) -> None:
            declare(name)(chosen)

        made = choice.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", declare=declare_it
        )
        add_version(made, argparse.SUPPRESS)


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """An argument kind from a function whose ValueError says what is wrong."""

    def kind(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return kind


def whole(least: int = 0) -> Callable[[str], int]:
    """A whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if number < least:
            raise ValueError(f"{text} is below {least}")
        if number >= 1 << 31:
            raise ValueError(f"{text} is above 2147483647")
        return number

    return checked(parse)


def _number(is_good: Callable[[float], bool], what: str) -> Callable[[str], float]:
    """A number that is good; of others the message says that they are not `what`."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{text!r} is not a number")
        if not is_good(number):
            raise ValueError(f"{text} is not {what}")
        return number

    return checked(parse)


def between(least: float, most: float) -> Callable[[str], float]:
    """A number from `least` to `most`."""
    return _number(lambda number: least <= number <= most, f"a number from {least:g} to {most:g}")


above_zero = _number(lambda number: number > 0, "above zero")
probability = _number(lambda number: 0 <= number < 1, "a probability from 0 to below 1")


@checked
def output_file(text: str) -> Path:
    """A file that can be written; looked at before hours of work, not after."""
    path = Path(text)
    if path.is_dir():
        raise ValueError(f"{text} is a folder: name a file")
    _demand_writable(path if path.exists() else path.parent, text)
    return path


@checked
def output_folder(text: str) -> Path:
    """A folder that is there or can be made."""
    path = Path(text)
    _demand_writable(path, text)
    return path


def _demand_writable(path: Path, text: str) -> None:
    while not path.exists():
        path = path.parent
    if path.is_file() and str(path) != text:
        raise ValueError(f"{text} cannot be written: {path} is not a folder")
    if not os.access(path, os.W_OK):
        raise ValueError(f"{text} cannot be written: {path} is read-only for this user")
