"""Types that P4Runtime clients see as strings (`@p4runtime_translation("uri", string)`) and the switch as numbers.

A string of decimal digits stands for that number, so that ports can be named by their numbers. Any other string is
given the highest number that is free, and keeps it as long as the program stays loaded.
"""

from __future__ import annotations

from p4switch.server.status import exhausted, invalid, out_of_range

STRING_BYTES_MAX = 256


class SdnStrings:
    """The strings of one translated type of `width` bits. Not thread-safe."""

    def __init__(self, name: str, width: int) -> None:
        self._name = name
        self._width = width
        self._numbers: dict[bytes, int] = {}
        self._strings: dict[int, bytes] = {}
        self._next = (1 << width) - 1

    def decode(self, value: bytes, what: str) -> int:
        """The number of a string, a new one if need be. Raises StatusError."""
        if not value:
            raise out_of_range(f"{what}: empty string")
        if len(value) > STRING_BYTES_MAX:
            raise out_of_range(f"{what}: a string of {len(value)} bytes, at most {STRING_BYTES_MAX}")
        known = self._numbers.get(value)
        if known is not None:
            return known
        if value.isdigit() and (value == b"0" or not value.startswith(b"0")):
            number = int(value)
            if number.bit_length() > self._width:
                raise out_of_range(f"{what}: {number} does not fit the {self._width} bits of {self._name}")
            if number in self._strings:
                raise invalid(f"{what}: {number} already stands for {self._strings[number]!r}")
            return number
        while self._next in self._strings:
            self._next -= 1
        if self._next < 0:
            raise exhausted(f"{what}: {self._name} has no number left for another string")
        self._numbers[value] = self._next
        self._strings[self._next] = value
        return self._next

    def encode(self, number: int) -> bytes:
        """The string of a number; one that no client has named is its decimal digits."""
        return self._strings.get(number) or str(number).encode()
