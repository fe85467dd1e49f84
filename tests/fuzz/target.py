"""What a fuzz target is: something of the product that takes bytes of others, and what must hold whatever they are."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Protocol, TypeAlias

Case: TypeAlias = list[bytes]
"""One input: steps in order. What a step means is the target's business; none is empty of meaning on purpose, all are
mutated as bytes."""


class Target(Protocol):
    """Made once for many inputs, as a daemon lives through many; made anew after each input that broke it."""

    name: ClassVar[str]
    checks: ClassVar[str]
    """One line: what holds after each input."""
    limit_s: ClassVar[float]
    """Of the processor, for one input: what takes longer hangs (`runner.time_limit`)."""
    words: ClassVar[tuple[bytes, ...]]
    """Bytes that mean something here: mutations put them in."""

    def fresh(self, random: Random) -> Case:
        """A new input: valid, or valid but for what `random` makes of it."""
        ...

    def run(self, case: Case) -> None:
        """Raises whatever is not documented to happen; AssertionError where a check fails."""
        ...

    def close(self) -> None:
        """Let go of sockets, processes and folders."""
        ...


class FoundError(AssertionError):
    """A check failed: the text says which."""


def check(holds: object, what: str) -> None:
    """Raises FoundError with this text unless it holds."""
    if not holds:
        raise FoundError(what)
