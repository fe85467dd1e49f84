"""What a chunk is worth: one function for switch slots, host DRAM, disk and spill; used by controller, agents, planner.

Pure: no I/O, clock, randomness or threads. Explained in docs/explanation/value.md.
"""

from kvpolicy.value.cache import CacheValues, EvictionCosts
from kvpolicy.value.costs import Measurement, SourceCosts, Tier
from kvpolicy.value.history import FetchTally, PastFetches, Touch
from kvpolicy.value.parameters import ValueParameters, value
from kvpolicy.value.policies import POLICIES, Policy, Rule

__all__ = [
    "POLICIES",
    "CacheValues",
    "EvictionCosts",
    "FetchTally",
    "Measurement",
    "PastFetches",
    "Policy",
    "Rule",
    "SourceCosts",
    "Tier",
    "Touch",
    "ValueParameters",
    "value",
]
