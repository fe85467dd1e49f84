"""Whether a node's disk can be used."""

from __future__ import annotations

import enum


class DiskState(enum.Enum):
    OFF = "off"
    ON = "on"
    READING = "reading"
    """A write failed: what is stored is served, nothing is added."""
