"""A batch of changes to a pipeline. It is packed here, and applied by the runtime between two packets."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum

from p4switch.runtime import abi
from p4switch.runtime.compiled_program import Program
from p4switch.runtime.switch_values import Match, Result, Status
from p4switch.values import (
    ActionCall,
    ColorCounts,
    CounterValue,
    EntryAction,
    GroupRef,
    MemberRef,
    MeterConfig,
    Replica,
    WeightedMember,
)


class _Op(IntEnum):
    INSERT = 1
    MODIFY = 2
    DELETE = 3
    CLEAR = 4
    DEFAULT = 5
    ENTRY_COUNTER = 6
    ENTRY_METER = 7
    MEMBER_SET = 8
    MEMBER_DELETE = 9
    GROUP_SET = 10
    GROUP_DELETE = 11
    COUNTERS = 12
    METERS = 13
    REGISTERS = 14
    REGISTER_FILL = 15
    MCAST_SET = 16
    MCAST_DELETE = 17
    CLONE_SET = 18
    CLONE_DELETE = 19
    ENTRY_COLORS = 20
    COLORS = 21


_HAS_TIMEOUT, _HAS_COUNTER, _HAS_METER, _HAS_COLORS = 1, 2, 4, 8
_STATUS = {status.value: status for status in Status}
_U64_MAX = (1 << 64) - 1
_NO_COLORS = ColorCounts()
Apply = Callable[[bytes, int, "ctypes.Array[ctypes.c_uint32]", bool], None]


class Batch:
    """Collects operations; :meth:`commit` applies all of them, in order, between two packets.

    Arguments that no table could take (a wrong number of fields, a value too wide) raise ValueError here and add
    nothing; what depends on the pipeline's state is in the Results. Not thread-safe itself; batches of several threads
    exclude each other.
    """

    def __init__(self, program: Program, apply: Apply) -> None:
        self._program = program
        self._apply = apply
        self._packed = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _add(
        self,
        kind: _Op,
        target: int = 0,
        handle: int = 0,
        *,
        priority: int = 0,
        action: EntryAction | None = None,
        blob: bytes = b"",
        timeout_us: int | None = None,
        counter: CounterValue | None = None,
        meter: MeterConfig | None = None,
        colors: ColorCounts | None = None,
        first: int = 0,
        count: int = 0,
    ) -> None:
        action_kind, action_id = abi.ACTION_NONE, 0
        match action:
            case ActionCall(abi.NO_ACTION, ()):
                pass
            case ActionCall(index, params):
                if not 0 <= index < len(self._program.actions):
                    raise ValueError(f"no action with index {index}")
                action_kind, action_id = abi.ACTION_CALL, index
                blob += self._program.actions[index].pack(params)
            case MemberRef(member):
                action_kind, action_id = abi.ACTION_MEMBER, member
            case GroupRef(group):
                action_kind, action_id = abi.ACTION_GROUP, group
        flags = (
            (_HAS_TIMEOUT if timeout_us is not None else 0)
            | (_HAS_COUNTER if counter is not None else 0)
            | (_HAS_METER if meter is not None else 0)
            | (_HAS_COLORS if colors is not None else 0)
        )
        counted = (counter.packets, counter.bytes) if counter is not None else (0, 0)
        total = (abi.OP_HEADER.size + len(blob) + 7) // 8 * 8
        header = abi.OP_HEADER.pack(
            total,
            kind,
            flags,
            target,
            handle,
            priority,
            action_kind,
            action_id,
            len(blob),
            timeout_us or 0,
            *counted,
            *_meter_words(meter),
            *_color_words(colors or _NO_COLORS),
            first,
            count,
        )
        self._packed += header + blob + bytes(total - len(header) - len(blob))
        self._count += 1

    # ------------------------------------------------------------------ tables and value sets

    def insert(
        self,
        table: int,
        match: Sequence[Match],
        action: EntryAction | None = None,
        priority: int = 0,
        timeout_us: int | None = None,
        counter: CounterValue | None = None,
        meter: MeterConfig | None = None,
        colors: ColorCounts | None = None,
    ) -> None:
        """A new entry; of a value set, a member (no action). Larger priorities win; lpm and exact tables ignore"""
        key = self._program.tables[table].pack_key(match)
        self._add(
            _Op.INSERT,
            table,
            priority=priority,
            action=action,
            blob=key,
            timeout_us=timeout_us,
            counter=counter,
            meter=meter,
            colors=colors,
        )

    def modify(self, table: int, handle: int, action: EntryAction, timeout_us: int | None = None) -> None:
        """Another action for an entry; its counter, meter and (unless given) timeout stay."""
        self._add(_Op.MODIFY, table, handle, action=action, timeout_us=timeout_us)

    def delete(self, table: int, handle: int) -> None:
        """Removes an entry."""
        self._add(_Op.DELETE, table, handle)

    def clear(self, table: int) -> None:
        """Removes all entries."""
        self._add(_Op.CLEAR, table)

    def set_default(self, table: int, action: EntryAction | None) -> None:
        """The action of packets that match nothing; None: the program's own."""
        self._add(_Op.DEFAULT, table, abi.NONE, action=action)

    def set_entry_counter(self, table: int, handle: int | None, value: CounterValue) -> None:
        """Sets a direct counter; ``handle`` None: the default entry's."""
        self._add(_Op.ENTRY_COUNTER, table, abi.NONE if handle is None else handle, counter=value)

    def set_entry_meter(self, table: int, handle: int | None, config: MeterConfig | None) -> None:
        """Sets a direct meter, its buckets full; None: every packet is green."""
        self._add(_Op.ENTRY_METER, table, abi.NONE if handle is None else handle, meter=config)

    def set_entry_colors(self, table: int, handle: int | None, counts: ColorCounts) -> None:
        """Sets what a direct meter has marked; ``handle`` None: the default entry's."""
        self._add(_Op.ENTRY_COLORS, table, abi.NONE if handle is None else handle, colors=counts)

    # ------------------------------------------------------------------ action profiles

    def set_member(self, profile: int, member: int, action: ActionCall) -> None:
        """Makes or changes a member; entries and groups that refer to it follow at once."""
        self._add(_Op.MEMBER_SET, profile, member, action=action)

    def delete_member(self, profile: int, member: int) -> None:
        """Removes a member; IN_USE while an entry or a group refers to it."""
        self._add(_Op.MEMBER_DELETE, profile, member)

    def set_group(self, profile: int, group: int, members: Sequence[WeightedMember]) -> None:
        """Makes or changes a selector group."""
        packed = b"".join(
            abi.WEIGHTED.pack(m.member, m.weight, abi.NONE if m.watch_port is None else m.watch_port) for m in members
        )
        self._add(_Op.GROUP_SET, profile, group, blob=packed)

    def delete_group(self, profile: int, group: int) -> None:
        """Removes a group; IN_USE while an entry refers to it."""
        self._add(_Op.GROUP_DELETE, profile, group)

    # ------------------------------------------------------------------ arrays

    def set_counters(self, counter: int, first: int, values: Sequence[CounterValue]) -> None:
        """Cells from ``first`` on."""
        packed = b"".join(abi.COUNTER_CELL.pack(value.packets, value.bytes) for value in values)
        self._add(_Op.COUNTERS, counter, blob=packed, first=first, count=len(values))

    def set_meters(self, meter: int, first: int, configs: Sequence[MeterConfig | None]) -> None:
        """Cells from ``first`` on, their buckets full; None: every packet is green."""
        packed = b"".join(abi.METER_CELL.pack(int(config is not None), *_meter_words(config)) for config in configs)
        self._add(_Op.METERS, meter, blob=packed, first=first, count=len(configs))

    def set_colors(self, meter: int, first: int, counts: Sequence[ColorCounts]) -> None:
        """Sets what cells from ``first`` on have marked."""
        packed = b"".join(abi.COLORS_CELL.pack(*_color_words(c)) for c in counts)
        self._add(_Op.COLORS, meter, blob=packed, first=first, count=len(counts))

    def set_registers(self, register: int, first: int, values: Sequence[int]) -> None:
        """Cells from ``first`` on."""
        layout = self._program.registers[register]
        packed = b"".join(layout.pack(value) for value in values)
        self._add(_Op.REGISTERS, register, blob=packed, first=first, count=len(values))

    def fill_register(self, register: int, value: int) -> None:
        """All cells alike."""
        self._add(_Op.REGISTER_FILL, register, blob=self._program.registers[register].pack(value))

    # ------------------------------------------------------------------ replication

    def set_multicast_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Makes or replaces a group (id 1 to 65535)."""
        self._add(_Op.MCAST_SET, handle=group, blob=_pack_replicas(replicas))

    def delete_multicast_group(self, group: int) -> None:
        """Removes a group."""
        self._add(_Op.MCAST_DELETE, handle=group)

    def set_clone_session(
        self, session: int, replicas: Sequence[Replica], truncate_bytes: int = 0, class_of_service: int = 0
    ) -> None:
        """Makes or replaces a session; ``truncate_bytes`` 0: clones keep their length."""
        self._add(
            _Op.CLONE_SET, handle=session, blob=_pack_replicas(replicas), first=truncate_bytes, count=class_of_service
        )

    def delete_clone_session(self, session: int) -> None:
        """Removes a session."""
        self._add(_Op.CLONE_DELETE, handle=session)

    # ------------------------------------------------------------------

    def commit(self, *, stop_at_error: bool = False) -> list[Result]:
        """Applies the operations and empties the batch; one Result an operation.

        With ``stop_at_error`` operations behind the first one that fails are not tried (INVALID).
        """
        results = (ctypes.c_uint32 * (2 * self._count))()
        packed, count = bytes(self._packed), self._count
        self._packed.clear()
        self._count = 0
        if count:
            self._apply(packed, count, results, stop_at_error)
        return [Result(_STATUS[results[i]], results[i + 1]) for i in range(0, 2 * count, 2)]


def _meter_words(config: MeterConfig | None) -> tuple[int, int, int, int]:
    if config is None:
        return (0, 0, 0, 0)
    words = (config.cir, config.cburst, config.pir, config.pburst)
    if any(word < 0 or word > _U64_MAX for word in words):
        raise ValueError("rates and bursts of a meter are not negative and below 2^64")
    return words


def _color_words(counts: ColorCounts) -> tuple[int, ...]:
    return tuple(n for c in (counts.green, counts.yellow, counts.red) for n in (c.packets, c.bytes))


def _pack_replicas(replicas: Sequence[Replica]) -> bytes:
    return b"".join(abi.REPLICA.pack(replica.port, replica.instance) for replica in replicas)
