"""Whether a node's disk can be used."""

from __future__ import annotations

import enum


class DiskState(enum.Enum):
    """Of the disk tier."""

    OFF = "off"
    ON = "on"
    READING = "reading"
    """A write failed: stored chunks are still served, none are added."""
