"""Indexed counters, meters and registers, and parser value sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server import p4data
from p4switch.server.journal import Journal
from p4switch.server.schema import ArraySpec, MeterSpec, RegisterSpec, Schema, ValueSetSpec
from p4switch.server.status import already_exists, exhausted, invalid
from p4switch.server.target_pipeline import MatchKey, Pipeline
from p4switch.server.translate import (
    check_colors,
    decode_counter,
    decode_index,
    decode_key,
    decode_meter,
    encode_colors,
    encode_counter,
    encode_key,
)
from p4switch.values import ColorCounts

UPDATE = p4r.Update

READ_CELLS_AT_ONCE = 4096
"""Array cells fetched from the pipeline in one call of a wildcard read."""

_Array = TypeVar("_Array", ArraySpec, MeterSpec, RegisterSpec)
_Value = TypeVar("_Value")
_Spec = TypeVar("_Spec", ArraySpec, MeterSpec, RegisterSpec, ValueSetSpec)


class Arrays:
    """Externs of a pipeline that are arrays, and value sets. Meter configurations are kept here for reading back.

    Reads look at the state before they return, and make messages of it as these are taken: a client that reads a
    million cells keeps nobody else waiting.
    """

    def __init__(self, schema: Schema, pipeline: Pipeline) -> None:
        self._schema = schema
        self._pipeline = pipeline
        self._meters: dict[tuple[int, int], p4r.MeterConfig] = {}
        self._value_sets: dict[int, tuple[MatchKey, ...]] = {}

    # -- counters --------------------------------------------------------------------------------

    def write_counter(self, kind: int, message: p4r.CounterEntry, journal: Journal) -> None:
        """MODIFY one cell or (index unset) all of them."""
        spec = _find(self._schema.counters, message.counter_id, "counter")
        _only_modify(kind, "counter")
        cells = _cells(message, spec.size, f"counter {spec.name}")
        if not message.HasField("data"):
            return
        value = decode_counter(message.data, f"counter {spec.name}")
        old = list(self._pipeline.counters(spec.index, cells.start, len(cells)))
        self._pipeline.set_counters(spec.index, cells.start, [value] * len(cells))
        journal.record(lambda: self._pipeline.set_counters(spec.index, cells.start, old))

    def read_counters(self, query: p4r.CounterEntry) -> Iterator[p4r.Entity]:
        """One cell, all cells of a counter, or (id 0) all counters."""
        taken = [
            (spec, cells, list(_fetch(self._pipeline.counters, spec.index, cells)))
            for spec, cells in _wanted(self._schema.counters, query.counter_id, query, "counter")
        ]
        return (
            p4r.Entity(
                counter_entry=p4r.CounterEntry(counter_id=spec.id, index=p4r.Index(index=i), data=encode_counter(value))
            )
            for spec, cells, values in taken
            for i, value in zip(cells, values, strict=True)
        )

    # -- meters ----------------------------------------------------------------------------------

    def write_meter(self, kind: int, message: p4r.MeterEntry, journal: Journal) -> None:
        """MODIFY one cell or (index unset) all of them; without a configuration they are green again.

        With `counter_data` what they have counted of each color starts at zero again.
        """
        spec = _find(self._schema.meters, message.meter_id, "meter")
        _only_modify(kind, "meter")
        cells = _cells(message, spec.size, f"meter {spec.name}")
        config = None
        if message.HasField("config"):
            decode_meter(spec, message.config)
            config = p4r.MeterConfig()
            config.CopyFrom(message.config)
        if message.HasField("counter_data"):
            check_colors(message.counter_data, f"meter {spec.name}")
            self._reset_colors(spec, cells, journal)
        self._put_meters(spec, cells.start, [config] * len(cells), journal)

    def read_meters(self, query: p4r.MeterEntry) -> Iterator[p4r.Entity]:
        """One cell, all cells of a meter, or (id 0) all meters; with `counter_data` what they have marked, too."""
        taken = [
            (spec, i, self._meters.get((spec.id, i)), counts)
            for spec, cells in _wanted(self._schema.meters, query.meter_id, query, "meter")
            for i, counts in zip(cells, self._colors(spec, cells, query), strict=True)
        ]
        return (
            p4r.Entity(
                meter_entry=p4r.MeterEntry(
                    meter_id=spec.id,
                    index=p4r.Index(index=i),
                    config=config,
                    counter_data=None if counts is None else encode_colors(counts),
                )
            )
            for spec, i, config, counts in taken
        )

    def _colors(self, spec: MeterSpec, cells: range, query: p4r.MeterEntry) -> Iterable[ColorCounts | None]:
        if not query.HasField("counter_data"):
            return [None] * len(cells)
        return _fetch(self._pipeline.meter_colors, spec.index, cells)

    def _reset_colors(self, spec: MeterSpec, cells: range, journal: Journal) -> None:
        old = list(_fetch(self._pipeline.meter_colors, spec.index, cells))
        self._pipeline.set_meter_colors(spec.index, cells.start, [ColorCounts()] * len(cells))
        journal.record(lambda: self._pipeline.set_meter_colors(spec.index, cells.start, old))

    def _put_meters(
        self, spec: MeterSpec, start: int, configs: Sequence[p4r.MeterConfig | None], journal: Journal
    ) -> None:
        old = [self._meters.get((spec.id, i)) for i in range(start, start + len(configs))]
        self._pipeline.set_meters(spec.index, start, [None if c is None else decode_meter(spec, c) for c in configs])
        for i, config in enumerate(configs, start):
            if config is None:
                self._meters.pop((spec.id, i), None)
            else:
                self._meters[spec.id, i] = config
        journal.record(lambda: self._put_meters(spec, start, old, Journal()))

    # -- registers -------------------------------------------------------------------------------

    def write_register(self, kind: int, message: p4r.RegisterEntry, journal: Journal) -> None:
        """MODIFY one cell or (index unset) all of them."""
        spec = _find(self._schema.registers, message.register_id, "register")
        _only_modify(kind, "register")
        what = f"register {spec.name}"
        cells = _cells(message, spec.size, what)
        value = _join(p4data.decode(spec.shape, message.data, what), p4data.leaf_widths(spec.shape))
        old = list(self._pipeline.registers(spec.index, cells.start, len(cells)))
        self._pipeline.set_registers(spec.index, cells.start, [value] * len(cells))
        journal.record(lambda: self._pipeline.set_registers(spec.index, cells.start, old))

    def read_registers(self, query: p4r.RegisterEntry) -> Iterator[p4r.Entity]:
        """One cell, all cells of a register, or (id 0) all registers."""
        taken = [
            (spec, cells, list(_fetch(self._pipeline.registers, spec.index, cells)))
            for spec, cells in _wanted(self._schema.registers, query.register_id, query, "register")
        ]
        return (
            p4r.Entity(
                register_entry=p4r.RegisterEntry(
                    register_id=spec.id,
                    index=p4r.Index(index=i),
                    data=p4data.encode(spec.shape, iter(_split(value, p4data.leaf_widths(spec.shape)))),
                )
            )
            for spec, cells, values in taken
            for i, value in zip(cells, values, strict=True)
        )

    # -- value sets ------------------------------------------------------------------------------

    def write_value_set(self, kind: int, message: p4r.ValueSetEntry, journal: Journal) -> None:
        """MODIFY: replace the members."""
        spec = _find(self._schema.value_sets, message.value_set_id, "value set")
        _only_modify(kind, "value set")
        what = f"value set {spec.name}"
        members = tuple(decode_key(spec.fields, m.match, what) for m in message.members)
        if len(members) > spec.size:
            raise exhausted(f"{what}: {len(members)} members, room for {spec.size}")
        if len(set(members)) != len(members):
            raise already_exists(f"{what}: a member is given twice")
        self._put_value_set(spec, members, journal)

    def read_value_sets(self, query: p4r.ValueSetEntry) -> Iterator[p4r.Entity]:
        """One value set or (id 0) all."""
        for spec in _selected(self._schema.value_sets, query.value_set_id, "value set"):
            entry = p4r.ValueSetEntry(value_set_id=spec.id)
            for member in self._value_sets.get(spec.id, ()):
                entry.members.add(match=encode_key(spec.fields, member))
            yield p4r.Entity(value_set_entry=entry)

    def _put_value_set(self, spec: ValueSetSpec, members: tuple[MatchKey, ...], journal: Journal) -> None:
        old = self._value_sets.get(spec.id, ())
        self._pipeline.set_value_set(spec.index, members)
        self._value_sets[spec.id] = members
        journal.record(lambda: self._put_value_set(spec, old, Journal()))


def _find(specs: Mapping[int, _Spec], id_: int, what: str) -> _Spec:
    spec = specs.get(id_)
    if spec is None:
        raise invalid(f"no {what} {id_:#010x}")
    return spec


def _selected(specs: Mapping[int, _Spec], id_: int, what: str) -> Iterable[_Spec]:
    return [_find(specs, id_, what)] if id_ else specs.values()


def _only_modify(kind: int, what: str) -> None:
    if kind != UPDATE.MODIFY:
        raise invalid(f"a {what} can only be modified")


def _cells(message: p4r.CounterEntry | p4r.MeterEntry | p4r.RegisterEntry, size: int, what: str) -> range:
    """The cells that a message names: one, or all when its index is unset."""
    if not message.HasField("index"):
        return range(size)
    index = decode_index(message.index, size, what)
    return range(index, index + 1)


def _wanted(
    specs: Mapping[int, _Array], id_: int, query: p4r.CounterEntry | p4r.MeterEntry | p4r.RegisterEntry, what: str
) -> list[tuple[_Array, range]]:
    """The arrays that a query selects, with the cells of each."""
    found = _selected(specs, id_, what)
    return [(spec, _cells(query, spec.size, f"{what} {spec.name}") if id_ else range(spec.size)) for spec in found]


def _fetch(fetch: Callable[[int, int, int], Sequence[_Value]], index: int, cells: range) -> Iterator[_Value]:
    """Values of cells, some thousand a call, so that packets never wait for long."""
    for start in range(cells.start, cells.stop, READ_CELLS_AT_ONCE):
        yield from fetch(index, start, min(READ_CELLS_AT_ONCE, cells.stop - start))


def _join(leaves: list[int], widths: tuple[int, ...]) -> int:
    """Leaves concatenated, the first one in the highest bits, as P4 lays out a struct."""
    value = 0
    for leaf, width in zip(leaves, widths, strict=True):
        value = value << width | leaf
    return value


def _split(value: int, widths: tuple[int, ...]) -> list[int]:
    leaves = []
    for width in reversed(widths):
        leaves.append(value & ((1 << width) - 1))
        value >>= width
    return leaves[::-1]
