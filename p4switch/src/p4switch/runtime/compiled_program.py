"""What a compiled program says of itself: names, widths and packed layouts, and how values are packed by them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from p4switch.errors import SwitchError
from p4switch.runtime import abi
from p4switch.runtime.switch_values import Match, MatchKind, TableFlag, Unit


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """A value in a packed block: ``width`` in bits, ``offset`` in bytes; ``native`` is in the machine's byte order."""

    name: str
    id: int
    width: int
    offset: int
    match_kind: MatchKind
    native: bool

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return native_size(self.width) if self.native else (self.width + 7) // 8


def native_size(width: int) -> int:
    """Bytes of the machine word that holds ``width`` bits (16 for 65 to 128)."""
    for size in (1, 2, 4, 8, 16):
        if width <= 8 * size:
            return size
    raise ValueError(f"{width} bits fit no machine word")


@dataclass(frozen=True, slots=True)
class ActionLayout:
    """An action and how its arguments are packed."""

    index: int
    name: str
    id: int
    param_bytes: int
    params: tuple[FieldLayout, ...]

    def pack(self, arguments: Sequence[int]) -> bytes:
        """Arguments as the program reads them.

        Raises:
            ValueError: their number is wrong.
        """
        if len(arguments) != len(self.params):
            raise ValueError(f"action {self.name} takes {len(self.params)} arguments, not {len(arguments)}")
        return pack_fields(self.params, arguments, self.param_bytes)

    def unpack(self, packed: bytes) -> tuple[int, ...]:
        """The arguments in a packed block."""
        return unpack_fields(self.params, packed)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A table or a parser value set. ``actions`` and ``default_action`` are indexes in the program's list."""

    index: int
    name: str
    id: int
    flags: TableFlag
    size: int
    key_bytes: int
    keys: tuple[FieldLayout, ...]
    actions: tuple[int, ...]
    default_action: int | None
    profile: int | None

    @property
    def exact(self) -> bool:
        """Whether all key fields match exactly (keys are then packed without a mask)."""
        return all(field.match_kind is MatchKind.EXACT for field in self.keys)

    def pack_key(self, match: Sequence[Match]) -> bytes:
        """Key, and behind it the mask unless the table is exact.

        Raises:
            ValueError: a wrong number of fields, or a value that its width cannot hold.
        """
        if len(match) != len(self.keys):
            raise ValueError(f"table {self.name} has {len(self.keys)} key fields, not {len(match)}")
        value = bytearray(self.key_bytes)
        mask = bytearray(self.key_bytes)
        for field, (first, second) in zip(self.keys, match, strict=True):
            low, high = _value_and_mask(field, first, second)
            end = field.offset + field.size
            try:
                value[field.offset : end] = low.to_bytes(field.size, "big")
                mask[field.offset : end] = high.to_bytes(field.size, "big")
            except OverflowError as error:
                raise ValueError(f"table {self.name}: key field {field.name} has {field.width} bits") from error
        return bytes(value) if self.exact else bytes(value + mask)

    def unpack_key(self, value: bytes, mask: bytes) -> tuple[Match, ...]:
        """The match fields of a packed key and mask."""
        found: list[Match] = []
        for field in self.keys:
            end = field.offset + field.size
            first = int.from_bytes(value[field.offset : end], "big")
            second = int.from_bytes(mask[field.offset : end], "big")
            if field.match_kind is MatchKind.EXACT:
                second = 0
            elif field.match_kind is MatchKind.LPM:
                second = second.bit_count()
            elif field.match_kind is MatchKind.OPTIONAL:
                second = 1 if second else 0
            found.append((first, second))
        return tuple(found)


def _value_and_mask(field: FieldLayout, first: int, second: int) -> tuple[int, int]:
    ones = (1 << field.width) - 1
    if first < 0 or first > ones or second < 0:
        raise ValueError(f"key field {field.name}: {first} does not fit {field.width} bits")
    match field.match_kind:
        case MatchKind.EXACT:
            return first, ones
        case MatchKind.LPM:
            if second > field.width:
                raise ValueError(f"key field {field.name}: a prefix of {second} bits in {field.width}")
            return first, ones & ~(ones >> second)
        case MatchKind.OPTIONAL:
            return first, ones if second else 0
        case _:
            if second > ones:
                raise ValueError(f"key field {field.name}: {second} does not fit {field.width} bits")
            return first, second


@dataclass(frozen=True, slots=True)
class ProfileLayout:
    """An action profile; with ``selector`` its groups spread packets by a hash."""

    index: int
    name: str
    id: int
    selector: bool
    size: int
    actions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegisterLayout:
    """A register: ``count`` cells of ``width`` bits, ``cell_bytes`` each."""

    index: int
    name: str
    id: int
    width: int
    count: int
    cell_bytes: int
    native: bool

    def pack(self, value: int) -> bytes:
        """One cell.

        Raises:
            ValueError: the value has more bits than the cell.
        """
        if value < 0 or value >> self.width:
            raise ValueError(f"register {self.name}: {value} does not fit {self.width} bits")
        return value.to_bytes(self.cell_bytes, "little" if self.native else "big")

    def unpack(self, cells: bytes) -> list[int]:
        """The values of consecutive cells."""
        order = _LITTLE if self.native else _BIG
        return [int.from_bytes(cells[at : at + self.cell_bytes], order) for at in range(0, len(cells), self.cell_bytes)]


@dataclass(frozen=True, slots=True)
class CounterLayout:
    """An indexed counter or meter."""

    index: int
    name: str
    id: int
    unit: Unit
    count: int


@dataclass(frozen=True, slots=True)
class DigestLayout:
    """A digest and how its fields are packed."""

    index: int
    name: str
    id: int
    fields: tuple[FieldLayout, ...]
    packed_bytes: int


_LITTLE: Any = "little"
_BIG: Any = "big"


def pack_fields(fields: Sequence[FieldLayout], values: Sequence[int], total_bytes: int) -> bytes:
    """Values at their places in a block of ``total_bytes``.

    Raises:
        ValueError: a value has more bits than its field.
    """
    block = bytearray(total_bytes)
    for field, value in zip(fields, values, strict=True):
        if value < 0 or value >> field.width:
            raise ValueError(f"{field.name}: {value} does not fit {field.width} bits")
        size = field.size
        block[field.offset : field.offset + size] = value.to_bytes(size, _LITTLE if field.native else _BIG)
    return bytes(block)


def unpack_fields(fields: Sequence[FieldLayout], block: bytes) -> tuple[int, ...]:
    """The values of a packed block."""
    return tuple(
        int.from_bytes(block[field.offset : field.offset + field.size], _LITTLE if field.native else _BIG)
        for field in fields
    )


_Named = TypeVar("_Named", ActionLayout, TableLayout, ProfileLayout, RegisterLayout, CounterLayout, DigestLayout)


def _by_name(kind: str, items: Sequence[_Named], name: str) -> _Named:
    for item in items:
        if item.name == name:
            return item
    known = ", ".join(item.name for item in items) or "none"
    raise KeyError(f"no {kind} {name!r}; there are: {known}")


class Program:
    """A compiled program, loaded. Stays loaded for the life of the process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        entry = library.p4switch_program
        entry.restype = ctypes.POINTER(abi.ProgramDesc)
        entry.argtypes = ()
        self._library = library
        self._pointer = entry()
        desc = self._pointer.contents
        if desc.abi_version != abi.ABI_VERSION or desc.descriptor_bytes != ctypes.sizeof(abi.ProgramDesc):
            raise SwitchError(
                f"the program was compiled for ABI {desc.abi_version}, this runtime has {abi.ABI_VERSION}"
            )
        self.name = desc.name.decode()
        self.actions = tuple(_action(i, desc.actions[i]) for i in range(desc.action_count))
        self.tables = tuple(_table(i, desc.tables[i]) for i in range(desc.table_count))
        self.profiles = tuple(_profile(i, desc.profiles[i]) for i in range(desc.profile_count))
        self.registers = tuple(_register(i, desc.registers[i]) for i in range(desc.register_count))
        self.counters = tuple(_counter(i, desc.counters[i]) for i in range(desc.counter_count))
        self.meters = tuple(_counter(i, desc.meters[i]) for i in range(desc.meter_count))
        self.digests = tuple(_digest(i, desc.digests[i]) for i in range(desc.digest_count))
        self.errors = _errors(desc)

    @classmethod
    def load(cls, shared_object: Path) -> Program:
        """Loads a compiled program.

        Raises:
            SwitchError: the file is not a compiled program, or has another version of the ABI.
        """
        try:
            return cls(ctypes.CDLL(str(shared_object)))
        except (OSError, AttributeError) as error:
            raise SwitchError(f"{shared_object} is no compiled P4 program: {error}") from error

    @property
    def address(self) -> int:
        """Of the descriptor."""
        return ctypes.cast(self._pointer, ctypes.c_void_p).value or 0

    def action(self, name: str) -> ActionLayout:
        """The action of that control-plane name (KeyError if there is none; so for all of these)."""
        return _by_name("action", self.actions, name)

    def table(self, name: str) -> TableLayout:
        """The table or value set of that name."""
        return _by_name("table", self.tables, name)

    def profile(self, name: str) -> ProfileLayout:
        """The action profile or selector of that name."""
        return _by_name("action profile", self.profiles, name)

    def register(self, name: str) -> RegisterLayout:
        """The register of that name."""
        return _by_name("register", self.registers, name)

    def counter(self, name: str) -> CounterLayout:
        """The indexed counter of that name."""
        return _by_name("counter", self.counters, name)

    def meter(self, name: str) -> CounterLayout:
        """The indexed meter of that name."""
        return _by_name("meter", self.meters, name)

    def digest(self, name: str) -> DigestLayout:
        """The digest of that name."""
        return _by_name("digest", self.digests, name)


def _text(raw: bytes | None) -> str:
    return raw.decode() if raw else ""


def _fields(pointer: Any, count: int) -> tuple[FieldLayout, ...]:
    return tuple(
        FieldLayout(_text(f.name), f.id, f.width, f.offset, MatchKind(f.match_kind), bool(f.order))
        for f in (pointer[i] for i in range(count))
    )


def _action(index: int, d: abi.ActionDesc) -> ActionLayout:
    return ActionLayout(index, _text(d.name), d.id, d.param_bytes, _fields(d.params, d.param_count))


def _indexes(pointer: Any, count: int) -> tuple[int, ...]:
    return tuple(int(pointer[i]) for i in range(count))


def _table(index: int, d: abi.TableDesc) -> TableLayout:
    return TableLayout(
        index=index,
        name=_text(d.name),
        id=d.id,
        flags=TableFlag(d.flags),
        size=d.size,
        key_bytes=d.key_bytes,
        keys=_fields(d.keys, d.key_count),
        actions=_indexes(d.actions, d.action_count),
        default_action=None if d.default_action == abi.NO_ACTION else d.default_action,
        profile=None if d.profile == abi.NONE else d.profile,
    )


def _profile(index: int, d: abi.ProfileDesc) -> ProfileLayout:
    actions = _indexes(d.actions, d.action_count)
    return ProfileLayout(index, _text(d.name), d.id, bool(d.is_selector), d.size, actions)


def _register(index: int, d: abi.RegisterDesc) -> RegisterLayout:
    return RegisterLayout(index, _text(d.name), d.id, d.width, d.count, d.cell_bytes, bool(d.order))


def _counter(index: int, d: abi.CounterDesc) -> CounterLayout:
    return CounterLayout(index, _text(d.name), d.id, Unit(d.unit), d.count)


def _digest(index: int, d: abi.DigestDesc) -> DigestLayout:
    return DigestLayout(index, _text(d.name), d.id, _fields(d.fields, d.field_count), d.packed_bytes)


def _errors(desc: abi.ProgramDesc) -> tuple[str, ...]:
    names: list[str] = []
    while desc.errors and desc.errors[len(names)]:
        names.append(desc.errors[len(names)].decode())
    return tuple(names)
