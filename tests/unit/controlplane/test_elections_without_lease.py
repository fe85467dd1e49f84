"""Elections that need no lease: by the switch's arbitration, and of a controller that is the only one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from controlplane.core.events import Deposed, Elected, ElectionEvent, LeadershipDoubted
from controlplane.core.switch.target import Down, Standby, SwitchEvent, SwitchFacts, Up
from controlplane.election.choice import NoElection, SwitchElection
from controlplane.election.contract import Election

PRIMARY = Up(SwitchFacts(64, 4096))


def told_by(election: Election, *events: SwitchEvent) -> Sequence[ElectionEvent]:
    """What it says from its beginning on, while the session with the switch says this."""
    told: list[ElectionEvent] = []

    async def steps() -> None:
        run = asyncio.create_task(election.run(told.append))
        await asyncio.sleep(0)
        for event in events:
            assert isinstance(election, SwitchElection)
            election.switch_event(event)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    asyncio.run(steps())
    return told


def test_the_primary_leads_and_each_leadership_has_a_higher_epoch() -> None:
    told = told_by(SwitchElection(), PRIMARY, Standby(), PRIMARY)
    epochs = [one.epoch for one in told if isinstance(one, Elected)]
    assert epochs == sorted(set(epochs))
    assert [type(one) for one in told] == [Elected, Elected, Deposed, Elected]


def test_a_controller_whose_switch_is_away_goes_on_and_doubts() -> None:
    told = told_by(SwitchElection(), PRIMARY, Down("connection lost"))
    assert told[-1] == LeadershipDoubted()
    assert not any(isinstance(one, Deposed) for one in told)


def test_the_only_controller_leads_whatever_its_clock_says() -> None:
    assert told_by(NoElection()) == [Elected(0, None, "")]
