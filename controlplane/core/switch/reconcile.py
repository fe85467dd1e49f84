"""The difference between what a switch has and what it should have, in an order that never leaves a dangling reference.

Pure. A group is added before whatever names it (an entry or, on a Tofino, a member's index itself) and removed after
it. Members are added before anything is cast to them, and after
their addresses, which they have to speak from. A chunk's entry in kv_cache is removed first of all, because it
is always safe to stop serving.
"""

from __future__ import annotations

from collections.abc import Collection

from controlplane.core.switch.entries import Identity, SwitchContents
from controlplane.core.switch.target import Operation, Update

_ORDER = (
    "digest",
    "clone_session",
    "group",
    "replicate_default",
    "source",
    "address",
    "station",
    "request_limit",
    "segment_limit",
    "port_member",
    "egress_member",
    "dmac",
    "replicate",
    "salt",
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
