"""What a change of the interest table's salt costs casts: an incast with many changes and one with none, by turns.

A change makes the entries of the salt before expire: readers join again, and what was cast in between is repaired. Run
it alone on a machine, as root: `.venv/bin/python tools/measure_salt.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode, Trust
from bmv2_testbed.cpu_group import isolated
from bmv2_testbed.spec import TestbedSpec

TURNS = 5
READERS = 4
NEVER_MS = 24 * 3600 * 1000
OFTEN_MS = 250
"""Some six changes in one fetch; shipped are ten minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaltedPlan(IncastPlan):
    """An incast whose controller changes the salt so often."""

    salt_interval_ms: int

    def testbed(self, mode: Mode) -> TestbedSpec:
        """See `IncastPlan`."""
        spec = IncastPlan.testbed(self, mode)
        switch = {"salt_interval_ms": self.salt_interval_ms, **spec.controller_settings.get("switch", {})}
        return replace(spec, controller_settings={**spec.controller_settings, "switch": switch})


def mean_over_ideal(salt_interval_ms: int, seed: int) -> float:
    """Of one run: the readers' mean time, S/B being 1."""
    plan = SaltedPlan(readers=READERS, trust=Trust.ON, salt_interval_ms=salt_interval_ms, seed=seed)
    figures, _ = IncastRun(plan, lambda _: None, lambda _: None).mode(Mode.CAST)
    return figures.mean_ratio


def main() -> None:
    """Measure and print."""
    pairs = []
    with isolated(0) as isolation:
        print(isolation)
        for seed in range(1, TURNS + 1):
            pairs.append((mean_over_ideal(NEVER_MS, seed), mean_over_ideal(OFTEN_MS, seed)))
            print(f"never {pairs[-1][0]:.3f}, every {OFTEN_MS} ms {pairs[-1][1]:.3f}")
    print(f"median of ratios: {median(often / never for never, often in pairs):.3f}")


if __name__ == "__main__":
    main()
