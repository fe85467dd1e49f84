"""Identifiers of the control plane. Plain values at run time, distinct types for the checker."""

from __future__ import annotations

from typing import NewType

ChunkKey = NewType("ChunkKey", bytes)
"""16 bytes; names the content of a chunk and, by chaining, its whole prefix."""

NodeIndex = NewType("NodeIndex", int)
"""The controller's index of an agent."""

Member = NewType("Member", int)
"""A node's bit at its switch, 0-based."""

SwitchPort = NewType("SwitchPort", int)
"""Port number of the switch as P4Runtime knows it."""

Slot = NewType("Slot", int)
"""Index of the room for one segment in the switch."""

TaskId = NewType("TaskId", int)
"""Names a task given to an agent; never used twice by one controller."""

GroupId = NewType("GroupId", int)
"""Multicast group of the switch's packet replication engine."""

KEY_BYTES = 16
"""Length of a ChunkKey."""
