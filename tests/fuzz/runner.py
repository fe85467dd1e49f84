"""Runs one target in this process: inputs, their time limit, what they reach, what they break."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.crash import Crash, HungError, place_of, what
from tests.fuzz.mutation import mutated
from tests.fuzz.reached import Reached
from tests.fuzz.target import Case, Target

WAITS = 12
LOOKS_EVERY = 8
"""Each so manieth input is looked at for new lines."""
KEPT_MAX = 2000
CRASHES_MAX = 8
"""A target that breaks in more ways is broken enough to be mended first."""
SHRINK_S = 10.0


@dataclass(slots=True)
class Figures:
    """What a run of one target came to."""

    target: str
    checks: str
    inputs: int = 0
    took_s: float = 0.0
    lines: int = 0
    """Lines of the product reached."""
    kept: int = 0
    """Inputs that reached new ones."""
    crashes: list[Crash] = field(default_factory=list)

    @property
    def inputs_per_s(self) -> float:
        return self.inputs / self.took_s if self.took_s else 0.0


@contextmanager
def time_limit(cpu_s: float) -> Iterator[None]:
    """Raises HungError inside when it takes more time of the processor, or WAITS times as long on the clock: a machine
    that others keep busy is no hang. In the main thread."""

    def ring(_signal: int, _frame: object) -> None:
        raise HungError(f"an input took more than {cpu_s} s, or waited for {WAITS * cpu_s} s")

    before = {number: signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, WAITS * cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def broken_by(target: Target, case: Case) -> BaseException | None:
    """What an input does to a target; None: nothing that it may not do."""
    try:
        with time_limit(target.limit_s):
            target.run(case)
    except (Exception, HungError) as error:  # noqa: BLE001 - to find whatever it is
        return error
    return None


def run(
    make: Callable[[], Target],
    seed: int,
    *,
    seconds: float | None = None,
    inputs: int | None = None,
    watch: Callable[[int, Case], None] = lambda _number, _case: None,
) -> Figures:
    """Fuzz one target until the time is over or so many inputs are through. `watch` sees each input before it is run.

    With the same seed the inputs are the same ones in the same order, however long the run.
    """
    target = make()
    figures = Figures(target.name, target.checks)
    reached, kept, known = Reached(), list[Case](), set[tuple[str, str]]()
    began_s = time.monotonic()
    try:
        while (inputs is None or figures.inputs < inputs) and len(figures.crashes) < CRASHES_MAX:
            if seconds is not None and time.monotonic() - began_s >= seconds:
                break
            random = Random(f"{seed}/{target.name}/{figures.inputs}")
            case = _next(random, target, kept)
            watch(figures.inputs, case)
            if figures.inputs % LOOKS_EVERY:
                error = broken_by(target, case)
            else:
                before = len(reached)
                with reached:
                    error = broken_by(target, case)
                if len(reached) > before and error is None and len(kept) < KEPT_MAX:
                    kept.append(case)
            figures.inputs += 1
            if error is not None:
                target.close()
                if place_of(error) not in known:
                    known.add(place_of(error))
                    shrunk, error = shrink(make, case, error)
                    figures.crashes.append(Crash(target.name, seed, figures.inputs - 1, what(error), shrunk))
                target = make()
    finally:
        target.close()
    figures.took_s, figures.lines, figures.kept = time.monotonic() - began_s, len(reached), len(kept)
    return figures


def _next(random: Random, target: Target, kept: list[Case]) -> Case:
    if not kept or random.random() < 0.5:
        case = target.fresh(random)
        return case if random.random() < 0.5 else mutated(random, case, target.fresh(random), target.words)
    return mutated(random, random.choice(kept), random.choice(kept), target.words)


def shrink(make: Callable[[], Target], case: Case, error: BaseException) -> tuple[Case, BaseException]:
    """The smallest input found in SHRINK_S that breaks a fresh target in the same place; what that raised.

    Where a fresh target does not break (it took what came before), the input stays as it is.
    """
    wanted, until_s = place_of(error), time.monotonic() + SHRINK_S
    smaller = True
    while smaller and time.monotonic() < until_s:
        smaller = False
        for one in _smaller(case):
            if time.monotonic() > until_s:
                break
            target = make()
            found = broken_by(target, one)
            target.close()
            if found is not None and place_of(found) == wanted:
                case, error, smaller = one, found, True
                break
    return case, error


def _smaller(case: Case) -> Iterator[Case]:
    """Without one step, or without a part of one step."""
    for at in range(len(case)):
        yield [*case[:at], *case[at + 1 :]]
    for at, step in enumerate(case):
        size = len(step) // 2
        while size:
            for start in range(0, len(step), size):
                yield [*case[:at], step[:start] + step[start + size :], *case[at + 1 :]]
            size //= 2
