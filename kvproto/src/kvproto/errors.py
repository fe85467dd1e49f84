"""Errors of the protocol core: malformed bytes, illegal messages of a peer, our own misuse."""

import enum


class WireReason(enum.Enum):
    """Why a datagram was dropped; one counter each."""

    TRUNCATED = "shorter than its header or than it says"
    OVERSIZED = "longer than its format allows"
    VERSION = "unknown version"
    OP = "unknown operation"
    OPCODE = "not a UD SEND-only to the multicast queue pair"
    QKEY = "wrong queue key"
    SEGMENT = "segment outside its chunk"
    LENGTH = "payload length is not the segment size, or more than it"
    RESERVED = "a field that must be zero is not"
    ICRC = "wrong invariant CRC"


class WireError(ValueError):
    """Malformed bytes from the network: dropped and counted by `reason`, never more."""

    def __init__(self, reason: WireReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class LocalProtocolError(RuntimeError):
    """The shell used a session against its contract: a bug on our side."""


class StateError(LocalProtocolError):
    """A state machine met an event that its table does not allow in its state: a bug on our side."""
