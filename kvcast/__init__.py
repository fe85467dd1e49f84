"""The umbrella command line `kvcast`. Owns nothing but the way to the parts; imported by nobody."""

__version__ = "0.2.0"
"""Taken by pyproject.toml; the three distributions of the tree have the same one."""
