"""Plans that keep last copies alive. Pure."""

from controlplane.spill.plan import DrainPlan, Host, Move, Recovery, plan_drain, plan_recovery

__all__ = ["DrainPlan", "Host", "Move", "Recovery", "plan_drain", "plan_recovery"]
