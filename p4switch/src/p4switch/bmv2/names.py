"""A folder of commands with the names that bmv2's tools have, for runners that look for them in PATH."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from p4switch import cli
from p4switch.bmv2 import console, p4c, simple_switch
from p4switch.errors import SwitchError

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "p4switch": cli.main,
    "simple_switch_grpc": simple_switch.main,
    "simple_switch": simple_switch.main_without_grpc,
    "p4c-bm2-ss": p4c.main,
    "p4c": p4c.main_of_driver,
    "simple_switch_CLI": console.main,
}
_SCRIPT_BYTES_MAX: Final = 4096
START = (
    "import sys; {root!r} in sys.path or sys.path.insert(0, {root!r});"
    " from p4switch.bmv2.names import main; sys.exit(main(sys.argv[1:]))"
)


def main(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names with the others."""
    return COMMANDS[arguments[0]](arguments[1:])


def tool_of_bmv2(name: str) -> str | None:
    """Where PATH finds a tool of bmv2's or p4c's; None: nowhere, or it is p4switch behind that name."""
    path = shutil.which(name)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return None if __name__.encode() in file.read(_SCRIPT_BYTES_MAX) else path
    except OSError:
        return path


def script(name: str, python: str, root: str) -> str:
    """The command `name`: a shell script that becomes `python` with p4switch from the folder `root`.

    It is isolated (-I): whoever runs it may have another protobuf in PYTHONPATH, as Mininet's runners do.
    """
    words = [python, "-I", "-c", START.format(root=root), name]
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'


def write(argv: Sequence[str]) -> int:
    """`p4switch bin FOLDER`. Raises SwitchError."""
    parser = argparse.ArgumentParser(prog="p4switch bin", description="Write commands with the names of bmv2's tools.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to; put it first in PATH")
    folder = parser.parse_args(argv).folder
    root = str(Path(__file__).resolve().parents[2])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            file = folder / name
            file.write_text(script(name, sys.executable, root))
            file.chmod(0o755)
    except OSError as error:
        raise SwitchError(f"cannot write commands into {folder}: {error.strerror}") from error
    print(f"wrote {', '.join(COMMANDS)} into {folder}")
    return 0
