"""Errors that end in front of a person: one line, naming the thing and the remedy."""


class SwitchError(Exception):
    """A configuration or environment that cannot work: missing interface, port in use, no compiler...

    The message is one line, fit to be printed as it is.
    """


class InternalError(AssertionError):
    """A bug of p4switch itself: a case that its own code was to handle. Names the place where it met it."""
