"""The protocol core: wire formats, sessions and state machines without any I/O. `kvdaemon` is its sibling."""

__version__ = "0.2.0"
"""Of this distribution; pyproject.toml takes it from here. All distributions have the same."""
