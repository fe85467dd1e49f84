"""What kvcast has in C, compiled for sanitizers, and what a process needs to run it."""

from __future__ import annotations

import os
import subprocess
from typing import Final

from kvcodec.shipped import FOLDER_VARIABLE
from tools import native_build

KINDS: Final = {
    "address": ("-fsanitize=address,undefined -fno-sanitize-recover=all -g", ("libasan.so", "libubsan.so")),
    # The sanitizer does not follow fences (leases.c has one). It may miss a race there; it reports none that is not.
    "thread": ("-fsanitize=thread -g -Wno-tsan", ("libtsan.so",)),
}
"""Flags of the compiler, and libraries that the interpreter has to begin with."""


def environment(kind: str) -> dict[str, str] | None:
    """Variables for a process whose C, p4switch's included, complains to a sanitizer of this kind.

    None: the compiler has none.
    """
    flags, names = KINDS[kind]
    libraries = [_library(name) for name in names]
    if None in libraries:
        return None
    folder = native_build.ROOT / "build" / "sanitized" / kind
    native_build.refresh((*flags.split(), "-Werror"), folder)
    return {
        FOLDER_VARIABLE: str(folder),
        "P4SWITCH_CFLAGS": flags,
        "LD_PRELOAD": " ".join(one for one in libraries if one is not None),
    }


def _library(name: str) -> str | None:
    compiler = os.environ.get("CC", "cc")
    try:
        found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    path = found.stdout.strip()
    return path if os.path.isabs(path) else None
