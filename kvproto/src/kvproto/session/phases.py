"""How a chunk is being fetched, and what changes that: a table that is total. A chunk that is here is forgotten."""

import enum

from kvproto.session.machine import Table


class Phase(enum.Enum):
    """How a chunk is being fetched."""

    __hash__ = object.__hash__  # an Enum hashes its name each time, in Python

    WAITING = "not begun: too many are joined already"
    JOINING = "JOIN sent, no NOTICE yet"
    JOINED = "the switch keeps our interest"
    DIRECT = "no switch to rely on: reliable reads only"
    PROVING = "the digest is wrong: a holder is asked which segments are"
    STRICT = "bytes were bad: what is missing is read reliably from one holder, casts are ignored"
    VERIFYING = "all segments are here, the digest is being taken"
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
    BAD = "the digest is wrong"
    JUDGED = "it is known which segments are wrong, or none of them is to be trusted"
    AGAIN = "the digest is wrong, and only the switch has it"
    EXHAUSTED = "no holder is left"
    FOUND = "the directory knows a holder again"


_OPEN = {Cause.WHOLE: Phase.VERIFYING, Cause.EXHAUSTED: Phase.GONE}

PHASES: Table[Phase, Cause] = Table(
    "chunk",
    {
        Phase.WAITING: {
            Cause.JOIN: Phase.JOINING,
            Cause.ADMITTED: Phase.WAITING,
            Cause.REFUSED: Phase.DIRECT,
            Cause.REBOOT: Phase.WAITING,
            Cause.EXHAUSTED: Phase.GONE,
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
        Phase.STRICT: {Cause.ADMITTED: Phase.STRICT, Cause.REFUSED: Phase.STRICT, Cause.REBOOT: Phase.STRICT, **_OPEN},
        Phase.VERIFYING: {
            Cause.ADMITTED: Phase.VERIFYING,
            Cause.REFUSED: Phase.VERIFYING,
            Cause.REBOOT: Phase.VERIFYING,
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
        Phase.GONE: {
            Cause.ADMITTED: Phase.GONE,
            Cause.REFUSED: Phase.GONE,
            Cause.REBOOT: Phase.GONE,
            Cause.EXHAUSTED: Phase.GONE,
            Cause.FOUND: Phase.WAITING,
        },
    },
)
