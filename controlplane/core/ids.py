"""Identifiers of the control plane, besides those that it shares with the protocol. Distinct types for the checker.

Who set something, and when. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

from kvchunk.ids import KEY_BYTES, ROOT_KEY, ChunkKey
from kvproto.ids import Member

__all__ = [
    "KEY_BYTES",
    "ROOT_KEY",
    "ChunkKey",
    "GroupId",
    "JobId",
    "Member",
    "NodeIndex",
    "Slot",
    "SwitchPort",
    "TaskId",
]

NodeIndex = NewType("NodeIndex", int)
"""The controller's index of an agent."""

SwitchPort = NewType("SwitchPort", int)
"""Port number of the switch as P4Runtime knows it."""

Slot = NewType("Slot", int)
"""Index of the room for one segment in the switch."""

TaskId = NewType("TaskId", int)
"""Names a task given to an agent; never used twice by one controller."""

GroupId = NewType("GroupId", int)
"""Multicast group of the switch's packet replication engine."""

JobId = NewType("JobId", int)
"""An operator's request that takes a while: a warm, a drain."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Who set something, and when."""

    by: str = ""
    """The name in a certificate and the host, or the host alone; empty: it is not known."""
    at_ms: int = 0
    """Since 1970."""


NOBODY: Final = Mark()
