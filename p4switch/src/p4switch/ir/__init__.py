"""The typed intermediate representation between the P4 front end, the C back end and the control plane."""

from p4switch.ir.program import Program

__all__ = ["Program"]
