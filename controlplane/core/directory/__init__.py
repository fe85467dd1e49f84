"""The prefix tree of chunks and their holders. Pure."""

from controlplane.core.directory.records import AddOutcome, Chunk, ChunkFacts
from controlplane.core.directory.telling import tell
from controlplane.core.directory.tree import AmbiguousKeyError, Directory, UnknownKeyError

__all__ = ["AddOutcome", "AmbiguousKeyError", "Chunk", "ChunkFacts", "Directory", "UnknownKeyError", "tell"]
