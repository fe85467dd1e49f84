"""Errors with which a daemon tells its operator that it cannot run."""


class ConfigError(Exception):
    """The configuration cannot be used: one line that names file, key and remedy."""


class CannotRunError(Exception):
    """The daemon cannot run here as configured, or cannot go on: one line that names the remedy."""
