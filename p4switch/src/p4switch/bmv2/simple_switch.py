"""`simple_switch_grpc` and `simple_switch`: p4switch under bmv2's names and options."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from p4switch import __version__, cli, logs
from p4switch.bmv2.options import translate
from p4switch.errors import SwitchError


def main(argv: Sequence[str]) -> int:
    """Run `simple_switch_grpc`; the exit status is p4switch's."""
    return _run("simple_switch_grpc", argv, grpc=True)


def main_without_grpc(argv: Sequence[str]) -> int:
    """Run `simple_switch`: P4Runtime at the port that is Thrift's there."""
    return _run("simple_switch", argv, grpc=False)


def _run(name: str, argv: Sequence[str], *, grpc: bool) -> int:
    if {"-v", "--version"} & set(argv):
        print(f"p4switch {__version__}")
        return 0
    if {"-h", "--help"} & set(argv):
        print(f"{name} of p4switch takes bmv2's options and does as these options of p4switch:\n")
        return cli.main(["--help"])
    try:
        translation = translate(name, argv, grpc=grpc)
        if translation.log_file is not None:
            _log_into(f"{translation.log_file}.txt")
    except SwitchError as error:
        print(logs.printable_lines(str(error)), file=sys.stderr)
        return 1
    _take_name(name)
    for note in translation.notes:
        print(logs.printable(note), file=sys.stderr, flush=True)
    return cli.main(translation.arguments)


def _take_name(name: str) -> None:
    """The process is called so: runners end their switches by that name."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _log_into(path: str) -> None:
    """All that is written from here on goes to the file, as with bmv2."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SwitchError(f"cannot write {path}: {error.strerror}") from error
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())
    os.close(file)
