"""What a command says when the user asks for what cannot be."""

from __future__ import annotations


class UsageError(Exception):
    """The user asked for something that cannot be; the message is one line and names the remedy."""
