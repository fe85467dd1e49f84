"""What an operator may say of the disk tier."""

from __future__ import annotations

from dataclasses import dataclass

from kvpolicy.tiers.form_costs import FormChoice


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """The section `disk` of the agent's configuration."""

    path: str
    """A folder for this agent alone."""
    size_bytes: int
    """Of the slab; taken at once."""
    direct: bool = True
    """Past the page cache, where the file system can: the pool is the cache."""
    read_threads: int = 4
    sync_s: float = 5.0
    """How often the store syncs its writes, so that they survive a power failure; 0: never."""
    write_bytes_per_s: int = 512 << 20
    """Demotions write no faster than this: bounds the wear of the device."""
    promote: bool = True
    """Bring the most valuable chunks back into free DRAM when there is nothing else to do."""
    flush_s: float = 5.0
    """How long an orderly stop may take to write unsaved chunks to disk."""
    form: FormChoice = FormChoice.AUTO
