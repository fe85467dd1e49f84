"""The life of a chunk in the switch, as a table.

    absent -> placing -> filling -> publishing -> serving -> (recovering ->) clearing -> absent
                 ^                                   |
                 +--------- a segment was lost ------+

*placing*, *publishing* and *clearing* wait for the switch to take an entry; *filling* waits for the holder;
*recovering* waits for an agent that saves the last copy while the switch still serves it. To an operator placing,
filling and publishing are all "filling", and clearing is "recovering": nothing is served from slots in those states
but what the table of the switch itself still says.
"""

from __future__ import annotations

import enum


class ChunkState(enum.Enum):
    """Where a chunk is on its way through the switch."""

    ABSENT = "absent"
    PLACING = "placing"
    FILLING = "filling"
    PUBLISHING = "publishing"
    SERVING = "serving"
    RECOVERING = "recovering"
    CLEARING = "clearing"

    @property
    def shown(self) -> str:
        """One of the four words of the operator's view."""
        if self in (ChunkState.PLACING, ChunkState.PUBLISHING):
            return ChunkState.FILLING.value
        if self is ChunkState.CLEARING:
            return ChunkState.RECOVERING.value
        return str(self.value)


class ChunkEvent(enum.Enum):
    """What can happen to a chunk on its way."""

    ADMIT = "admit"
    WRITTEN = "written"
    """The switch has what this state waits for."""
    REFUSED = "refused"
    """The switch did not take an update of this chunk's entry."""
    FILLED = "filled"
    FILL_FAILED = "fill failed"
    EVICT = "evict"
    """Some host holds it too."""
    EVICT_LAST = "evict last"
    """Only the switch holds it, and it is worth saving."""
    RECOVERED = "recovered"
    RECOVERY_FAILED = "recovery failed"
    SEGMENT_LOST = "segment lost"
    """The switch lost part of it, and a holder can fill that in again."""
    LOST = "lost"
    """The switch restarted, or its entry vanished."""


_S, _E = ChunkState, ChunkEvent
_IN_SWITCH = tuple(state for state in ChunkState if state is not ChunkState.ABSENT)

TRANSITIONS: dict[tuple[ChunkState, ChunkEvent], ChunkState] = {
    **{(state, _E.LOST): _S.ABSENT for state in _IN_SWITCH},
    **{(state, event): _S.CLEARING for state in _IN_SWITCH for event in (_E.REFUSED, _E.EVICT, _E.EVICT_LAST)},
    (_S.SERVING, _E.EVICT_LAST): _S.RECOVERING,
    (_S.RECOVERING, _E.EVICT_LAST): _S.RECOVERING,
    (_S.ABSENT, _E.ADMIT): _S.PLACING,
    (_S.PLACING, _E.WRITTEN): _S.FILLING,
    (_S.PLACING, _E.FILL_FAILED): _S.CLEARING,
    (_S.FILLING, _E.FILLED): _S.PUBLISHING,
    (_S.FILLING, _E.FILL_FAILED): _S.CLEARING,
    (_S.PUBLISHING, _E.WRITTEN): _S.SERVING,
    (_S.SERVING, _E.SEGMENT_LOST): _S.PLACING,
    (_S.RECOVERING, _E.RECOVERED): _S.CLEARING,
    (_S.RECOVERING, _E.RECOVERY_FAILED): _S.CLEARING,
    (_S.CLEARING, _E.WRITTEN): _S.ABSENT,
}
"""Every pair that can happen. Any other pair is a bug of ours."""


class ImpossibleTransitionError(Exception):
    """An event that cannot happen in this state."""


def step(state: ChunkState, event: ChunkEvent) -> ChunkState:
    """The state after the event. Raises ImpossibleTransitionError."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ImpossibleTransitionError(f"{event.value} cannot happen to a chunk that is {state.value}") from None
