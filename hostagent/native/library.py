"""The data path's shared object, and what its headers (src/*.h) declare."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvcodec.declarations import Declarations
from kvcodec.shipped import load

_FOLDER: Final = Path(__file__).parent
_HEADERS: Final = ("facts.h", "datapath.h", "asker.h", "gets.h", "pulls.h", "reads.h")
DECLARED: Final = Declarations.of(_FOLDER / "src" / name for name in _HEADERS)


def structure(name: str) -> type[ctypes.Structure]:
    """`struct dp_NAME`."""
    return DECLARED.structures[f"dp_{name}"]


def counters(enumeration: str, prefix: str) -> tuple[str, ...]:
    """Names of the counters that an enumeration lists, in order; its last member is how many there are."""
    return tuple(name.removeprefix(prefix).lower() for name in DECLARED.enumerations[enumeration][:-1])


@functools.cache
def datapath() -> ctypes.CDLL:
    """The data path. Raises NotShippedError."""
    library = load(_FOLDER / "datapath.so", DECLARED.functions)
    declared = list(map(ctypes.sizeof, DECLARED.structures.values()))
    assert list((ctypes.c_uint32 * len(declared)).in_dll(library, "dp_structure_bytes")) == declared
    return library


class NativeThread:
    """A part of the data path that works by itself (`dp_KIND_new`, `_start` and `_free`), and wakes the event loop by
    an eventfd when there is something to drain."""

    def __init__(
        self,
        library: ctypes.CDLL,
        kind: str,
        loop: asyncio.AbstractEventLoop,
        arguments: Callable[[int], tuple[Any, ...]],
        drain: Callable[[], None],
        *,
        starts: bool = True,
    ) -> None:
        """`arguments(wake)`: of `dp_KIND_new`, with the eventfd; not `starts`: it works only when it is told to. Raises
        MemoryError, or OSError when the system has no more threads or descriptors."""
        with contextlib.ExitStack() as undo:
            wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, wake)
            self.pointer: int | None = getattr(library, f"dp_{kind}_new")(*arguments(wake))
            """What its functions take; None: it is closed."""
            if not self.pointer:
                raise MemoryError(f"no memory for the data path's {kind}")
            undo.callback(getattr(library, f"dp_{kind}_free"), self.pointer)
            if starts and (error := getattr(library, f"dp_{kind}_start")(self.pointer)):
                raise OSError(error, os.strerror(error))
            loop.add_reader(wake, drain)
            undo.callback(loop.remove_reader, wake)
            self._closing = undo.pop_all()

    def close(self) -> None:
        """End it. Idempotent."""
        self._closing.close()
        self.pointer = None
