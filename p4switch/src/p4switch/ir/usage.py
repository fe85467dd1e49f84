"""Which tables, actions and registers of a program packets can meet; p4c drops the others, P4Info leaves them out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from p4switch.ir import expr as ir
from p4switch.ir.program import Program, Variable
from p4switch.ir.stmt import (
    ApplyTable,
    Assertion,
    Body,
    ChecksumGet,
    Clone,
    Hash,
    LogMessage,
    MarkToDrop,
    Random,
    Recirculate,
    RegisterRead,
    RegisterWrite,
    Resubmit,
    SendDigest,
    Truncate,
    UpdateChecksum,
    VerifyChecksum,
)
from p4switch.ir.walk import nodes

_EXTERN_FUNCTIONS = (
    Assertion,
    ChecksumGet,
    Clone,
    Hash,
    LogMessage,
    MarkToDrop,
    Random,
    Recirculate,
    Resubmit,
    SendDigest,
    Truncate,
    UpdateChecksum,
    VerifyChecksum,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Indexes into the program's lists.

    A table that is never applied is not used, nor an action that only such tables list, nor a register that is only
    read (and belongs to a control), and only into variables that nobody looks at.
    """

    tables: frozenset[int]
    actions: frozenset[int]
    registers: frozenset[int]
    calls_externs: bool
    """Whether a control calls an extern function."""


def usage(program: Program) -> Usage:
    """Go through all blocks of a program."""
    tables: set[int] = set()
    dead_reads: set[int] = set()
    live: set[int] = set()
    for body, variables in _bodies(program):
        mentions = Counter(n.name for n in nodes(body) if isinstance(n, ir.VarRef))
        local = {v.name for v in variables}
        for n in nodes(body):
            if isinstance(n, ApplyTable):
                tables.add(n.table)
            elif isinstance(n, RegisterWrite):
                live.add(n.register)
            elif isinstance(n, RegisterRead):
                root = n.target
                while isinstance(root, ir.Member | ir.Element):
                    root = root.base
                dead = isinstance(root, ir.VarRef) and root.name in local and mentions[root.name] == 1
                (dead_reads if dead else live).add(n.register)
    listed = {a.action for t in program.tables for a in t.actions}
    shown = {a.action for t in program.tables if t.index in tables for a in t.actions}
    return Usage(
        tables=frozenset(tables),
        actions=frozenset(a.index for a in program.actions if a.index in shown or a.index not in listed),
        calls_externs=any(isinstance(n, _EXTERN_FUNCTIONS) for b in program.blocks() for n in nodes(b.body)),
        registers=frozenset(
            r.index for r in program.registers if "." not in r.name or r.index in live or r.index not in dead_reads
        ),
    )


def _bodies(program: Program) -> list[tuple[Body, tuple[Variable, ...]]]:
    states = [(s.body, t.parser.variables) for t in program.threads for s in t.parser.states]
    return states + [(b.body, b.variables) for b in program.blocks()]
