"""What goes first when room is needed. Pure."""

from controlplane.eviction.order import Resident, leaves_first, worths

__all__ = ["Resident", "leaves_first", "worths"]
