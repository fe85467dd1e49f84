"""What happens in a soak, and when: made by a seed. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.soak.attacker import KINDS
from tests.soak.load import EPOCH_S

HONEST: Final = 4
"""Hosts 0 to 3 put and fetch."""
MEMBER: Final = 4
"""Its agent is a member of the fabric; its host lies."""
STRANGER: Final = 5
"""Its agent has been stopped: it is no member any more, and lies."""
HOSTS: Final = 6
CALM_S: Final = (2.0, 5.0)
"""Between the end of one trouble and the next."""
TURNS_SHARE: Final = 0.4
"""Of a soak: without attackers and with them, by turns, when nothing else is wrong."""
TURN_S: Final = EPOCH_S
"""What is fetched changes with what was put: each turn has one of each moment between two puts."""
_BETWEEN_TURNS_S: Final = 2.0
"""For attackers to end and begin."""


@dataclass(frozen=True, slots=True)
class Turn:
    """TURN_S of fetches, with what the member and the stranger send meanwhile."""

    sent: tuple[str, str]
    harmless: bool
    """As many frames, as large, that mean nothing: what attackers cost a small machine just by sending is no attack."""


def turns(seed: int, duration_s: float) -> list[Turn]:
    """The last part of a soak of this length: pairs, without and with attacks."""
    random = Random(f"{seed}/turns")
    made: list[Turn] = []
    for _ in range(max(1, int(duration_s * TURNS_SHARE / (TURN_S + _BETWEEN_TURNS_S) / 2))):
        one, other = random.sample(sorted(KINDS), 2)
        # Who is first changes, so that what drifts with time is nobody's doing.
        order = (True, False) if len(made) % 4 == 0 else (False, True)
        made += [Turn((one, other), harmless) for harmless in order]
    return made


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that goes wrong."""

    kind: str
    host: int
    lasts_s: float
    calm_s: float
    """After it."""
    detail: str = ""
    """Of an attack: what is sent; of a port's faults: which; of a restart: how the agent ends."""

    @property
    def name(self) -> str:
        """As the report lists it."""
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


DISTURBANCES: Final = (
    "agent killed",
    "agent frozen",
    "controller killed",
    "controller frozen",
    "switch killed",
    "program reloaded",
    "link cut",
    "prefix evicted",
)
PORTS: Final = ("loss", "duplicate", "reorder", "corrupt")
RESTARTS: Final = {"killed": signal.SIGKILL, "stopped": signal.SIGTERM}
"""How an agent ends that comes back at once with the pool that it had."""
RESTART_EVERY: Final = 3
"""Every third trouble is a restart: each meets leases at another moment."""


def troubles(seed: int, duration_s: float) -> list[Trouble]:
    """What goes wrong in this time, in order. Each kind but restarts comes once before any comes again, so that a short
    soak has the same mixture as a long one."""
    random = Random(seed)
    made: list[Trouble] = []
    bag: list[tuple[str, str]] = []
    spent_s = 0.0
    while spent_s < duration_s:
        if not bag:
            bag = [(kind, "") for kind in DISTURBANCES]
            bag += [("port hurt", fault) for fault in PORTS]
            bag += [(f"{who} sends", kind) for kind in KINDS for who in ("member", "stranger")]
            random.shuffle(bag)
        restarts = len(made) % RESTART_EVERY == 1
        kind, detail = ("agent restarted", random.choice(sorted(RESTARTS))) if restarts else bag.pop()
        host = {"member sends": MEMBER, "stranger sends": STRANGER}.get(kind, random.randrange(HONEST))
        lasts_s, calm_s = 0.0 if restarts else random.uniform(1.0, 4.0), random.uniform(*CALM_S)
        made.append(Trouble(kind, host, lasts_s, calm_s, detail))
        spent_s += lasts_s + calm_s
    return made
