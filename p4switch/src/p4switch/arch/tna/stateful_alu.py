"""The limits of a Tofino's stateful ALU, as errors: a program that runs here should not fail on the chip for them.

A register lies in one stage, which a packet passes once. Its ALU holds four instructions. Each reads one cell of up to
two numbers and at most two fields of the packet, compares twice, and adds or combines bits. It neither multiplies nor
shifts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.lower.lowering import Lowering
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp
from p4switch.ir.program import Thread
from p4switch.ir.walk import nodes

ACTIONS_MAX = 4
CONDITIONS_MAX = 2
PACKET_FIELDS_MAX = 2
PARAMETERS_MAX = 4
MIRROR_HEADER_BYTES_MAX = 32
CELL_WIDTHS = (1, 8, 16, 32)
PAIR_WIDTHS = (8, 16, 32)

_OPERATORS = frozenset(
    {BinaryOp.ADD, BinaryOp.SUB, BinaryOp.SAT_ADD, BinaryOp.SAT_SUB, BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR}
    | {BinaryOp.LAND, BinaryOp.LOR}
    | ir.COMPARISONS
)
_SAME_TEST = {
    BinaryOp.EQ: ("==", False),
    BinaryOp.NE: ("==", False),
    BinaryOp.LT: ("<", False),
    BinaryOp.GE: ("<", False),
    BinaryOp.GT: ("<", True),
    BinaryOp.LE: ("<", True),
}
"""Which test an operator is, and whether its operands change places."""


def cell_problem(element: irt.Type) -> str:
    """Why a register cannot have such cells; empty when it can."""
    if isinstance(element, irt.Bits) and element.width in CELL_WIDTHS:
        return ""
    if isinstance(element, irt.StructType) and 1 <= len(element.fields) <= 2:
        widths = {f.type.width if isinstance(f.type, irt.Bits) else 0 for f in element.fields}
        if len(widths) == 1 and widths <= set(PAIR_WIDTHS):
            return ""
    return f"a cell is 1, 8, 16 or 32 bits, or a struct of up to two numbers of 8, 16 or 32 bits, not {element}"


def check_action(low: Lowering, decl: ast.Instantiation, body: s.Body, own: set[str], parameters: int) -> None:
    """Refuse a register action that asks more of its ALU than that has. `own`: the action's variables."""
    name = f"register action {decl.name}"
    tests: set[tuple[Any, ...]] = set()
    fields: set[ir.Expr] = set()
    for n in nodes(body):
        if isinstance(n, ir.Binary):
            if n.op not in _OPERATORS:
                raise low.reporter.fail(decl.at, f"{name}: a stateful ALU has no operator '{n.op.value}'")
            if n.op in ir.COMPARISONS:
                kind, swapped = _SAME_TEST[n.op]
                tests.add((kind, n.right, n.left) if swapped else (kind, n.left, n.right))
        elif isinstance(n, s.Assign | s.AssignSlice) and _root(n.target) not in own:
            raise low.reporter.fail(decl.at, f"{name} can only write the cell and its result")
    for n in _places(body):
        if _root(n) not in own:
            fields.add(n)
    if len(tests) > CONDITIONS_MAX:
        raise low.reporter.fail(decl.at, f"{name} has {len(tests)} conditions; a stateful ALU compares twice")
    if len(fields) > PACKET_FIELDS_MAX:
        raise low.reporter.fail(
            decl.at, f"{name} reads {len(fields)} fields of the packet; a stateful ALU has inputs for two"
        )
    if parameters > PARAMETERS_MAX:
        raise low.reporter.fail(decl.at, f"{name} reads more than {PARAMETERS_MAX} register parameters")


def _root(e: Any) -> str:
    while isinstance(e, ir.Member | ir.Element):
        e = e.base
    return e.name if isinstance(e, ir.VarRef) else ""


def _places(value: Any) -> list[Any]:
    """Places that a value mentions, each as a whole."""
    inner: set[int] = set()
    found = []
    for n in nodes(value):
        if isinstance(n, ir.Member | ir.Element):
            inner.add(id(n.base))
        if isinstance(n, ir.VarRef | ir.Member | ir.Element) and id(n) not in inner:
            found.append(n)
    return found


def check_access(low: Lowering, threads: tuple[Thread, ...], offsets: Mapping[int, int]) -> None:
    """Refuse a register that one packet may meet twice, or at ingress and at egress.

    `offsets`: where in the source the accesses are, by the identity of the statement.
    """
    owner: dict[int, str] = {}
    for thread in threads:
        walk = _Walk(low, offsets)
        for block in thread.blocks():
            walk.body(block.body, frozenset())
        for register in walk.met:
            if owner.setdefault(register, thread.name) != thread.name:
                name = low.registers[register].name
                raise low.reporter.fail(walk.met[register], f"register {name} is used at ingress and at egress")


class _Walk:
    """Follows every way through a block; a set of registers is what a packet has met on its way, None that it left."""

    def __init__(self, low: Lowering, offsets: Mapping[int, int]) -> None:
        self.low = low
        self.offsets = offsets
        self.left: dict[str, list[frozenset[int]]] = {}
        self.met: dict[int, int] = {}

    def body(self, body: s.Body, met: frozenset[int] | None) -> frozenset[int] | None:
        for statement in body:
            if met is None:
                return None
            met = self.statement(statement, met)
        return met

    def statement(self, st: s.Stmt, met: frozenset[int]) -> frozenset[int] | None:
        if isinstance(st, s.RegisterAccess):
            return self._access(st, met)
        if isinstance(st, s.If):
            return _either([self.body(st.then, met), self.body(st.otherwise, met)])
        if isinstance(st, s.Switch):
            return _either([*(self.body(c.body, met) for c in st.cases), self.body(st.default, met)])
        if isinstance(st, s.ApplyTable):
            return _either([met, *(self.body(a.body, met) for a in st.arms)])
        if isinstance(st, s.Labelled | s.Loop):
            end = self.body(st.body, met)
            return _either([end, *self.left.pop(st.label, [])])
        if isinstance(st, s.Leave):
            self.left.setdefault(st.label, []).append(met)
            return None
        return met

    def _access(self, st: s.RegisterAccess, met: frozenset[int]) -> frozenset[int]:
        register = self.low.registers[st.register]
        at = self.offsets[id(st)]
        if st.register in met:
            raise self.low.reporter.fail(
                at, f"register {register.name} can be accessed twice by one packet; a packet passes its stage once"
            )
        self.met.setdefault(st.register, at)
        return met | {st.register}


def _either(ends: list[frozenset[int] | None]) -> frozenset[int] | None:
    reached = [e for e in ends if e is not None]
    return frozenset().union(*reached) if reached else None
