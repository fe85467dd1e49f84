"""Deep trees need deep recursion."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

RECURSION_LIMIT = 50_000
"""Python frames the compiler may use: a sum of a thousand terms is a tree a thousand deep."""


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise Python's recursion limit while the tree is walked."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
