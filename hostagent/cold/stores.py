"""The seam between the agent and a cold store: objects by name, each put and read whole. Adapters implement it.

Everything is asynchronous; an operation that is cancelled is over at once. An adapter knows nothing of chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ColdStoreError(Exception):
    """The store does not answer, or refuses. The text is one line, without credentials."""


class ColdStore(Protocol):
    """A place for objects. All methods raise ColdStoreError."""

    async def put(self, name: str, content: bytes) -> None:
        """Store an object whole, in place of one that has the name."""

    async def get_into(self, name: str, buffers: Sequence[memoryview]) -> bool | None:
        """Read the beginning of an object into buffers, one after the other, and no more than that.

        None: there is no such object. False: it is shorter than the buffers. They may be written to until the method
        returns or is cancelled, never after that.
        """

    async def exists(self, name: str) -> bool:
        """Whether there is such an object."""

    async def delete(self, name: str) -> None:
        """Delete an object; a missing one is no error."""

    async def close(self) -> None:
        """Close connections and processes. The last call, after all operations have ended; raises nothing."""
