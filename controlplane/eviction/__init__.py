"""What goes first when room is needed. Pure."""

from controlplane.eviction.order import EvictionOrder, Resident

__all__ = ["EvictionOrder", "Resident"]
