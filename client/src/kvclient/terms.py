"""What an engine says with a request besides keys, and what no request may say. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Final, TypedDict

SECONDS_MAX: Final = 1e6
"""Of any duration, eleven days: no system call takes more than twice as many milliseconds."""
COUNT_MAX: Final = 0xFFFF_FFFF
"""Of requests, nodes and positions."""
SIZE_BYTES_MAX: Final = 1 << 63


class FetchTerms(TypedDict, total=False):
    """Keyword arguments of every fetch in prefix order; leave out what you do not know."""

    recompute_s: float | None
    """Seconds to compute all of the chunks; the agent answers GATE at once when it cannot beat that. None, the default:
    fetch whatever it takes."""
    queue_s: float
    """Seconds until the engine would begin to compute, because others come first. Default 0."""
    attention_share: float
    """Share of `recompute_s` that grows with the position, 0 (the default) to 1: late chunks are worth more."""
    behind: int
    """Requests that wait for the engine behind this one; with some the agent rather waits for chunks that somebody
    computes at this moment. Default 0."""
    expected_s: float
    """Chunks that nobody has or computes yet will be announced within this time (a prefill elsewhere that is about to
    begin): wait for them. Default 0."""


_KNOWN = FetchTerms.__annotations__.keys()


def check_terms(terms: FetchTerms) -> None:
    """Raises TypeError for a keyword that is none of FetchTerms."""
    unknown = terms.keys() - _KNOWN
    if unknown:
        raise TypeError(f"a fetch takes no {min(unknown)!r}: there are {', '.join(_KNOWN)}")


def check_fetch(keys: Sequence[bytes], deadline_s: float, terms: FetchTerms) -> None:
    """Raises ValueError, which names the argument, or TypeError for what no agent would take."""
    if len(set(keys)) != len(keys):
        raise ValueError("keys names a chunk twice")
    check_seconds(deadline_s=deadline_s)
    if not terms:
        return
    check_terms(terms)
    check_seconds(
        recompute_s=terms.get("recompute_s") or 0.0,
        queue_s=terms.get("queue_s", 0.0),
        expected_s=terms.get("expected_s", 0.0),
    )
    share, behind = terms.get("attention_share", 0.0), terms.get("behind", 0)
    if not 0 <= share <= 1:
        raise ValueError(f"attention_share is {share}, not a share from 0 to 1")
    check_whole(behind, "behind", 0, COUNT_MAX)


def check_seconds(**durations_s: float) -> None:
    """Raises ValueError for one that is below 0, or no number, or beyond what a request has room for."""
    for name, duration_s in durations_s.items():
        if not 0 <= duration_s <= SECONDS_MAX:
            raise ValueError(f"{name} is {duration_s}, not from 0 to {SECONDS_MAX:.0f} seconds")


def check_size(size_bytes: int, name: str = "size_bytes") -> None:
    """Raises ValueError for a chunk of no bytes, or of more than a number of the protocol says."""
    check_whole(size_bytes, name, 1, SIZE_BYTES_MAX)


def check_whole(number: int, name: str, low: int, high: int) -> None:
    """Raises TypeError for what is no whole number, ValueError for one that is not from `low` to `high`."""
    try:
        whole = index(number)
    except TypeError:
        raise TypeError(f"{name} is {number!r}, not a whole number") from None
    if not low <= whole <= high:
        raise ValueError(f"{name} is {whole}, not from {low} to {high}")
