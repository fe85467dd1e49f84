"""The list of expelled nodes in a file: operators edit it, or `kvcast expel` does, and the controller follows it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from controlplane.core.read_access import ExpulsionError, checked
from kvdaemon.files import replace_file

_HEAD = "# Nodes that are put out of the cluster, one name a line. `kvcast expel` writes this file.\n"


class ExpelledFile:
    """One file, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: frozenset[str] = frozenset()
        """What it said when it was read last, or written."""
        self._seen: tuple[int, int, int] | None = None
        """Inode, size and time of what was read last."""

    def read(self) -> frozenset[str]:
        """What it says now. Raises ExpulsionError: it cannot be read, or says what cannot be."""
        self._seen = self._look()
        if self._seen is None:
            self.names = frozenset()
            return self.names
        try:
            self.names = names_in(self.path.read_text(encoding="utf-8"))
            return self.names
        except (OSError, UnicodeDecodeError) as error:
            raise ExpulsionError(f"cannot read {self.path}: {_reason(error)}") from error
        except ExpulsionError as error:
            raise ExpulsionError(f"{self.path}: {error}") from error

    def changed(self) -> bool:
        """Whether there is another file than the one that was read last."""
        return self._look() != self._seen

    def write(self, names: frozenset[str]) -> None:
        """Replace it as a whole. Raises ExpulsionError."""
        try:
            replace_file(self.path, file_of(names).encode(), 0o600)
        except OSError as error:
            raise ExpulsionError(f"cannot write {self.path}: {_reason(error)}") from error
        self.names = names
        self._seen = self._look()

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


def names_in(text: str) -> frozenset[str]:
    """The nodes that a file names: one a line, `#` begins a comment. Raises ExpulsionError."""
    return checked(name for line in text.splitlines() if (name := line.partition("#")[0].strip()))


def file_of(names: Iterable[str]) -> str:
    """What goes into the file."""
    return _HEAD + "".join(f"{name}\n" for name in sorted(names))


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is no UTF-8 text"
