"""Canonical error codes and the exceptions that carry them up to the gRPC shell."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """google.rpc.Code."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class StatusError(Exception):
    """The refusal of a request, update or stream message, as reported to the client."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def invalid(message: str) -> StatusError:
    """The request is malformed whatever the state of the switch."""
    return StatusError(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> StatusError:
    """The thing named does not exist now."""
    return StatusError(Code.NOT_FOUND, message)


def already_exists(message: str) -> StatusError:
    """An insert of something that is there already."""
    return StatusError(Code.ALREADY_EXISTS, message)


def exhausted(message: str) -> StatusError:
    """No room: table, profile, group, stream."""
    return StatusError(Code.RESOURCE_EXHAUSTED, message)


def out_of_range(message: str) -> StatusError:
    """A value or an index beyond what its type or array holds."""
    return StatusError(Code.OUT_OF_RANGE, message)


def denied(message: str) -> StatusError:
    """Not for this client, or not for anybody (constant tables, scopes)."""
    return StatusError(Code.PERMISSION_DENIED, message)


def precondition(message: str) -> StatusError:
    """Not in this state of the switch."""
    return StatusError(Code.FAILED_PRECONDITION, message)


def unimplemented(message: str) -> StatusError:
    """Part of P4Runtime that this server does not have."""
    return StatusError(Code.UNIMPLEMENTED, message)
