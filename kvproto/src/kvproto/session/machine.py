"""State machines as tables: what is not in the table cannot happen, and says so when it does."""

import enum
from collections.abc import Mapping
from typing import NoReturn, TypeVar

from kvproto.errors import StateError

StateT = TypeVar("StateT", bound=enum.Enum)
CauseT = TypeVar("CauseT", bound=enum.Enum)


class Table(dict[tuple[StateT, CauseT], StateT]):
    """Transitions of one kind of machine: `table[state, cause]` is the next state.

    Raises StateError when it has none: a dictionary, so that a transition costs no call.
    """

    def __init__(self, name: str, rows: Mapping[StateT, Mapping[CauseT, StateT]]) -> None:
        super().__init__({(state, cause): after for state, row in rows.items() for cause, after in row.items()})
        self._name = name

    def __missing__(self, pair: tuple[StateT, CauseT]) -> NoReturn:
        state, cause = pair
        raise StateError(f"{self._name}: {cause.name} cannot happen in {state.name}")
