"""What an operator may say of the disk tier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """The section `disk` of the agent's configuration."""

    path: str
    """A folder of this agent's own."""
    size_bytes: int
    """Of the slab; taken at once."""
    direct: bool = True
    """Past the page cache, where the file system can: the pool is the cache."""
    read_threads: int = 4
    sync_s: float = 5.0
    """How often writes are made to outlive a power failure; 0: never."""
    write_bytes_per_s: int = 512 << 20
    """Demotions write no faster than this: bounds the wear of the device."""
    promote: bool = True
    """Bring back into free DRAM what is worth most, when nothing else is to do."""
    flush_s: float = 5.0
    """How long an orderly stop may take to write what is not on disk yet."""
