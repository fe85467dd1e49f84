"""The packet's state as a C struct: where its variables lie, and how a copy of a packet gets its own."""

from __future__ import annotations

from p4switch.codegen.c_expressions import c_place
from p4switch.codegen.c_unit import CUnit
from p4switch.codegen.layout import Place
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Thread


def state_name(thread: Thread) -> str:
    """C name of the struct that a thread's packet is."""
    return f"{thread.name}_state" if thread.name else "state"


def packet_roots(unit: CUnit, thread: Thread, pointer: str) -> None:
    """Bind the packet's variables to the state that `pointer` points to."""
    unit.roots[thread.headers.name] = Place(f"{pointer}->headers_z", f"{pointer}->headers_f")
    unit.roots[thread.metadata.name] = Place(f"{pointer}->metadata_z", f"{pointer}->metadata_f")
    for v in thread.intrinsic:
        unit.roots[v.name] = Place(f"{pointer}->{v.name}", "", foreign=True)
    for v in thread.extracted:
        unit.roots[v.name] = Place(f"{pointer}->{v.name}_z", f"{pointer}->{v.name}_f")


def state_struct(unit: CUnit, thread: Thread) -> list[str]:
    """The struct: intrinsic metadata first, then what starts as zero, then header fields."""
    headers, metadata = thread.headers.type, thread.metadata.type
    lines = [f"struct {state_name(thread)} {{"]
    lines += [f"    struct ps_{v.name} {v.name};" for v in thread.intrinsic]
    parts = [
        (unit.layout.z_type(metadata), "metadata_z", "_Alignas(16) "),
        ("uint8_t", "metadata_end[0]", "_Alignas(8) "),
        (unit.layout.z_type(headers), "headers_z", "_Alignas(16) "),
        *((unit.layout.z_type(v.type), f"{v.name}_z", "") for v in thread.extracted),
        ("uint8_t", "zero_end[0]", "_Alignas(8) "),
        (unit.layout.f_type(metadata), "metadata_f", "_Alignas(16) "),
        (unit.layout.f_type(headers), "headers_f", "_Alignas(16) "),
        *((unit.layout.f_type(v.type), f"{v.name}_f", "_Alignas(16) ") for v in thread.extracted),
    ]
    lines += [f"    {align}{t} {name};" for t, name, align in parts if t is not None]
    lines += ["} __attribute__((aligned(64)));"]
    return lines


def state_copies(unit: CUnit, thread: Thread) -> list[str]:
    """Copies of the first thread's state, for architectures whose copies of a packet share it."""
    state = state_name(thread)
    lines = [
        "static void copy_phv(void *to, const void *from) {",
        f"    struct {state} *d = to;",
        f"    const struct {state} *s = from;",
    ]
    lines.append(f"    memcpy(d, s, offsetof(struct {state}, zero_end));")
    if unit.layout.f_type(thread.metadata.type) is not None:
        lines.append("    d->metadata_f = s->metadata_f;")
    for z, f in _header_instances(unit, thread, ir.VarRef(thread.headers.name, thread.headers.type)):
        lines.append(f"    if ({z}) d->{f} = s->{f};")
    lines += ["}", ""]
    if unit.program.field_lists:
        lines += [
            "static void copy_field_list(void *to, const void *from, int32_t list) {",
            f"    struct {state} *d = to;",
            f"    const struct {state} *s = from;",
            "    switch (list) {",
        ]
        for fields in unit.program.field_lists:
            lines.append(f"    case {fields.index}:")
            for place in fields.fields:
                assert isinstance(place, ir.VarRef | ir.Member | ir.Element)
                packet_roots(unit, thread, "d")
                target = c_place(unit, place).z
                packet_roots(unit, thread, "s")
                lines.append(f"        {target} = {c_place(unit, place).z};")
            lines.append("        break;")
        lines += ["    default: break;", "    }", "}", ""]
    packet_roots(unit, thread, "p")
    return lines


def _header_instances(unit: CUnit, thread: Thread, e: ir.LValue) -> list[tuple[str, str]]:
    """Validity and fields of every header inside the packet's headers, as members of the state."""
    packet_roots(unit, thread, "s")
    out: list[tuple[str, str]] = []
    _gather(unit, e, out)
    packet_roots(unit, thread, "p")
    return out


def _gather(unit: CUnit, e: ir.LValue, out: list[tuple[str, str]]) -> None:
    t = e.type
    if isinstance(t, irt.HeaderType):
        if unit.layout.f_type(t) is not None:
            place = c_place(unit, e)
            out.append((place.z, place.f.removeprefix("s->")))
    elif isinstance(t, irt.StackType):
        for i in range(t.size):
            _gather(unit, ir.Element(e, ir.Const(i, irt.Bits(32)), t.element), out)
    elif isinstance(t, irt.StructType | irt.UnionType):
        for f in t.fields:
            _gather(unit, ir.Member(e, f.name, f.type), out)
