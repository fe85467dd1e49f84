"""RECONCILE_AND_COMMIT: the forwarding state of one program carried over to another."""

from __future__ import annotations

from collections.abc import Iterator

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.forwarding import ForwardingState
from p4switch.server.status import StatusError, invalid

COPY_CELLS_AT_ONCE = 4096


def carry_over(old: ForwardingState, new: ForwardingState) -> None:
    """Write everything that `old` holds into the freshly prepared `new`.

    Ids must mean the same in both. Raises StatusError INVALID_ARGUMENT naming the first thing that does not fit;
    `new` is then to be thrown away, `old` is untouched. Arrays that are gone or smaller lose what they lose.
    """
    for kind, entity in _everything(old, new):
        outcome = new.write([p4r.Update(type=kind, entity=entity)], p4r.WriteRequest.CONTINUE_ON_ERROR)[0]
        if outcome is not None:
            raise invalid(f"the forwarding state cannot be preserved: {outcome.message}")
    _copy_cells(old, new)


def _everything(old: ForwardingState, new: ForwardingState) -> Iterator[tuple[p4r.Update.Type.ValueType, p4r.Entity]]:
    insert, modify = p4r.Update.INSERT, p4r.Update.MODIFY
    for entity in old.read(p4r.Entity(action_profile_member=p4r.ActionProfileMember())):
        yield insert, entity
    for entity in old.read(p4r.Entity(action_profile_group=p4r.ActionProfileGroup())):
        yield insert, entity
    for entries in (p4r.TableEntry(), p4r.TableEntry(is_default_action=True)):
        entries.meter_config.SetInParent()
        entries.counter_data.SetInParent()
        for entity in old.read(p4r.Entity(table_entry=entries)):
            yield from _table_entry(entity, old, new)
    for entity in old.read(p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry())):
        yield insert, entity
    for entity in old.read(p4r.Entity(digest_entry=p4r.DigestEntry())):
        yield insert, entity
    for query in (p4r.Entity(meter_entry=p4r.MeterEntry()), p4r.Entity(value_set_entry=p4r.ValueSetEntry())):
        for entity in old.read(query):
            if _is_known(entity, new):
                yield modify, entity


def _copy_cells(old: ForwardingState, new: ForwardingState) -> None:
    """Counters, those of meters included, and registers, which may be large, go over without becoming messages."""
    for id_, counter in old.schema.counters.items():
        new_counter = new.schema.counters.get(id_)
        if new_counter is not None:
            for cells in _chunks(min(counter.size, new_counter.size)):
                values = old.pipeline.counters(counter.index, cells.start, len(cells))
                new.pipeline.set_counters(new_counter.index, cells.start, values)
    for id_, meter in old.schema.meters.items():
        new_meter = new.schema.meters.get(id_)
        if new_meter is not None:
            for cells in _chunks(min(meter.size, new_meter.size)):
                counts = old.pipeline.meter_colors(meter.index, cells.start, len(cells))
                new.pipeline.set_meter_colors(new_meter.index, cells.start, counts)
    for id_, register in old.schema.registers.items():
        new_register = new.schema.registers.get(id_)
        if new_register is not None and new_register.shape == register.shape:
            for cells in _chunks(min(register.size, new_register.size)):
                patterns = old.pipeline.registers(register.index, cells.start, len(cells))
                new.pipeline.set_registers(new_register.index, cells.start, patterns)
    new.pipeline.flush()


def _chunks(size: int) -> Iterator[range]:
    for start in range(0, size, COPY_CELLS_AT_ONCE):
        yield range(start, min(start + COPY_CELLS_AT_ONCE, size))


def _table_entry(
    entity: p4r.Entity, old: ForwardingState, new: ForwardingState
) -> Iterator[tuple[p4r.Update.Type.ValueType, p4r.Entity]]:
    """An entry as an update of the new program; entries that its source brings along are left out."""
    entry = entity.table_entry
    spec = old.schema.tables[entry.table_id]
    target = new.schema.tables.get(entry.table_id)
    if target is None:
        raise invalid(f"the forwarding state cannot be preserved: table {spec.name} is gone")
    if entry.is_default_action:
        if not (old.tables.default_is_original(spec.id) or target.const_default):
            yield p4r.Update.MODIFY, entity
        elif spec.counter and target.counter:
            counter = p4r.DirectCounterEntry(data=entry.counter_data)
            counter.table_entry.table_id, counter.table_entry.is_default_action = entry.table_id, True
            yield p4r.Update.MODIFY, p4r.Entity(direct_counter_entry=counter)
        return
    if entry.is_const:
        return
    if not target.counter:
        entry.ClearField("counter_data")
    known = _exists(new, entry)
    yield (p4r.Update.MODIFY if known else p4r.Update.INSERT), entity


def _exists(state: ForwardingState, entry: p4r.TableEntry) -> bool:
    if not entry.match:
        return False
    query = p4r.TableEntry(table_id=entry.table_id, match=entry.match, priority=entry.priority)
    try:
        return any(True for _ in state.read(p4r.Entity(table_entry=query)))
    except StatusError:
        return False


def _is_known(entity: p4r.Entity, new: ForwardingState) -> bool:
    """Whether the new program still has the meter's cell or the value set."""
    if entity.WhichOneof("entity") == "value_set_entry":
        return entity.value_set_entry.value_set_id in new.schema.value_sets
    meter = new.schema.meters.get(entity.meter_entry.meter_id)
    return meter is not None and entity.meter_entry.index.index < meter.size
