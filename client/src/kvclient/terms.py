"""What an engine says with a fetch besides keys and deadline. Standard library only."""

from __future__ import annotations

from typing import TypedDict


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
