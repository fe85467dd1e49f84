"""The facts of a chunk that engines and nodes share: its key, its parts, how its numbers lie, where it came from."""

__version__ = "0.2.0"
"""Of kvcast-client; its pyproject.toml takes it from here."""
