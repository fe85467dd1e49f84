"""Seeds of what chance decides: a few in each run, more of them in `make test-long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def also_long(*usual: T, long: Iterable[T]) -> list[T | ParameterSet]:
    """Values of a parameter: the usual ones, and those that only the long suite takes."""
    return [*usual, *(pytest.param(one, marks=pytest.mark.long) for one in long)]
