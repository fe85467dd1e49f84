"""How IR values look in C.

A type has up to two C types: `z`, what must start as zero (scalars, validity bits, next indexes), and `f`, header
fields, which mean nothing until the header is valid. A place in the program is then a pair of C lvalues. Stacks have
one element more than declared: the target of indexes out of range.
"""

from __future__ import annotations

from dataclasses import dataclass

from p4switch.ir import types as irt

WIDE_FROM_BITS = 128
"""Numbers wider than this are byte arrays."""


@dataclass(frozen=True, slots=True)
class Place:
    """C lvalues of a place: `z` and `f` parts of an aggregate, or the one lvalue of a scalar (in `z`)."""

    z: str
    f: str
    foreign: bool = False
    """A struct that the runtime declares: its fields have their own names there."""


def bytes_of(width: int) -> int:
    """Whole bytes that hold `width` bits (at least one)."""
    return max(1, (width + 7) // 8)


def is_wide(t: irt.Type) -> bool:
    """Whether the type is kept as a byte array."""
    return isinstance(t, irt.Bits) and t.width > WIDE_FROM_BITS


def width(t: irt.Type) -> int:
    """Bits of a scalar in C."""
    return irt.width_of(t)


def storage_bytes(t: irt.Type) -> int:
    """Bytes of a scalar in memory: 1, 2, 4, 8, 16, or whole bytes above 128 bits."""
    bits = irt.width_of(t)
    for size in (1, 2, 4, 8, 16):
        if bits <= size * 8:
            return size
    return bytes_of(bits)


class Layout:
    """C type definitions of a program, written on demand in order of dependence."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._z: dict[str, str | None] = {}
        self._f: dict[str, str | None] = {}
        self._numbers: dict[str, int] = {}
        self._wide: set[int] = set()
        self._resizes: set[tuple[int, int]] = set()
        self._varbits: set[int] = set()

    # ---------------------------------------------------------------- names

    def type_name(self, t: irt.Type) -> str:
        """A unique C name for a nominal type."""
        return f"t{self._numbers.setdefault(str(t), len(self._numbers))}"

    # ---------------------------------------------------------------- scalars

    def wide(self, size: int) -> str:
        """The wide type of `size` bytes."""
        if size not in self._wide:
            self._wide.add(size)
            self.lines.append(f"PS_WIDE({size})")
        return f"W{size}"

    def resize(self, source: int, target: int) -> str:
        """The conversion between two wide types."""
        self.wide(source)
        self.wide(target)
        if (source, target) not in self._resizes:
            self._resizes.add((source, target))
            self.lines.append(f"PS_WIDE_RESIZE({source}, {target})")
        return f"W{source}_to_W{target}"

    def scalar(self, t: irt.Type) -> str:
        """C type of a scalar or varbit."""
        if isinstance(t, irt.Varbits):
            size = bytes_of(t.max_width)
            if size not in self._varbits:
                self._varbits.add(size)
                self.lines.append(f"typedef struct {{ uint32_t bits; uint8_t b[{size}]; }} V{size};")
            return f"V{size}"
        bits = irt.width_of(t)
        for size in (8, 16, 32, 64):
            if bits <= size:
                return f"uint{size}_t"
        return "u128" if bits <= WIDE_FROM_BITS else self.wide(bytes_of(bits))

    # ---------------------------------------------------------------- aggregates

    def z_type(self, t: irt.Type) -> str | None:
        """C type of the zero-initialised part, None if there is none."""
        if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
            return self.scalar(t)
        if isinstance(t, irt.HeaderType):
            return "uint8_t"
        key = str(t)
        if key not in self._z:
            self._z[key] = self._define_z(t)
        return self._z[key]

    def f_type(self, t: irt.Type) -> str | None:
        """C type of the header fields inside, None if there are none."""
        if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
            return None
        key = str(t)
        if key not in self._f:
            self._f[key] = self._define_f(t)
        return self._f[key]

    def _define(self, name: str, members: list[str]) -> str | None:
        if not members:
            return None
        self.lines.append(f"typedef struct {{ {' '.join(members)} }} {name};")
        return name

    def _define_z(self, t: irt.StructType | irt.UnionType | irt.StackType) -> str | None:
        if isinstance(t, irt.StackType):
            return self._define(
                f"{self.type_name(t.element)}_{t.size}_z",
                ["uint32_t next;", f"{self.z_type(t.element)} e[{t.size + 1}];"],
            )
        members = [f"{part} {member(i)};" for i, f in enumerate(t.fields) if (part := self.z_type(f.type)) is not None]
        return self._define(f"{self.type_name(t)}_z", members)

    def _define_f(self, t: irt.StructType | irt.UnionType | irt.StackType | irt.HeaderType) -> str | None:
        if isinstance(t, irt.StackType):
            element = self.f_type(t.element)
            return (
                None
                if element is None
                else self._define(f"{self.type_name(t.element)}_{t.size}_f", [f"{element} e[{t.size + 1}];"])
            )
        if isinstance(t, irt.HeaderType):
            return self._define(
                f"{self.type_name(t)}_f",
                [f"{self.header_field(f.type)} {member(i)};" for i, f in enumerate(t.fields)],
            )
        members = [f"{part} {member(i)};" for i, f in enumerate(t.fields) if (part := self.f_type(f.type)) is not None]
        return self._define(f"{self.type_name(t)}_f", members)

    def header_field(self, t: irt.Type) -> str:
        """C type of a header's field: structs inside a header are all z."""
        part = self.z_type(t)
        return part if part is not None else "struct {}"


def member(position: int) -> str:
    """C name of the field at this position in its type."""
    return f"m{position}"


def member_of(t: irt.Type, name: str) -> str:
    """C name of the field of that name."""
    assert isinstance(t, irt.HeaderType | irt.StructType | irt.UnionType)
    return member(t.fields.index(t.field(name)))


def leaves(t: irt.Type, path: str = "") -> list[tuple[str, irt.Type]]:
    """Scalars and varbits of a header or header-like struct in wire order, with their C member path."""
    if isinstance(t, irt.HeaderType | irt.StructType):
        return [leaf for i, f in enumerate(t.fields) for leaf in leaves(f.type, f"{path}.{member(i)}")]
    return [(path, t)]
