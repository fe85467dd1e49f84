"""Multicast without a switch of ours: which of its groups a cast goes to. Pure.

Members stand in aligned blocks of a power of two, and each block is a group: block 1 has all members, blocks 2b and
2b + 1 the halves of block b, block MEMBERS_MAX + i member i alone. A member is in the groups of all blocks around it,
from when it starts until it ends: nothing has to be joined for a cast, and a set never seen before has its groups.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from kvproto.ids import Member
from kvproto.limits import MEMBERS_MAX

BLOCKS_OF_MEMBER: Final = MEMBERS_MAX.bit_length()
"""How many groups a member is in: 7 of 64."""

EVERYBODY: Final = 1
"""The block of all members."""
TRIAL: Final = 2 * MEMBERS_MAX
"""The group behind those of all blocks: what a network does with groups is tried with it."""

assert MEMBERS_MAX & (MEMBERS_MAX - 1) == 0, "blocks halve down to one member"


def blocks_of(member: Member) -> Iterator[int]:
    """The blocks around a member, the smallest first."""
    block = MEMBERS_MAX + member
    while block:
        yield block
        block >>= 1


@lru_cache(maxsize=1024)
def cover(wanted: int, present: int, weight: float) -> tuple[int, ...]:
    """The cheapest blocks that together have all members of `wanted`, a bitmap; none twice.

    A block costs its cast's bytes on the holder's own uplink, and `weight` times those at the port of each member that
    is `present` (a bitmap) and did not ask. 0: one cast that floods; large: exactly those who want it.
    """
    return _cheapest(1, wanted, present, weight, MEMBERS_MAX)[1]


def unasked(wanted: int, present: int, blocks: tuple[int, ...]) -> int:
    """How many ports get a cast to these blocks without asking."""
    return sum((members_in(block) & present & ~wanted).bit_count() for block in blocks)


def members_in(block: int) -> int:
    """All that may be in a block, as a bitmap."""
    size = MEMBERS_MAX >> (block.bit_length() - 1)
    return ((1 << size) - 1) << (block * size - MEMBERS_MAX)


def _cheapest(block: int, wanted: int, present: int, weight: float, size: int) -> tuple[float, tuple[int, ...]]:
    """What it costs to reach the wanted members of one block, and by which blocks. Of equals, fewer blocks."""
    here = members_in(block)
    if not wanted & here:
        return 0.0, ()
    whole = 1 + weight * (here & present & ~wanted).bit_count()
    if size == 1 or whole == 1:
        return whole, (block,)
    low, low_blocks = _cheapest(2 * block, wanted, present, weight, size // 2)
    high, high_blocks = _cheapest(2 * block + 1, wanted, present, weight, size // 2)
    return (whole, (block,)) if whole <= low + high else (low + high, low_blocks + high_blocks)
