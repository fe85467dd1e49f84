"""How a daemon says to its operator that it cannot."""


class ConfigError(Exception):
    """The configuration cannot be used: one line that names file, key and remedy."""


class CannotRunError(Exception):
    """The daemon cannot run here as configured, or cannot go on: one line that names the remedy."""
