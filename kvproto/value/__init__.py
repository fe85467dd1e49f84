"""What a chunk is worth: one function for switch slots, host DRAM, disk and spill; used by controller, agents, planner.

Pure: no I/O, clock, randomness or threads. Explained in docs/value.md.
"""

from kvproto.value.candidates import CANDIDATES, Candidate, Rule
from kvproto.value.costs import Measurement, Source, SourceCosts
from kvproto.value.formula import value
from kvproto.value.lessons import Touch
from kvproto.value.parameters import ValueParameters
from kvproto.value.pool import Loss, PoolValues

__all__ = [
    "CANDIDATES",
    "Candidate",
    "Loss",
    "Measurement",
    "PoolValues",
    "Rule",
    "Source",
    "SourceCosts",
    "Touch",
    "ValueParameters",
    "value",
]
