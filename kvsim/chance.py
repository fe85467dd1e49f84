"""Seeded pseudo-randomness of the simulator: the same seed gives the same run on every machine and Python version."""

import math

_MASK = (1 << 64) - 1
_FRACTION = 2.0**-53


class Chance:
    """SplitMix64 (Steele, Lea, Flood 2014). Every part of a simulation has one of its own, forked by name."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def fork(self, name: str) -> "Chance":
        """An independent stream for a part of the simulation."""
        state = self._state
        for byte in name.encode():
            state = (state * 0x100000001B3 ^ byte) & _MASK
        child = Chance(state)
        child.bits()
        return child

    def bits(self) -> int:
        """64 bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def fraction(self) -> float:
        """Uniform in [0, 1). `bits` written out: most of what a simulation draws are fractions."""
        self._state = state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) * _FRACTION

    def below(self, bound: int) -> int:
        """Uniform in [0, bound)."""
        return self.bits() % bound

    def exponential(self, mean: float) -> float:
        """Exponential with this mean."""
        return -mean * math.log(1.0 - self.fraction())
