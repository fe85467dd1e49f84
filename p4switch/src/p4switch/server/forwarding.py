"""The forwarding state of one loaded program: dispatch of updates and queries, atomicity of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.arrays import Arrays
from p4switch.server.digests import DigestBook
from p4switch.server.journal import Journal
from p4switch.server.limits import FLUSH_UPDATES
from p4switch.server.profiles import PortView, Profiles
from p4switch.server.replication import Replication
from p4switch.server.schema import Schema
from p4switch.server.status import Code, StatusError, exhausted, invalid, unimplemented
from p4switch.server.tables import Tables
from p4switch.server.target_pipeline import Pipeline, PipelineFullError

KINDS = frozenset({p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE})

ARRAYS = frozenset({"counter_entry", "meter_entry", "register_entry"})
"""Entities whose reads look at the state first, and make messages of it later."""

ATOMICITIES = frozenset(
    {
        p4r.WriteRequest.CONTINUE_ON_ERROR,
        p4r.WriteRequest.ROLLBACK_ON_ERROR,
        p4r.WriteRequest.DATAPLANE_ATOMIC,
    }
)


class ForwardingState:
    """Everything that Write changes and Read shows."""

    def __init__(self, schema: Schema, pipeline: Pipeline, ports: PortView) -> None:
        self.schema = schema
        self.pipeline = pipeline
        self.digests = DigestBook(schema)
        self.profiles = Profiles(schema, pipeline, ports)
        self.tables = Tables(schema, pipeline, self.profiles)
        self.replication = Replication(pipeline)
        self.arrays = Arrays(schema, pipeline)

    def write(self, updates: Sequence[p4r.Update], atomicity: int) -> list[StatusError | None]:
        """Apply a batch; one outcome an update, None for success.

        With ROLLBACK_ON_ERROR and DATAPLANE_ATOMIC a batch that fails leaves nothing behind, and packets never see
        it at all: changes reach the pipeline together, between two packets. Updates that were taken back are ABORTED.
        """
        if atomicity not in ATOMICITIES:
            raise invalid(f"no atomicity {atomicity}")
        if atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
            return self._write_all_or_none(updates)
        outcomes: list[StatusError | None] = []
        for start in range(0, len(updates), FLUSH_UPDATES):
            journal = Journal()
            piece = [self._attempt(update, journal) for update in updates[start : start + FLUSH_UPDATES]]
            outcomes += self._flush(journal, piece)
        return outcomes

    def read(self, query: p4r.Entity) -> Iterator[p4r.Entity]:
        """The entities that a query selects, as they are at the time of the call. Raises StatusError."""
        found = self._find(query)
        return found if query.WhichOneof("entity") in ARRAYS else iter(list(found))

    def _find(self, query: p4r.Entity) -> Iterator[p4r.Entity]:
        match query.WhichOneof("entity"):
            case "table_entry":
                return self.tables.read_entries(query.table_entry)
            case "direct_counter_entry":
                return self.tables.read_counters(query.direct_counter_entry)
            case "direct_meter_entry":
                return self.tables.read_meters(query.direct_meter_entry)
            case "action_profile_member":
                return self.profiles.read_members(query.action_profile_member)
            case "action_profile_group":
                return self.profiles.read_groups(query.action_profile_group)
            case "packet_replication_engine_entry":
                return self.replication.read(query.packet_replication_engine_entry)
            case "counter_entry":
                return self.arrays.read_counters(query.counter_entry)
            case "meter_entry":
                return self.arrays.read_meters(query.meter_entry)
            case "register_entry":
                return self.arrays.read_registers(query.register_entry)
            case "value_set_entry":
                return self.arrays.read_value_sets(query.value_set_entry)
            case "digest_entry":
                return self.digests.read(query.digest_entry)
            case "extern_entry" if query.extern_entry.extern_type_id == 0:
                return iter(())
            case "extern_entry":
                raise unimplemented("v1model has no externs beyond P4Runtime's own")
            case _:
                raise invalid("a query needs an entity")

    def _write_all_or_none(self, updates: Sequence[p4r.Update]) -> list[StatusError | None]:
        journal = Journal(keeps_counters=True)
        outcomes: list[StatusError | None] = []
        for update in updates:
            outcomes.append(self._attempt(update, journal))
            if outcomes[-1] is not None:
                journal.roll_back()
                aborted = StatusError(Code.ABORTED, f"rolled back: update {len(outcomes) - 1} of the batch failed")
                outcomes = [outcome or aborted for outcome in outcomes]
                outcomes += [aborted] * (len(updates) - len(outcomes))
                break
        return self._flush(journal, outcomes)

    def _attempt(self, update: p4r.Update, journal: Journal) -> StatusError | None:
        """Apply one update, whole or not at all."""
        mark = journal.mark()
        try:
            self._apply(update, journal)
        except StatusError as error:
            journal.roll_back(mark)
            return error
        return None

    def _flush(self, journal: Journal, outcomes: list[StatusError | None]) -> list[StatusError | None]:
        """Bring updates to the pipeline; their outcomes are `outcomes` unless it has no room: then none is done."""
        try:
            self.pipeline.flush()
        except PipelineFullError as error:
            journal.roll_back()
            self.pipeline.flush()
            full = exhausted(f"the switch has no room for the updates that go together with this one: {error}")
            return [outcome or full for outcome in outcomes]
        return outcomes

    def _apply(self, update: p4r.Update, journal: Journal) -> None:
        kind, entity = update.type, update.entity
        if kind not in KINDS:
            raise invalid("an update needs a type: INSERT, MODIFY or DELETE")
        match entity.WhichOneof("entity"):
            case "table_entry":
                self.tables.write_entry(kind, entity.table_entry, journal)
            case "direct_counter_entry":
                self.tables.write_counter(kind, entity.direct_counter_entry, journal)
            case "direct_meter_entry":
                self.tables.write_meter(kind, entity.direct_meter_entry, journal)
            case "action_profile_member":
                self.profiles.write_member(kind, entity.action_profile_member, journal)
            case "action_profile_group":
                self.profiles.write_group(kind, entity.action_profile_group, journal)
            case "packet_replication_engine_entry":
                self.replication.write(kind, entity.packet_replication_engine_entry, journal)
            case "counter_entry":
                self.arrays.write_counter(kind, entity.counter_entry, journal)
            case "meter_entry":
                self.arrays.write_meter(kind, entity.meter_entry, journal)
            case "register_entry":
                self.arrays.write_register(kind, entity.register_entry, journal)
            case "value_set_entry":
                self.arrays.write_value_set(kind, entity.value_set_entry, journal)
            case "digest_entry":
                self.digests.write(kind, entity.digest_entry, journal)
            case "extern_entry":
                raise unimplemented("v1model has no externs beyond P4Runtime's own")
            case _:
                raise invalid("an update needs an entity")
