"""Facts about a program that the runtime can use: what blocks read."""

from __future__ import annotations

from p4switch.ir import expr as ir
from p4switch.ir.program import Block, Parser, Program, Thread
from p4switch.ir.stmt import Assign
from p4switch.ir.walk import nodes

QUEUE_FIELDS = frozenset({"enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth", "egress_global_timestamp"})
TNA_QUEUE_FIELDS = frozenset({"enq_qdepth", "enq_tstamp", "deq_qdepth", "deq_timedelta"})


def metadata_names(thread: Thread) -> frozenset[str]:
    """Variables of the packet that are not its headers."""
    return frozenset({thread.metadata.name, *(v.name for v in thread.intrinsic)})


def reads_metadata(thread: Thread, block: Block) -> bool:
    """Whether a block mentions user or intrinsic metadata."""
    names = metadata_names(thread)
    return any(isinstance(n, ir.VarRef) and n.name in names for n in nodes(block.body))


def metadata_fields(thread: Thread, block: Block) -> set[tuple[str, str]] | None:
    """Metadata fields that a block mentions, as (variable, field); None when it mentions a whole metadata variable."""
    names = metadata_names(thread)
    found: set[tuple[str, str]] = set()
    by_field: set[int] = set()
    for n in nodes(block.body):
        if isinstance(n, ir.Member) and isinstance(n.base, ir.VarRef) and n.base.name in names:
            by_field.add(id(n.base))
            found.add((n.base.name, n.field))
        elif isinstance(n, ir.VarRef) and n.name in names and id(n) not in by_field:
            return None
    return found


def depends_on_egress(thread: Thread, block: Block) -> bool:
    """Whether a block mentions metadata that egress mentions too, or that differs from copy to copy by itself."""
    read, written = metadata_fields(thread, block), metadata_fields(thread, thread.control("egress"))
    intrinsic = {v.name for v in thread.intrinsic}
    if read is None or any(variable in intrinsic for variable, _ in read):
        return True
    return bool(read) and (written is None or bool(read & written))


def reads_queue_times(program: Program, thread: Thread) -> bool:
    """Whether ingress or egress mentions queueing fields or the egress timestamp, or copies the metadata whole."""
    return _mentions_intrinsic(program, thread, QUEUE_FIELDS)


def _mentions_intrinsic(program: Program, thread: Thread, fields: frozenset[str]) -> bool:
    names = frozenset(v.name for v in thread.intrinsic)
    return _looks_at((thread.control("ingress"), thread.control("egress")), names, fields) or any(
        e.field in fields for fl in program.field_lists for e in fl.fields if isinstance(e, ir.Member)
    )


def _looks_at(blocks: tuple[Block | Parser, ...], names: frozenset[str], fields: frozenset[str]) -> bool:
    """Whether blocks mention one of the fields of these variables, or copy one of them whole."""
    for n in nodes(blocks):
        if isinstance(n, Assign) and isinstance(n.value, ir.VarRef) and n.value.name in names:
            return True
        if isinstance(n, ir.Member) and isinstance(n.base, ir.VarRef) and n.base.name in names and n.field in fields:
            return True
    return False


def waits_for_ports(program: Program, thread: Thread) -> bool:
    """Whether the program looks at queues, or (v1model) writes the priority that orders them."""
    if program.architecture == "tna":
        egress = program.threads[1]
        own = frozenset(v.name for v in egress.extracted)
        return _looks_at((egress.parser, *egress.blocks()), own, TNA_QUEUE_FIELDS)
    return _mentions_intrinsic(program, thread, QUEUE_FIELDS - {"egress_global_timestamp"} | {"priority"})


def mentions(block: Block, variable: str, field: str) -> bool:
    """Whether a block mentions a field of a variable, or the variable as a whole."""
    by_field = {
        id(n.base): n.field
        for n in nodes(block.body)
        if isinstance(n, ir.Member) and isinstance(n.base, ir.VarRef) and n.base.name == variable
    }
    return any(
        by_field.get(id(n), field) == field
        for n in nodes(block.body)
        if isinstance(n, ir.VarRef) and n.name == variable
    )
