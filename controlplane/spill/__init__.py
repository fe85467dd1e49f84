"""Plans that keep last copies alive. Pure."""

from controlplane.spill.plan import (
    DrainPlan,
    Endangered,
    Host,
    Move,
    Recovery,
    plan_drain,
    plan_recovery,
    plan_replications,
)

__all__ = ["DrainPlan", "Endangered", "Host", "Move", "Recovery", "plan_drain", "plan_recovery", "plan_replications"]
