"""What goes first when room is needed. Pure."""

from controlplane.eviction.order import Resident, losses, worths

__all__ = ["Resident", "losses", "worths"]
