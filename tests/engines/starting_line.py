"""Has several engines begin to bring what they asked for at the same moment, however busy the machine is.

The test listens at a socket. An engine's backend, in its own process, waits there before it brings chunks, when the
test listens at all.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PATIENCE_S = 120.0


@contextmanager
def holding(path: Path, count: int) -> Iterator[None]:
    """In the block engines are asked; at its end, `count` of them are let go together when all have come."""
    with socket.socket(socket.AF_UNIX) as line, ExitStack() as stack:
        line.bind(str(path))
        line.listen(count)
        line.settimeout(PATIENCE_S)
        try:
            yield
            waiting = [stack.enter_context(line.accept()[0]) for _ in range(count)]
        finally:
            path.unlink()
        for each in waiting:
            each.sendall(b"!")


def wait_at(path: Path) -> None:
    """Wait until the test lets go; at once where it holds nobody."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        connection.recv(1)
