"""P4 control Salt: the salt of the interest table's hash, as the default action of a table without a key."""

from __future__ import annotations

from collections.abc import Sequence

import finsy

from controlplane.core.switch.entries import Entry, SaltEntry

TABLE = "salt"
_ACTION = "set_salt"
_UNSALTED = "unsalted"
_WORD_BYTES = 4


def queries() -> Sequence[finsy.P4TableEntry]:
    """What to read for the salt."""
    return [finsy.P4TableEntry(TABLE, is_default_action=True)]


def encode(entry: SaltEntry) -> finsy.P4TableEntry:
    """The entry as a P4Runtime entity."""
    starts = range(0, len(entry.salt), _WORD_BYTES)
    words = {
        f"w{at}": int.from_bytes(entry.salt[start : start + _WORD_BYTES], "big") for at, start in enumerate(starts)
    }
    return finsy.P4TableEntry(TABLE, action=finsy.P4TableAction(_ACTION, **words), is_default_action=True)


def encode_absent() -> finsy.P4TableEntry:
    """The default action of a switch that has just started."""
    return finsy.P4TableEntry(TABLE, action=finsy.P4TableAction(_UNSALTED), is_default_action=True)


def decode(found: finsy.P4TableEntry) -> Entry | None:
    """Turn what was read into an entry; None: there is no salt."""
    action = found.action
    if not isinstance(action, finsy.P4TableAction) or action.name != _ACTION:
        return None
    words = [int(action.args[name]) for name in sorted(action.args)]
    return SaltEntry(b"".join(word.to_bytes(_WORD_BYTES, "big") for word in words))
