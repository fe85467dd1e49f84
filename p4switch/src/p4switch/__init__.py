"""A P4_16 switch that installs with pip: compiler, native runtime and P4Runtime server for v1model and TNA programs."""

__version__ = "0.2.0"
"""Taken by pyproject.toml; the three distributions of the tree have the same one."""
