"""Inputs made from others: steps and bytes dropped, doubled, swapped, replaced. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.fuzz.target import Case

STEPS_MAX = 60
STEP_BYTES_MAX = 1 << 16
_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, (1 << 64) - 1)
"""Numbers beside which mistakes live."""


def mutated(random: Random, case: Case, other: Case, words: Sequence[bytes]) -> Case:
    """`case` after a few changes, some of them with parts of `other` or with `words`."""
    changed = list(case)
    for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
        if not changed or random.random() < 0.2:
            changed = _with_other_steps(random, changed, other)
        else:
            at = random.randrange(len(changed))
            changed[at] = mutated_bytes(random, changed[at], words)[:STEP_BYTES_MAX]
    return changed[:STEPS_MAX]


def _with_other_steps(random: Random, steps: Case, other: Case) -> Case:
    at = random.randrange(len(steps) + 1)
    if not steps or (other and random.random() < 0.4):
        return [*steps[:at], *other[random.randrange(len(other) + 1) :], *steps[at:]]
    match random.randrange(4):
        case 0:
            return [*steps[:at], *steps[at + 1 :]]
        case 1:
            return [*steps, steps[at - 1]]
        case 2:
            return [*steps[at:], *steps[:at]]
        case _:
            return steps[: max(1, at)]


def mutated_bytes(random: Random, content: bytes, words: Sequence[bytes] = ()) -> bytes:
    """One change of a byte string."""
    at = random.randrange(len(content) + 1)
    until = min(len(content), at + random.choice((1, 1, 2, 4, 8, 16, 64)))
    match random.randrange(9):
        case 0 if content:
            place = min(at, len(content) - 1)
            flipped = content[place] ^ (1 << random.randrange(8))
            return content[:place] + bytes((flipped,)) + content[place + 1 :]
        case 1:
            return content[:at] + content[until:]
        case 2:
            return content[:until] + content[at:until] * random.choice((1, 1, 2, 30)) + content[until:]
        case 3:
            size = random.choice((1, 2, 4, 8))
            number = (random.choice(_EDGES) + random.randint(-1, 1)) % (1 << 8 * size)
            order = random.choice(("big", "little"))
            return content[:at] + number.to_bytes(size, order) + content[at + size :]
        case 4 if words:
            word = random.choice(words)
            return content[:at] + word + content[at + random.choice((0, len(word))) :]
        case 5:
            return content[:at]
        case 6 if content:
            start = random.randrange(len(content))
            return content[:at] + content[start : start + until - at] + content[until:]
        case 7:
            return content[:at] + random.randbytes(until - at) + content[until:]
        case _:
            return content[:at] + random.randbytes(random.choice((1, 1, 2, 8))) + content[at:]
