"""The table of a chunk's phases: every pair is either in it or known to be impossible, and then it raises."""

import pytest

from kvproto.errors import StateError
from kvproto.session.phases import PHASES, Cause, Phase

ASKING = {Phase.JOINING, Phase.JOINED, Phase.DIRECT, Phase.STRICT}
IMPOSSIBLE = (
    {(phase, Cause.BAD) for phase in Phase if phase is not Phase.VERIFYING}
    | {(phase, Cause.WHOLE) for phase in Phase if phase not in ASKING}
    | {(phase, Cause.FOUND) for phase in Phase if phase is not Phase.GONE}
    | {(phase, cause) for phase in Phase if phase is not Phase.PROVING for cause in (Cause.JUDGED, Cause.AGAIN)}
    | {(Phase.PROVING, cause) for cause in (Cause.JOIN, Cause.UNHEARD)}
    | {(Phase.VERIFYING, Cause.EXHAUSTED)}
    | {(phase, Cause.JOIN) for phase in (Phase.DIRECT, Phase.STRICT, Phase.VERIFYING, Phase.GONE)}
    | {(phase, Cause.UNHEARD) for phase in (Phase.WAITING, Phase.STRICT, Phase.VERIFYING, Phase.GONE)}
    | {(phase, Cause.ANSWERED) for phase in Phase if phase is not Phase.DIRECT}
)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("cause", Cause)
def test_every_pair_is_decided(phase: Phase, cause: Cause) -> None:
    if (phase, cause) in IMPOSSIBLE:
        with pytest.raises(StateError, match=f"{cause.name} cannot happen in {phase.name}"):
            PHASES[phase, cause]
    else:
        assert isinstance(PHASES[phase, cause], Phase)


def test_every_phase_can_be_reached_and_left() -> None:
    reached, fresh = {Phase.WAITING}, [Phase.WAITING]
    while fresh:
        phase = fresh.pop()
        for cause in Cause:
            if (phase, cause) not in IMPOSSIBLE and (after := PHASES[phase, cause]) not in reached:
                reached.add(after)
                fresh.append(after)
    assert reached == set(Phase)
