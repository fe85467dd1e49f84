"""The protocol core: wire formats, sessions and state machines without any I/O. `kvproto.daemon` is beside it."""

__version__ = "0.1.0"
"""Of everything in this tree; pyproject.toml takes it from here."""
