"""What goes wrong in the testbed, in one line each."""

from __future__ import annotations


class TestbedError(Exception):
    """The testbed cannot do what was asked; the message is one line that names the thing and the remedy."""

    __test__ = False
