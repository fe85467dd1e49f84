"""The entries of a table as the control plane wrote them, and as its queries read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.schema import Schema, TableSpec
from p4switch.server.status import invalid
from p4switch.server.target_pipeline import EntryHandle, MatchKey, Pipeline
from p4switch.server.translate import decode_key, encode_action, encode_colors, encode_counter, encode_key
from p4switch.values import ActionCall, EntryAction, GroupRef, MemberRef

EntryKey: TypeAlias = tuple[MatchKey, int]
"""Match key and priority: what names an entry within its table."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the control plane wrote. `handle` None: the default entry."""

    handle: EntryHandle | None
    target: EntryAction
    one_shot: bytes = b""
    """The serialized ActionProfileActionSet, when the entry was programmed by one."""
    metadata: bytes = b""
    controller_metadata: int = 0
    idle_timeout_ns: int = 0
    meter: p4r.MeterConfig | None = None
    is_const: bool = False


@dataclass(slots=True)
class TableState:
    """One table: its specification, and what was written to it."""

    spec: TableSpec
    default: Entry
    initial_default: ActionCall
    entries: dict[EntryKey, Entry] = field(default_factory=dict)
    timed: dict[EntryHandle, EntryKey] = field(default_factory=dict)
    """Entries with an idle timeout."""


def identity(table: TableState, key: EntryKey | None) -> p4r.TableEntry:
    """The fields that name an entry; key None: the default entry."""
    if key is None:
        return p4r.TableEntry(table_id=table.spec.id, is_default_action=True)
    return p4r.TableEntry(table_id=table.spec.id, match=encode_key(table.spec.fields, key[0]), priority=key[1])


class EntryReader:
    """Answers reads of table entries."""

    def __init__(self, schema: Schema, pipeline: Pipeline) -> None:
        self._schema = schema
        self._pipeline = pipeline

    def read(self, table: TableState, query: p4r.TableEntry, *, filtered: bool) -> Iterator[p4r.TableEntry]:
        """The entries of a table; `filtered`: those that the query's fields select. Raises as P4Runtime says."""
        if query.is_default_action:
            yield self._describe(table, None, table.default, query)
            return
        if not filtered:
            for key, entry in table.entries.items():
                yield self._describe(table, key, entry, query)
            return
        wanted_action = self._wanted_action(table, query)
        for key, entry in self._candidates(table, query):
            if query.priority and key[1] != query.priority:
                continue
            if query.controller_metadata and entry.controller_metadata != query.controller_metadata:
                continue
            if query.metadata and entry.metadata != query.metadata:
                continue
            if wanted_action is not None and not (
                isinstance(entry.target, ActionCall) and entry.target.action == wanted_action
            ):
                continue
            yield self._describe(table, key, entry, query)

    def _candidates(self, table: TableState, query: p4r.TableEntry) -> Iterator[tuple[EntryKey, Entry]]:
        if not query.match:
            yield from table.entries.items()
            return
        key = decode_key(table.spec.fields, query.match, f"table {table.spec.name}")
        if not table.spec.needs_priority or query.priority:
            entry = table.entries.get((key, query.priority))
            if entry is not None:
                yield (key, query.priority), entry
            return
        yield from ((k, e) for k, e in table.entries.items() if k[0] == key)

    def _wanted_action(self, table: TableState, query: p4r.TableEntry) -> int | None:
        """Index of the action that the query filters by."""
        if not query.HasField("action"):
            return None
        if query.action.WhichOneof("type") != "action" or table.spec.profile:
            raise invalid(f"table {table.spec.name}: entries can be selected by action id only")
        if query.action.action.action_id not in table.spec.actions:
            raise invalid(f"table {table.spec.name} has no action {query.action.action.action_id:#010x}")
        return self._schema.actions[query.action.action.action_id].index

    def _describe(self, table: TableState, key: EntryKey | None, entry: Entry, query: p4r.TableEntry) -> p4r.TableEntry:
        message = identity(table, key)
        spec = table.spec
        match entry.target:
            case MemberRef(member):
                message.action.action_profile_member_id = member
            case GroupRef(group) if not entry.one_shot:
                message.action.action_profile_group_id = group
            case GroupRef():
                message.action.action_profile_action_set.MergeFromString(entry.one_shot)
            case ActionCall(action) if action in self._schema.action_by_index:
                message.action.action.CopyFrom(encode_action(self._schema.action_by_index[action], entry.target))
        message.metadata = entry.metadata
        message.controller_metadata = entry.controller_metadata
        message.idle_timeout_ns = entry.idle_timeout_ns
        message.is_const = entry.is_const
        if query.HasField("counter_data") and spec.counter:
            message.counter_data.CopyFrom(encode_counter(self._pipeline.entry_counter(spec.index, entry.handle)))
        if query.HasField("meter_config") and entry.meter is not None:
            message.meter_config.CopyFrom(entry.meter)
        if query.HasField("meter_counter_data") and spec.meter:
            counts = self._pipeline.entry_colors(spec.index, entry.handle)
            message.meter_counter_data.CopyFrom(encode_colors(counts))
        if query.HasField("time_since_last_hit") and spec.ages and entry.handle is not None:
            message.time_since_last_hit.elapsed_ns = self._pipeline.entry_idle_ns(spec.index, entry.handle)
        return message
