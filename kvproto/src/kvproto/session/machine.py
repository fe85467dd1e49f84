"""State machines as tables: what is not in the table cannot happen, and says so when it does."""

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

from kvproto.errors import StateError

StateT = TypeVar("StateT", bound=enum.Enum)
CauseT = TypeVar("CauseT", bound=enum.Enum)


class Table(Generic[StateT, CauseT]):
    """Transitions of one kind of machine: (state, cause) -> next state."""

    __slots__ = ("_name", "_rows")

    def __init__(self, name: str, rows: Mapping[StateT, Mapping[CauseT, StateT]]) -> None:
        self._name = name
        self._rows = {(state, cause): after for state, row in rows.items() for cause, after in row.items()}

    def next(self, state: StateT, cause: CauseT) -> StateT:
        """The state after `cause`. Raises StateError when the table does not allow it."""
        try:
            return self._rows[state, cause]
        except KeyError:
            raise StateError(f"{self._name}: {cause.name} cannot happen in {state.name}") from None
