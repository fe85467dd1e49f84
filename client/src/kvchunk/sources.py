"""How chunks come to a node."""

import enum
from typing import Final


class ChunkSource(enum.IntEnum):
    """How the bytes of a fetched chunk came (mostly). The numbers are those of the local API and of `rpc.Source`."""

    LOCAL = 1
    """Not at all: it was in this node's pool."""
    HOLDER = 2
    """By reliable reads from a holder."""
    CAST = 3
    """As casts of a holder."""
    SWITCH = 4
    """From the switch's memory."""
    DISK = 5
    """From this node's own disk."""
    COLD = 7
    """From the cold store. (6 is a miss, in `rpc.Source`.)"""

    @property
    def label(self) -> str:
        """Its name in metrics and figures."""
        return self.name.lower()

    def __str__(self) -> str:
        """Its name, for who prints it."""
        return self.name


HERE: Final[frozenset[int]] = frozenset({ChunkSource.LOCAL, ChunkSource.DISK})
"""The chunk crossed no network. (A number that came over a wire may be asked for, whether it is a source or not.)"""
PEERS: Final[frozenset[int]] = frozenset({ChunkSource.HOLDER, ChunkSource.CAST})
"""Another node sent it."""
NETWORK: Final[frozenset[int]] = frozenset(ChunkSource) - HERE - {ChunkSource.COLD}
"""It crossed the network of the nodes."""
