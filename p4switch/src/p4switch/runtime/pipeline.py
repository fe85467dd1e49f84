"""A pipeline as Python sees it: what its tables, groups and arrays hold, and batches of changes to them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Protocol

from p4switch.errors import SwitchError
from p4switch.runtime import abi
from p4switch.runtime.batch import Batch
from p4switch.runtime.compiled_program import Program, TableLayout
from p4switch.runtime.switch_values import Entry
from p4switch.values import ActionCall, ColorCounts, CounterValue, EntryAction, GroupRef, MemberRef, MeterConfig

_READ_ENTRIES = 1024


class Owner(Protocol):
    """The switch that a pipeline belongs to."""

    @property
    def handle(self) -> int:
        """Of the native object. Raises SwitchError once the switch is closed."""
        ...


class Pipeline:
    """One instance of a program's state: tables, registers, groups. Made by its switch, which it keeps alive."""

    def __init__(self, switch: Owner, program: Program) -> None:
        library, error = abi.runtime(), ctypes.c_char_p()
        handle = library.ps_pipeline_new(switch.handle, program.address, ctypes.byref(error))
        if not handle:
            raise SwitchError(f"program {program.name}: {(error.value or b'cannot be set up').decode()}")
        self.program = program
        self._switch = switch
        self._library = library
        self._handle: int | None = handle
        self.serial: int = library.ps_pipeline_serial(handle)

    @property
    def handle(self) -> int:
        """Of the native object.

        Raises:
            SwitchError: the switch has been closed.
        """
        if self._handle is None:
            raise SwitchError("the switch of this pipeline is closed")
        return self._handle

    def __del__(self) -> None:
        self.free()

    def free(self) -> None:
        """End the native object; its switch does so before its own. May be called more than once."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:
            self._library.ps_pipeline_free(handle)

    def batch(self) -> Batch:
        """An empty batch of changes to this pipeline."""
        return Batch(self.program, self._apply)

    def _apply(self, packed: bytes, count: int, results: ctypes.Array[ctypes.c_uint32], stop_at_error: bool) -> None:
        if self._library.ps_batch_apply(self.handle, packed, len(packed), count, results, int(stop_at_error)) != 0:
            raise RuntimeError("the runtime cannot read this batch")

    # ------------------------------------------------------------------ tables

    def entries(self, table: int, first: int = 0, limit: int | None = None) -> list[Entry]:
        """Entries by ascending handle, from handle ``first`` on, ``limit`` at most. Read in pieces: a packet may change
        counters, and a batch the entries, between two pieces."""
        found: list[Entry] = []
        cursor = ctypes.c_uint32(first)
        while cursor.value != abi.NONE and (limit is None or len(found) < limit):
            piece = _READ_ENTRIES if limit is None else min(_READ_ENTRIES, limit - len(found))
            found += self._read(table, cursor, piece)
        return found

    def default_entry(self, table: int) -> Entry:
        """The entry that applies to packets that match nothing; its handle is -1."""
        return next(iter(self._read(table, ctypes.c_uint32(abi.NONE), 1)))

    def entry(self, table: int, handle: int) -> Entry | None:
        """One entry; None if there is none with that handle."""
        found = list(self._read(table, ctypes.c_uint32(handle), 1))
        return found[0] if found and found[0].handle == handle else None

    def _read(self, table: int, cursor: ctypes.c_uint32, limit: int) -> Iterator[Entry]:
        size = self._library.ps_table_record_bytes(self.handle, table)
        block = ctypes.create_string_buffer(size * limit)
        count = self._library.ps_table_read(self.handle, table, ctypes.byref(cursor), limit, block)
        layout, raw = self.program.tables[table], block.raw
        return (self._entry(layout, raw[i * size : (i + 1) * size]) for i in range(count))

    def _entry(self, layout: TableLayout, record: bytes) -> Entry:
        head = abi.ENTRY_HEADER.unpack_from(record)
        handle, priority, kind, target, packets, octets, timeout_us, idle_us, configured, cir, cburst, pir, pburst = (
            head[:-6]
        )
        value_at = abi.ENTRY_HEADER.size
        mask_at = value_at + layout.key_bytes
        params_at = mask_at if layout.exact else mask_at + layout.key_bytes
        is_default = handle == abi.NONE
        action: EntryAction | None = None
        if kind == abi.ACTION_CALL:
            action = ActionCall(target, self.program.actions[target].unpack(record[params_at:]))
        elif kind == abi.ACTION_MEMBER:
            action = MemberRef(target)
        elif kind == abi.ACTION_GROUP:
            action = GroupRef(target)
        mask = b"\xff" * layout.key_bytes if layout.exact else record[mask_at:params_at]
        return Entry(
            handle=-1 if is_default else handle,
            match=() if is_default else layout.unpack_key(record[value_at:mask_at], mask),
            priority=priority,
            action=action,
            counter=CounterValue(packets, octets),
            meter=MeterConfig(cir, cburst, pir, pburst) if configured else None,
            colors=color_counts(head[-6:]),
            timeout_us=timeout_us,
            idle_us=idle_us,
        )

    def entry_count(self, table: int) -> int:
        """How many entries a table holds."""
        return int(self._library.ps_table_count(self.handle, table))

    def find(self, table: int, values: tuple[int, ...]) -> int | None:
        """The handle of the entry that a packet with these key values meets; None: the default entry."""
        layout = self.program.tables[table]
        key = bytearray(layout.key_bytes)
        for field, value in zip(layout.keys, values, strict=True):
            key[field.offset : field.offset + field.size] = value.to_bytes(field.size, "big")
        number = self._library.ps_table_find(self.handle, table, bytes(key))
        return None if number == abi.NONE else int(number)

    # ------------------------------------------------------------------ arrays

    def counters(self, counter: int, first: int = 0, count: int | None = None) -> list[CounterValue]:
        """Cells from ``first`` on (IndexError beyond the end)."""
        count = self.program.counters[counter].count - first if count is None else count
        cells = ctypes.create_string_buffer(count * abi.COUNTER_CELL.size)
        if self._library.ps_counters_read(self.handle, counter, first, count, cells) != 0:
            raise IndexError(f"counter {self.program.counters[counter].name}: no cells {first} to {first + count - 1}")
        return [
            CounterValue(*cell) for cell in abi.COUNTER_CELL.iter_unpack(cells.raw[: count * abi.COUNTER_CELL.size])
        ]

    def meters(self, meter: int, first: int = 0, count: int | None = None) -> list[MeterConfig | None]:
        """Configurations from ``first`` on, None where there is none (IndexError beyond the end)."""
        count = self.program.meters[meter].count - first if count is None else count
        cells = ctypes.create_string_buffer(count * abi.METER_CELL.size)
        if self._library.ps_meters_read(self.handle, meter, first, count, cells) != 0:
            raise IndexError(f"meter {self.program.meters[meter].name}: no cells {first} to {first + count - 1}")
        rows = abi.METER_CELL.iter_unpack(cells.raw[: count * abi.METER_CELL.size])
        return [MeterConfig(*row[1:]) if row[0] else None for row in rows]

    def colors(self, meter: int, first: int = 0, count: int | None = None) -> list[ColorCounts]:
        """What cells from ``first`` on have marked (IndexError beyond the end)."""
        count = self.program.meters[meter].count - first if count is None else count
        cells = ctypes.create_string_buffer(max(1, count * abi.COLORS_CELL.size))
        if self._library.ps_colors_read(self.handle, meter, first, count, cells) != 0:
            raise IndexError(f"meter {self.program.meters[meter].name}: no cells {first} to {first + count - 1}")
        rows = abi.COLORS_CELL.iter_unpack(cells.raw[: count * abi.COLORS_CELL.size])
        return [color_counts(row) for row in rows]

    def register_bytes(self, register: int, first: int, count: int) -> bytes:
        """Cells from ``first`` on as the program keeps them (IndexError beyond the end)."""
        layout = self.program.registers[register]
        size = count * layout.cell_bytes
        cells = ctypes.create_string_buffer(max(size, 1))
        if self._library.ps_registers_read(self.handle, register, first, count, cells) != 0:
            raise IndexError(f"register {layout.name}: no cells {first} to {first + count - 1}")
        return cells.raw[:size]

    def registers(self, register: int, first: int = 0, count: int | None = None) -> list[int]:
        """Values from ``first`` on (IndexError beyond the end)."""
        layout = self.program.registers[register]
        count = layout.count - first if count is None else count
        return layout.unpack(self.register_bytes(register, first, count))


def color_counts(words: Sequence[int]) -> ColorCounts:
    """From packets and bytes of green, yellow and red."""
    green, yellow, red = (CounterValue(*words[i : i + 2]) for i in (0, 2, 4))
    return ColorCounts(green, yellow, red)
