"""Nodes that operators have put out: nobody takes their word, nothing is read by them or from them. Pure.

The list is the operator's: agents learn it with their tokens, and never have a say in it. It outlives the controller in
a file (`expelled` in controller.yaml), which the daemon keeps.
"""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.core.limits import NODE_NAME_BYTES_MAX
from kvproto.rpc.read_tokens import EXPELLED_MAX

_HEAD = "# Nodes that are put out of the cluster, one name a line. `kvcast expel` writes this file.\n"


class ExpulsionError(ValueError):
    """A list that cannot be; one line."""


def names_in(text: str) -> frozenset[str]:
    """The nodes that a file names: one a line, `#` begins a comment. Raises ExpulsionError."""
    return checked(name for line in text.splitlines() if (name := line.partition("#")[0].strip()))


def file_of(names: Iterable[str]) -> str:
    """What goes into the file."""
    return _HEAD + "".join(f"{name}\n" for name in sorted(names))


def checked(names: Iterable[str]) -> frozenset[str]:
    """The same, if nodes can have these names and there are not too many. Raises ExpulsionError."""
    found = frozenset(names)
    for name in found:
        if not name.isprintable() or " " in name or not 0 < len(name.encode()) <= NODE_NAME_BYTES_MAX:
            raise ExpulsionError(f"{name[:NODE_NAME_BYTES_MAX]!r} is no name of a node")
    if len(found) > EXPELLED_MAX:
        raise ExpulsionError(
            f"{len(found)} nodes are expelled, {EXPELLED_MAX} at most: change the authority instead, and give no"
            " certificate of the new one to those that are out"
        )
    return found
