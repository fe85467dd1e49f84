"""Facts about a program that the runtime can use: what blocks read."""

from __future__ import annotations

from p4switch.ir import expr as ir
from p4switch.ir.program import Block, Program
from p4switch.ir.stmt import Assign
from p4switch.ir.walk import nodes

QUEUE_FIELDS = frozenset({"enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth", "egress_global_timestamp"})


def reads_metadata(program: Program, block: Block) -> bool:
    """Whether a block mentions user or standard metadata."""
    names = {program.metadata.name, program.standard_metadata.name}
    return any(isinstance(n, ir.VarRef) and n.name in names for n in nodes(block.body))


def metadata_fields(program: Program, block: Block) -> set[tuple[str, str]] | None:
    """Metadata fields that a block mentions, as (variable, field); None when it mentions a whole metadata variable."""
    names = {program.metadata.name, program.standard_metadata.name}
    found: set[tuple[str, str]] = set()
    by_field: set[int] = set()
    for n in nodes(block.body):
        if isinstance(n, ir.Member) and isinstance(n.base, ir.VarRef) and n.base.name in names:
            by_field.add(id(n.base))
            found.add((n.base.name, n.field))
        elif isinstance(n, ir.VarRef) and n.name in names and id(n) not in by_field:
            return None
    return found


def depends_on_egress(program: Program, block: Block) -> bool:
    """Whether a block mentions metadata that egress mentions too, or that differs from copy to copy by itself."""
    read, written = metadata_fields(program, block), metadata_fields(program, program.egress)
    if read is None or any(variable == program.standard_metadata.name for variable, _ in read):
        return True
    return bool(read) and (written is None or bool(read & written))


def reads_queue_times(program: Program) -> bool:
    """Whether ingress or egress mentions queueing fields or the egress timestamp, or copies the metadata whole."""
    standard = program.standard_metadata.name
    for block in (program.ingress, program.egress):
        for n in nodes(block.body):
            if isinstance(n, Assign) and isinstance(n.value, ir.VarRef) and n.value.name == standard:
                return True
            of_standard = isinstance(n, ir.Member) and isinstance(n.base, ir.VarRef) and n.base.name == standard
            if of_standard and n.field in QUEUE_FIELDS:
                return True
    return any(e.field in QUEUE_FIELDS for fl in program.field_lists for e in fl.fields if isinstance(e, ir.Member))
