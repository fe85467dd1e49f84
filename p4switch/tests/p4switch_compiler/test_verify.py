"""The IR verifier finds broken IR."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p4switch.compiler import compile_to_ir
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Block, Program
from p4switch.ir.stmt import Advance, Assign, AssignSlice, Emit, If, Leave, Stmt
from p4switch.ir.verify import VerifyError, verify
from p4switch_compiler.programs import program

BIT8, BIT16 = irt.Bits(8), irt.Bits(16)


@pytest.fixture
def sound(tmp_path: Path) -> Program:
    path = tmp_path / "a.p4"
    path.write_text(program("h.d.a = 1;"))
    return compile_to_ir(path)[0]


def with_statement(p: Program, statement: Stmt) -> Program:
    (thread,) = p.threads
    ingress = thread.control("ingress")
    broken = Block(ingress.name, ingress.variables, (statement,))
    controls = tuple((name, broken if name == "ingress" else block) for name, block in thread.controls)
    return replace(p, threads=(replace(thread, controls=controls),))


def test_sound_program_passes(sound: Program) -> None:
    verify(sound)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda h: Assign(ir.VarRef("nobody", BIT8), ir.Const(1, BIT8)), "not declared"),
        (lambda h: Assign(h, h), None),
        (lambda h: Leave("nowhere"), "not around it"),
        (lambda h: If(ir.Const(1, BIT8), (), ()), "truth value"),
        (lambda h: Advance(ir.Const(8, irt.Bits(32))), "outside of the parser"),
        (lambda h: Emit(h), "Emit of"),
        (lambda h: Assign(h, ir.Const(1, BIT8)), "assignment of"),
        (lambda h: AssignSlice(field(h), 8, 1, ir.Const(1, BIT8)), "slice"),
        (lambda h: Assign(field(h), ir.Const(256, BIT8)), "does not fit"),
        (lambda h: Assign(field(h), ir.Binary(ir.BinaryOp.ADD, field(h), ir.Const(1, BIT16), BIT8)), "'+' of"),
        (lambda h: Assign(field(h), ir.Slice(field(h), 8, 1, BIT8)), "slice [8:1]"),
    ],
)
def test_broken_rules_are_named(sound: Program, make, message: str | None) -> None:
    broken = with_statement(sound, make(ir.VarRef("hdr", sound.threads[0].headers.type)))
    if message is None:
        verify(broken)
        return
    with pytest.raises(VerifyError) as caught:
        verify(broken)
    assert message in str(caught.value)


def field(headers: ir.VarRef) -> ir.Member:
    """hdr.d.a."""
    t = headers.type
    assert isinstance(t, irt.StructType)
    header = t.field("d").type
    return ir.Member(ir.Member(headers, "d", header), "a", BIT8)
