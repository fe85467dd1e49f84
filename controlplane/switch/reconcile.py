"""From what a switch has to what it shall have: the difference, in an order that never points at nothing.

Pure. Groups come before what names them, be it an entry or, on a Tofino, a member's very index, and go after it;
members come before what is cast to them; a chunk's entry in kv_cache goes first of all, because to stop serving is
always safe.
"""

from __future__ import annotations

from collections.abc import Collection

from controlplane.switch.entries import Identity, SwitchContents
from controlplane.switch.target import Operation, Update

_ORDER = (
    "digest",
    "clone_session",
    "group",
    "replicate_default",
    "port_member",
    "egress_member",
    "dmac",
    "replicate",
    "fabric",
    "kv_cache",
)
"""Kinds of entries in the order in which they are written; deleted in reverse."""
_RANK = {kind: rank for rank, kind in enumerate(_ORDER)}


def difference(
    actual: SwitchContents, desired: SwitchContents, only: Collection[Identity] | None = None
) -> list[Update]:
    """Updates that turn `actual` into `desired`: deletions, then insertions and modifications.

    `only`: look at these identities alone, because nothing else changed on either side.
    """
    identities = (actual.keys() | desired.keys()) if only is None else only
    gone, coming = [], []
    for identity in sorted(identities, key=lambda one: (_rank(one), repr(one[1]))):
        wanted, found = desired.get(identity), actual.get(identity)
        if wanted is None:
            if found is not None:
                gone.append(Update(Operation.DELETE, found))
        elif found is None:
            coming.append(Update(Operation.INSERT, wanted))
        elif found != wanted:
            coming.append(Update(Operation.MODIFY, wanted))
    return gone[::-1] + coming


def apply(actual: SwitchContents, update: Update) -> None:
    """What a successful update does to the contents of a switch."""
    if update.operation is Operation.DELETE:
        actual.pop(update.entry.identity, None)
    else:
        actual[update.entry.identity] = update.entry


def _rank(identity: Identity) -> int:
    return _RANK.get(identity[0], len(_ORDER))
