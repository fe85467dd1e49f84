"""P4 control ChunkCache: which chunks the switch is filling or serving, and from which slots."""

from __future__ import annotations

from collections.abc import Sequence

import finsy

from controlplane.core.ids import KEY_BYTES, ChunkKey, Slot, SwitchPort
from controlplane.core.switch.entries import Entry, FillingEntry, ForeignEntry, ServingEntry

KINDS = frozenset({"kv_cache"})
TABLE = "kv_cache"
_FILLING = "filling"
_SERVING = "serving"


def queries() -> Sequence[finsy.P4TableEntry]:
    """What to read for all entries of this control."""
    return [finsy.P4TableEntry(TABLE)]


def encode(entry: FillingEntry | ServingEntry) -> finsy.P4TableEntry:
    """The entry as a P4Runtime entity."""
    if isinstance(entry, FillingEntry):
        action = finsy.P4TableAction(_FILLING, base_slot=entry.base_slot, segments=entry.segments, port=entry.port)
    else:
        action = finsy.P4TableAction(_SERVING, base_slot=entry.base_slot, segments=entry.segments)
    match = finsy.P4TableMatch(key=int.from_bytes(entry.key, "big"))
    return finsy.P4TableEntry(TABLE, match=match, action=action)


def decode(found: finsy.P4TableEntry) -> Entry | None:
    """Turn what was read into an entry."""
    key = ChunkKey(int(found["key"]).to_bytes(KEY_BYTES, "big"))
    action = found.action
    if isinstance(action, finsy.P4TableAction):
        args = action.args
        if action.name == _FILLING:
            return FillingEntry(key, Slot(args["base_slot"]), args["segments"], SwitchPort(args["port"]))
        if action.name == _SERVING:
            return ServingEntry(key, Slot(args["base_slot"]), args["segments"])
    return ForeignEntry(TABLE, key)
