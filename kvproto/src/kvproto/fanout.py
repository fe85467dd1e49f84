"""How a cast reaches its readers: what a fabric has in its middle."""

from __future__ import annotations

import enum


class Fanout(enum.Enum):
    """By the name in configurations; the value is the code on the control channel."""

    SWITCH = 1
    """A kvcast switch keeps interest and replicates. Without one, everything is read reliably."""
    MULTICAST = 2
    """Any switch with IP multicast: holders keep interest, and cast to groups of blocks (`kvproto.blocks`)."""
    RELAY = 3
    """Nothing but unicast: readers pass on to each other what they have proven (`kvproto.session.relay`)."""

    @property
    def keeps(self) -> bool:
        """Holders keep the interest in their chunks, and members are numbered by the controller."""
        return self is Fanout.MULTICAST
