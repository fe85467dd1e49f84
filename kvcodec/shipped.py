"""Shared objects in C that come built with a package: where one lies, and what to do where it is not.

In a checkout `make native` builds them (`make setup` and the tests do so, too); no product does.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FOLDER_VARIABLE: Final = "KVCAST_NATIVE_DIR"
"""Environment variable: a folder with objects of another kind of build, for sanitizers and debuggers."""


class NotShippedError(Exception):
    """A shared object is missing, or for another platform; one line that names the remedy."""


def load(path: Path, signatures: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> ctypes.CDLL:
    """The shared object at `path`; each function named with (result, arguments). Raises NotShippedError."""
    instead = os.environ.get(FOLDER_VARIABLE)
    if instead:
        path = Path(instead, path.name)
    if not path.exists():
        raise NotShippedError(
            f"{path} is missing: install kvcast's wheel for {platform.machine()} anew (in a checkout: make native)"
        )
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except OSError as error:
        raise NotShippedError(
            f"{path} does not load here ({error}): install kvcast's wheel for {platform.machine()}, where the file"
            " system is not mounted noexec (in a checkout: make native)"
        ) from error
    except AttributeError as error:
        raise NotShippedError(f"{path} is of another version ({error}): install kvcast's wheel anew") from error
    return library
