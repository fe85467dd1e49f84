"""One reader and one peer on several rails whose rates change, simulated in steps of a millisecond: the product's
choice of rails (`kvproto.session.rails`) on networks that are a number of bytes per second and a state."""

import enum
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kvproto.limits import MS
from kvproto.session.rails import Rails

STEP_NS: Final = MS
_TRY_NS: Final = 300 * MS
"""How long a connection by a silent rail is awaited."""


class RailState(enum.Enum):
    """What a network does."""

    WORKS = "works"
    SILENT = "silent"
    """What is sent is lost."""
    REFUSES = "refuses"
    """Connections break, as where the peer's end is gone."""


@dataclass(frozen=True, slots=True)
class RailChange:
    """At some time a rail becomes another."""

    at_ns: int
    rail: int
    rate_bytes_s: float
    state: RailState = RailState.WORKS


@dataclass(slots=True, eq=False)
class SimulatedRail:
    """A network between both."""

    rate_bytes_s: float
    state: RailState = RailState.WORKS
    since_ns: int = 0
    """When it came into this state."""
    left_bytes: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """By read, in the order of asking."""
    brought_bytes: int = 0


class RailWorld:
    """Reads a number of bytes in stripes, a few at a time on each rail."""

    def __init__(self, rates_bytes_s: Sequence[float], stripe_bytes: int, changes: Sequence[RailChange] = ()) -> None:
        self.rails = [SimulatedRail(rate) for rate in rates_bytes_s]
        self.choice = Rails(len(self.rails))
        self.now_ns = 0
        self._stripe_bytes = stripe_bytes
        self._changes = sorted(changes, key=lambda one: -one.at_ns)
        self._sizes: dict[int, int] = {}
        self._tries: list[tuple[int, int]] = []
        self._look_ns = 0
        self._last = 0

    def read(self, size_bytes: int, until_ns: int) -> int:
        """Bring so many bytes; how many came before `until_ns`."""
        wanted, came = size_bytes, 0
        while came < size_bytes and self.now_ns < until_ns:
            while wanted and len(self._sizes) < 2 * len(self.rails):
                stripe = min(wanted, self._stripe_bytes)
                wanted -= stripe
                self._last += 1
                self._sizes[self._last] = stripe
                self._put(self._last, self.choice.begin(self._last, stripe, self.now_ns, wanted + stripe))
            self.now_ns += STEP_NS
            came += self._step()
        return came

    def wait(self, for_ns: int) -> None:
        """Nothing is wanted for a while."""
        until_ns = self.now_ns + for_ns
        while self.now_ns < until_ns:
            self.now_ns += STEP_NS
            self._step()

    @property
    def on_rails(self) -> list[set[int]]:
        """Reads of each rail."""
        return [set(rail.left_bytes) for rail in self.rails]

    def _put(self, number: int, rail: int) -> None:
        self.rails[rail].left_bytes[number] = self._sizes[number]

    def _move(self, number: int, rail: int) -> None:
        for one in self.rails:
            one.left_bytes.pop(number, None)
        self._put(number, rail)

    def _step(self) -> int:
        while self._changes and self._changes[-1].at_ns <= self.now_ns:
            change = self._changes.pop()
            rail = self.rails[change.rail]
            rail.rate_bytes_s, rail.state, rail.since_ns = change.rate_bytes_s, change.state, self.now_ns
        came = sum(map(self._carry, self.rails))
        for tried_ns, index in [one for one in self._tries if one[0] <= self.now_ns]:
            self._tries.remove((tried_ns, index))
            self.choice.tried(index, self.rails[index].state is RailState.WORKS, self.now_ns)
        due_ns = self.choice.next_ns(self._look_ns)
        if due_ns is not None and due_ns <= self.now_ns:
            self._look_ns = self.now_ns
            for number, index in self.choice.look(self.now_ns):
                self._move(number, index)
            for index in self.choice.to_try(self.now_ns):
                wait_ns = _TRY_NS if self.rails[index].state is RailState.SILENT else STEP_NS
                self._tries.append((self.now_ns + wait_ns, index))
        return came

    def _carry(self, rail: SimulatedRail) -> int:
        if rail.state is RailState.REFUSES:
            for number in list(rail.left_bytes):
                del rail.left_bytes[number]
                to = self.choice.fail(number, self.now_ns)
                if to is None:  # as a reader does: it asks again
                    to = self.choice.begin(number, self._sizes[number], self.now_ns)
                self._put(number, to)
            return 0
        room, came = rail.rate_bytes_s * STEP_NS / 1e9 if rail.state is RailState.WORKS else 0.0, 0
        while rail.left_bytes and room > 0:
            number, left = next(iter(rail.left_bytes.items()))
            if left > room:
                rail.left_bytes[number] = left - room
                break
            room -= left
            del rail.left_bytes[number]
            came += self._sizes.pop(number)
            self.choice.end(number, self.now_ns)
        rail.brought_bytes += came
        return came
