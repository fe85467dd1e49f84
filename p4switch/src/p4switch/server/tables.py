"""Table entries, default entries, and the counters and meters that belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.journal import Journal
from p4switch.server.profiles import Profiles
from p4switch.server.schema import Schema, Scope
from p4switch.server.status import already_exists, denied, exhausted, invalid, not_found
from p4switch.server.table_entries import Entry, EntryKey, EntryReader, TableState, identity
from p4switch.server.target_pipeline import EntryHandle, EntryState, Pipeline
from p4switch.server.translate import (
    check_colors,
    decode_action,
    decode_counter,
    decode_key,
    decode_meter,
    encode_colors,
    encode_counter,
)
from p4switch.values import ActionCall, ColorCounts, CounterValue, EntryAction, MeterConfig

UPDATE = p4r.Update


class Tables:
    """All tables of a pipeline."""

    def __init__(self, schema: Schema, pipeline: Pipeline, profiles: Profiles) -> None:
        self._schema = schema
        self._pipeline = pipeline
        self._profiles = profiles
        self._reader = EntryReader(schema, pipeline)
        self._tables: dict[int, TableState] = {}
        for spec in schema.tables.values():
            call = pipeline.initial_default(spec.index)
            table = self._tables[spec.id] = TableState(spec, Entry(None, call), call)
            for entry in pipeline.initial_entries(spec.index):
                priority = entry.priority if spec.needs_priority else 0
                table.entries[entry.key, priority] = Entry(entry.handle, entry.call, is_const=entry.is_const)

    # -- TableEntry ------------------------------------------------------------------------------

    def write_entry(self, kind: int, message: p4r.TableEntry, journal: Journal) -> None:
        """INSERT, MODIFY or DELETE an entry, or MODIFY the default entry."""
        table = self._table(message.table_id)
        if message.is_const:
            raise invalid(f"table {table.spec.name}: is_const cannot be written")
        if message.is_default_action:
            self._write_default(table, kind, message, journal)
            return
        key = self._key(table, message)
        if kind == UPDATE.DELETE:
            self._writable(table, key)
            self._delete(table, key, journal)
            return
        self._check_extras(table, message)
        if kind == UPDATE.INSERT:
            self._insert(table, key, message, journal)
        else:
            self._modify(table, key, message, journal)

    def read_entries(self, query: p4r.TableEntry) -> Iterator[p4r.Entity]:
        """Entries that the query's fields select; table id 0 means all tables."""
        if query.table_id == 0:
            for table in self._tables.values():
                yield from (p4r.Entity(table_entry=m) for m in self._reader.read(table, query, filtered=False))
            return
        table = self._table(query.table_id)
        if query.HasField("time_since_last_hit") and (not table.spec.ages or query.is_default_action):
            raise invalid(f"table {table.spec.name} does not support idle timeouts here")
        yield from (p4r.Entity(table_entry=m) for m in self._reader.read(table, query, filtered=True))

    def default_is_original(self, table_id: int) -> bool:
        """Whether the default entry is as the program's source has it."""
        table = self._table(table_id)
        return table.default == Entry(None, table.initial_default)

    # -- direct resources ------------------------------------------------------------------------

    def write_counter(self, kind: int, message: p4r.DirectCounterEntry, journal: Journal) -> None:
        """MODIFY the direct counter of an entry."""
        table, key = self._direct(kind, message.table_entry)
        if not table.spec.counter:
            raise invalid(f"table {table.spec.name} has no direct counter")
        handle = self._handle(table, key)
        if message.HasField("data"):
            value = decode_counter(message.data, f"table {table.spec.name}")
            self._set_counter(table, handle, value, journal)

    def read_counters(self, query: p4r.DirectCounterEntry) -> Iterator[p4r.Entity]:
        """Direct counters of one entry, of all entries of a table, or (table id 0) of all tables."""
        for table, key, entry in self._direct_selected(query.table_entry):
            if table.spec.counter:
                message = p4r.DirectCounterEntry(table_entry=identity(table, key))
                message.data.CopyFrom(encode_counter(self._pipeline.entry_counter(table.spec.index, entry.handle)))
                yield p4r.Entity(direct_counter_entry=message)
            elif query.table_entry.table_id:
                raise invalid(f"table {table.spec.name} has no direct counter")

    def write_meter(self, kind: int, message: p4r.DirectMeterEntry, journal: Journal) -> None:
        """MODIFY the direct meter of an entry; without a configuration it is green again.

        With `counter_data` what it has counted of each color starts at zero again.
        """
        table, key = self._direct(kind, message.table_entry)
        if not table.spec.meter:
            raise invalid(f"table {table.spec.name} has no direct meter")
        entry = self._entry(table, key)
        if message.HasField("counter_data"):
            check_colors(message.counter_data, f"table {table.spec.name}")
            self._reset_colors(table, entry.handle, journal)
        self._replace(table, key, replace(entry, meter=self._meter(table, message)), journal)

    def read_meters(self, query: p4r.DirectMeterEntry) -> Iterator[p4r.Entity]:
        """Direct meters of one entry, of all entries of a table, or (table id 0) of all tables.

        With `counter_data` what they have marked, too.
        """
        for table, key, entry in self._direct_selected(query.table_entry):
            if table.spec.meter:
                message = p4r.DirectMeterEntry(table_entry=identity(table, key))
                if entry.meter is not None:
                    message.config.CopyFrom(entry.meter)
                if query.HasField("counter_data"):
                    counts = self._pipeline.entry_colors(table.spec.index, entry.handle)
                    message.counter_data.CopyFrom(encode_colors(counts))
                yield p4r.Entity(direct_meter_entry=message)
            elif query.table_entry.table_id:
                raise invalid(f"table {table.spec.name} has no direct meter")

    # -- idle timeouts ---------------------------------------------------------------------------

    def idle_entry(self, table_index: int, handle: EntryHandle) -> p4r.TableEntry | None:
        """What an idle notification says of an entry; None when the entry is gone or never expires."""
        spec = self._schema.table_by_index.get(table_index)
        if spec is None:
            return None
        table = self._tables[spec.id]
        key = table.timed.get(handle)
        if key is None:
            return None
        entry = table.entries[key]
        message = identity(table, key)
        message.idle_timeout_ns = entry.idle_timeout_ns
        message.metadata = entry.metadata
        message.controller_metadata = entry.controller_metadata
        return message

    # -- steps of a write ------------------------------------------------------------------------

    def _insert(self, table: TableState, key: EntryKey, message: p4r.TableEntry, journal: Journal) -> None:
        spec = table.spec
        if spec.const_entries:
            raise denied(f"table {spec.name} is constant")
        if not spec.fields:
            raise invalid(f"table {spec.name} has no key: it has a default entry only")
        if not message.HasField("action"):
            raise invalid(f"table {spec.name}: an entry needs an action")
        target = self._target(table, message.action, journal, default=False)
        if key in table.entries:
            raise already_exists(f"table {spec.name} has this entry already")
        if len(table.entries) >= spec.size:
            raise exhausted(f"table {spec.name} is full: {spec.size} entries")
        entry = self._with_extras(table, Entry(None, target, one_shot=self._one_shot(table, message.action)), message)
        counter = (
            decode_counter(message.counter_data, f"table {spec.name}") if message.HasField("counter_data") else None
        )
        self._install(table, key, entry, counter, journal)

    def _modify(self, table: TableState, key: EntryKey, message: p4r.TableEntry, journal: Journal) -> None:
        spec = table.spec
        old = table.entries.get(key)
        if old is None:
            raise (
                denied(f"table {spec.name} is constant")
                if spec.const_entries
                else not_found(f"table {spec.name} has no such entry")
            )
        if old.is_const or spec.const_entries:
            if message.HasField("action"):
                raise denied(f"table {spec.name}: the action of a constant entry cannot be changed")
            new = replace(old, meter=self._meter(table, message))
        elif message.HasField("action"):
            target = self._target(table, message.action, journal, default=False)
            new = self._with_extras(
                table, replace(old, target=target, one_shot=self._one_shot(table, message.action)), message
            )
        else:
            new = replace(old, meter=self._meter(table, message))
        self._replace(table, key, new, journal)
        if new.target != old.target:
            self._discard(table, old.target, journal)
        if message.HasField("counter_data"):
            self._set_counter(table, old.handle, decode_counter(message.counter_data, f"table {spec.name}"), journal)
        if message.HasField("meter_counter_data"):
            self._reset_colors(table, old.handle, journal)

    def _delete(self, table: TableState, key: EntryKey, journal: Journal) -> None:
        entry = self._remove(table, key, journal)
        self._discard(table, entry.target, journal)

    def _write_default(self, table: TableState, kind: int, message: p4r.TableEntry, journal: Journal) -> None:
        spec = table.spec
        if kind != UPDATE.MODIFY:
            raise invalid(f"table {spec.name}: the default entry can only be modified")
        if message.match or message.priority:
            raise invalid(f"table {spec.name}: the default entry has neither match nor priority")
        if message.idle_timeout_ns or message.HasField("time_since_last_hit"):
            raise invalid(f"table {spec.name}: the default entry has no idle timeout")
        if spec.const_default or spec.profile:
            raise denied(f"table {spec.name}: the default action is constant")
        self._check_extras(table, message)
        if message.HasField("action"):
            target = self._target(table, message.action, journal, default=True)
            new = self._with_extras(table, replace(table.default, target=target), message)
        else:
            new = Entry(None, table.initial_default)
        self._replace(table, None, new, journal)
        if message.HasField("counter_data"):
            self._set_counter(table, None, decode_counter(message.counter_data, f"table {spec.name}"), journal)
        elif not message.HasField("action") and spec.counter:
            self._set_counter(table, None, CounterValue(), journal)
        if message.HasField("meter_counter_data"):
            self._reset_colors(table, None, journal)

    # -- primitives, each with its inverse in the journal ----------------------------------------

    def _install(
        self,
        table: TableState,
        key: EntryKey,
        entry: Entry,
        counter: CounterValue | None,
        journal: Journal,
        colors: ColorCounts | None = None,
    ) -> None:
        spec = table.spec
        rates = None if entry.meter is None else self._rates(table, entry.meter)
        state = EntryState(entry.target, counter, rates, entry.idle_timeout_ns, colors)
        handle = self._pipeline.insert_entry(spec.index, key[0], key[1], state)
        table.entries[key] = replace(entry, handle=handle)
        if entry.idle_timeout_ns:
            table.timed[handle] = key
        if spec.profile:
            self._profiles.count_user(spec.profile, entry.target, +1)
        journal.record(lambda: self._remove(table, key, Journal()))

    def _remove(self, table: TableState, key: EntryKey, journal: Journal) -> Entry:
        spec = table.spec
        entry = table.entries[key]
        assert entry.handle is not None
        counter = colors = None
        if spec.counter and journal.keeps_counters:
            counter = self._pipeline.entry_counter(spec.index, entry.handle)
        if spec.meter and journal.keeps_counters:
            colors = self._pipeline.entry_colors(spec.index, entry.handle)
        self._pipeline.delete_entry(spec.index, entry.handle)
        del table.entries[key]
        table.timed.pop(entry.handle, None)
        if spec.profile:
            self._profiles.count_user(spec.profile, entry.target, -1)
        journal.record(lambda: self._install(table, key, entry, counter, Journal(), colors))
        return entry

    def _replace(self, table: TableState, key: EntryKey | None, new: Entry, journal: Journal) -> None:
        """Entry (or, key None, default entry) becomes `new`; its handle stays."""
        spec = table.spec
        old = table.default if key is None else table.entries[key]
        if new.meter != old.meter:
            rates = None if new.meter is None else self._rates(table, new.meter)
            self._pipeline.set_entry_meter(spec.index, old.handle, rates)
        if key is None:
            if new.target != old.target:
                assert isinstance(new.target, ActionCall), "the default entry of an indirect table is constant"
                self._pipeline.set_default(spec.index, new.target)
            table.default = new
        else:
            assert old.handle is not None
            if (new.target, new.idle_timeout_ns) != (old.target, old.idle_timeout_ns):
                self._pipeline.modify_entry(spec.index, old.handle, new.target, new.idle_timeout_ns)
            table.entries[key] = new
            table.timed.pop(old.handle, None)
            if new.idle_timeout_ns:
                table.timed[old.handle] = key
            if spec.profile:
                self._profiles.count_user(spec.profile, old.target, -1)
                self._profiles.count_user(spec.profile, new.target, +1)
        journal.record(lambda: self._replace(table, key, old, Journal()))

    def _set_counter(
        self, table: TableState, handle: EntryHandle | None, value: CounterValue, journal: Journal
    ) -> None:
        old = self._pipeline.entry_counter(table.spec.index, handle)
        self._pipeline.set_entry_counter(table.spec.index, handle, value)
        journal.record(lambda: self._pipeline.set_entry_counter(table.spec.index, handle, old))

    def _reset_colors(self, table: TableState, handle: EntryHandle | None, journal: Journal) -> None:
        old = self._pipeline.entry_colors(table.spec.index, handle)
        self._pipeline.set_entry_colors(table.spec.index, handle, ColorCounts())
        journal.record(lambda: self._pipeline.set_entry_colors(table.spec.index, handle, old))

    def _discard(self, table: TableState, target: EntryAction, journal: Journal) -> None:
        if table.spec.profile:
            self._profiles.discard_one_shot(table.spec.profile, target, journal)

    # -- checks and lookups ----------------------------------------------------------------------

    def _table(self, table_id: int) -> TableState:
        table = self._tables.get(table_id)
        if table is None:
            raise invalid(f"no table {table_id:#010x}")
        return table

    def _key(self, table: TableState, message: p4r.TableEntry) -> EntryKey:
        spec = table.spec
        key = decode_key(spec.fields, message.match, f"table {spec.name}")
        if spec.needs_priority and message.priority <= 0:
            raise invalid(f"table {spec.name}: an entry needs a priority above 0")
        if not spec.needs_priority and message.priority:
            raise invalid(f"table {spec.name}: entries have no priority")
        return key, message.priority

    def _writable(self, table: TableState, key: EntryKey) -> None:
        if table.spec.const_entries:
            raise denied(f"table {table.spec.name} is constant")
        entry = table.entries.get(key)
        if entry is None:
            raise not_found(f"table {table.spec.name} has no such entry")
        if entry.is_const:
            raise denied(f"table {table.spec.name}: the entry is constant")

    def _target(self, table: TableState, action: p4r.TableAction, journal: Journal, *, default: bool) -> EntryAction:
        spec = table.spec
        owner = f"table {spec.name}"
        if spec.profile:
            return self._profiles.target(spec.profile, action, owner, journal)
        kind = action.WhichOneof("type")
        if kind != "action":
            raise invalid(f"{owner} has no action profile: {kind or 'an empty action'} is no action for it")
        action_id = action.action.action_id
        if action_id not in spec.actions:
            raise invalid(f"{owner} has no action {action_id:#010x}")
        if spec.actions[action_id] is (Scope.TABLE if default else Scope.DEFAULT):
            where = "table entries" if default else "the default entry"
            raise denied(f"{owner}: action {self._schema.actions[action_id].name} is for {where} only")
        return decode_action(self._schema.actions, action.action, owner)[1]

    def _one_shot(self, table: TableState, action: p4r.TableAction) -> bytes:
        return self._profiles.canonical(table.spec.profile, action) if table.spec.profile else b""

    def _check_extras(self, table: TableState, message: p4r.TableEntry) -> None:
        spec = table.spec
        if message.HasField("time_since_last_hit"):
            raise invalid(f"table {spec.name}: time_since_last_hit cannot be written")
        if message.idle_timeout_ns and not spec.ages:
            raise invalid(f"table {spec.name} does not support idle timeouts")
        if message.idle_timeout_ns < 0:
            raise invalid(f"table {spec.name}: negative idle timeout")
        if message.HasField("counter_data") and not spec.counter:
            raise invalid(f"table {spec.name} has no direct counter")
        if message.HasField("meter_config") and not spec.meter:
            raise invalid(f"table {spec.name} has no direct meter")
        if message.HasField("meter_counter_data"):
            if not spec.meter:
                raise invalid(f"table {spec.name} has no direct meter")
            check_colors(message.meter_counter_data, f"table {spec.name}")

    def _with_extras(self, table: TableState, entry: Entry, message: p4r.TableEntry) -> Entry:
        return replace(
            entry,
            metadata=message.metadata,
            controller_metadata=message.controller_metadata,
            idle_timeout_ns=message.idle_timeout_ns,
            meter=self._meter(table, message),
        )

    def _meter(self, table: TableState, message: p4r.TableEntry | p4r.DirectMeterEntry) -> p4r.MeterConfig | None:
        """A checked copy of the meter configuration in a message, None when unset."""
        config = message.meter_config if isinstance(message, p4r.TableEntry) else message.config
        if not message.HasField("meter_config" if isinstance(message, p4r.TableEntry) else "config"):  # type: ignore[arg-type]
            return None
        self._rates(table, config)
        kept = p4r.MeterConfig()
        kept.CopyFrom(config)
        return kept

    def _rates(self, table: TableState, config: p4r.MeterConfig) -> MeterConfig:
        return decode_meter(self._schema.direct_meters[table.spec.meter], config)

    def _direct(self, kind: int, message: p4r.TableEntry) -> tuple[TableState, EntryKey | None]:
        """Table and key (None: default entry) of a direct resource that is written."""
        if kind != UPDATE.MODIFY:
            raise invalid("direct counters and meters can only be modified")
        table = self._table(message.table_id)
        return table, None if message.is_default_action else self._key(table, message)

    def _entry(self, table: TableState, key: EntryKey | None) -> Entry:
        if key is None:
            return table.default
        entry = table.entries.get(key)
        if entry is None:
            raise not_found(f"table {table.spec.name} has no such entry")
        return entry

    def _handle(self, table: TableState, key: EntryKey | None) -> EntryHandle | None:
        return self._entry(table, key).handle

    def _direct_selected(self, query: p4r.TableEntry) -> Iterator[tuple[TableState, EntryKey | None, Entry]]:
        tables = [self._table(query.table_id)] if query.table_id else list(self._tables.values())
        for table in tables:
            if query.is_default_action:
                yield table, None, table.default
            elif query.table_id and (query.match or query.priority):
                key = self._key(table, query)
                yield table, key, self._entry(table, key)
            else:
                yield from ((table, key, entry) for key, entry in table.entries.items())
