"""How a chunk is being fetched, and what changes that: a table that is total."""

import enum
from collections.abc import Mapping

from kvproto.session.machine import Table


class Phase(enum.Enum):
    """How a chunk is being fetched."""

    __hash__ = object.__hash__  # an Enum hashes its name each time, in Python

    WAITING = "not begun: too many are joined already"
    LOADING = "the shell loads it from this node's disk"
    JOINING = "JOIN sent, no NOTICE yet"
    JOINED = "the switch keeps our interest"
    DIRECT = "no switch to rely on: reliable reads only"
    PROVING = "the digest is wrong: a holder is asked which segments are"
    STRICT = "bytes were bad: what is missing is read reliably from one holder, casts are ignored"
    VERIFYING = "all segments are here, the digest is being taken"
    HERE = "whole and right"
    GONE = "no holder is left"


class Cause(enum.Enum):
    """What changes a phase."""

    __hash__ = object.__hash__

    JOIN = "a JOIN was sent"
    ADMITTED = "a NOTICE says that the switch keeps our interest"
    REFUSED = "a NOTICE says that it does not, or that there is no switch"
    UNHEARD = "no NOTICE, or no segment, after several tries"
    ANSWERED = "a NOTICE answers late: there is a switch after all, and it keeps our interest"
    REBOOT = "the switch forgot everything"
    WHOLE = "no segment is missing"
    GOOD = "the digest is right"
    BAD = "the digest is wrong"
    JUDGED = "it is known which segments are wrong, or none of them is to be trusted"
    AGAIN = "the digest is wrong, and only the switch has it"
    EXHAUSTED = "no holder is left"
    FOUND = "the directory knows a holder again"
    LOAD = "it lies on this node's disk"
    LOADED = "the disk delivered"
    UNLOADED = "the disk did not deliver"
    PUT = "an engine of this node has put it"


_OPEN = {Cause.WHOLE: Phase.VERIFYING, Cause.EXHAUSTED: Phase.GONE}

_ROWS: Mapping[Phase, Mapping[Cause, Phase]] = {
    Phase.WAITING: {
        Cause.JOIN: Phase.JOINING,
        Cause.ADMITTED: Phase.WAITING,
        Cause.REFUSED: Phase.DIRECT,
        Cause.REBOOT: Phase.WAITING,
        Cause.EXHAUSTED: Phase.GONE,
        Cause.LOAD: Phase.LOADING,
    },
    Phase.LOADING: {
        Cause.LOADED: Phase.HERE,
        Cause.UNLOADED: Phase.WAITING,
    },
    Phase.JOINING: {
        Cause.JOIN: Phase.JOINING,
        Cause.ADMITTED: Phase.JOINED,
        Cause.REFUSED: Phase.DIRECT,
        Cause.UNHEARD: Phase.DIRECT,
        Cause.REBOOT: Phase.JOINING,
        **_OPEN,
    },
    Phase.JOINED: {
        Cause.JOIN: Phase.JOINED,
        Cause.ADMITTED: Phase.JOINED,
        Cause.REFUSED: Phase.DIRECT,
        Cause.UNHEARD: Phase.DIRECT,
        Cause.REBOOT: Phase.JOINING,
        **_OPEN,
    },
    Phase.DIRECT: {
        Cause.ADMITTED: Phase.DIRECT,
        Cause.ANSWERED: Phase.JOINED,
        Cause.REFUSED: Phase.DIRECT,
        Cause.UNHEARD: Phase.DIRECT,
        Cause.REBOOT: Phase.JOINING,
        **_OPEN,
    },
    Phase.STRICT: {
        Cause.ADMITTED: Phase.STRICT,
        Cause.REFUSED: Phase.STRICT,
        Cause.REBOOT: Phase.STRICT,
        **_OPEN,
    },
    Phase.VERIFYING: {
        Cause.ADMITTED: Phase.VERIFYING,
        Cause.REFUSED: Phase.VERIFYING,
        Cause.REBOOT: Phase.VERIFYING,
        Cause.GOOD: Phase.HERE,
        Cause.BAD: Phase.PROVING,
    },
    Phase.PROVING: {
        Cause.ADMITTED: Phase.PROVING,
        Cause.REFUSED: Phase.PROVING,
        Cause.REBOOT: Phase.PROVING,
        Cause.JUDGED: Phase.STRICT,
        Cause.AGAIN: Phase.WAITING,
        Cause.EXHAUSTED: Phase.GONE,
    },
    Phase.HERE: {
        Cause.ADMITTED: Phase.HERE,
        Cause.REFUSED: Phase.HERE,
        Cause.REBOOT: Phase.HERE,
    },
    Phase.GONE: {
        Cause.ADMITTED: Phase.GONE,
        Cause.REFUSED: Phase.GONE,
        Cause.REBOOT: Phase.GONE,
        Cause.EXHAUSTED: Phase.GONE,
        Cause.FOUND: Phase.WAITING,
    },
}

PHASES: Table[Phase, Cause] = Table(
    "chunk",
    # Whatever is under way: an engine's bytes are as good.
    {phase: row if phase is Phase.HERE else {**row, Cause.PUT: Phase.HERE} for phase, row in _ROWS.items()},
)
