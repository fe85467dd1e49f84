"""Stands in for torch, which UCM's store interface names in its types alone: addresses are numbers there."""


class Tensor:
    """Named, never made."""
