"""The demo's workloads: one definition for the testbed that runs them and for the planner that predicts them."""
