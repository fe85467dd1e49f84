"""Entry of the lowering: finds `main` and its architecture, elaborates instances, lowers whole parsers and controls."""

from __future__ import annotations

from typing import Any

from p4switch.arch import ARCHITECTURES
from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import Env, Instance, Known, qualified_name
from p4switch.frontend.lower.parsers import ParserLowering
from p4switch.frontend.pipeline import CheckedProgram
from p4switch.frontend.source import AbortError
from p4switch.frontend.types import TBlock, TEnum, TNew, TStruct
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import (
    ACCEPT,
    Block,
    ControllerHeader,
    NewType,
    Parser,
    ParserState,
    Program,
    SelectCase,
    SerializableEnum,
    Transition,
)
from p4switch.ir.stmt import Labelled


class ProgramLowering(ParserLowering):
    """Lowers a whole checked program."""

    def __init__(self, checked: CheckedProgram, wanted: str | None = None) -> None:
        super().__init__(checked.checker, checked.reporter)
        self.program = checked.program
        self.wanted_architecture = wanted

    # ---------------------------------------------------------------- instances

    def make_block(self, decl: ast.ParserDecl | ast.ControlDecl, callee: Callee, name: str) -> Instance:
        env = Env(self.globals, {v: self.concrete(t) for v, t in callee.bindings.items()}, prefix=name)
        for p, argument in callee.arguments:
            if argument is None:
                continue
            env.bind(p, self._constructor_argument(p, argument, name))
        with self.within(env):
            for local in decl.locals:
                self._local(local)
        return Instance("control" if isinstance(decl, ast.ControlDecl) else "parser", name, decl=decl, env=env)

    def _constructor_argument(self, p: ast.Parameter, argument: ast.Expr, name: str) -> Instance | Known:
        instance = self.instance_of(argument)
        if instance is not None:
            return instance
        if isinstance(argument, ast.Call) and isinstance(argument.type, TBlock):
            return self.construct(
                argument.target,
                ast.Instantiation(at=argument.at, name=p.name, ref=ast.BaseType(argument.at, "_"), arguments=[]),
                f"{name}.{p.name}",
            )
        value = self.known(argument)
        if value is None:
            raise self.unsupported(argument.at, "this constructor argument")
        return Known(value, self.concrete(argument.type))

    def construct(self, callee: Callee, decl: ast.Declaration, name: str) -> Instance:
        """Make an instance of an extern, control or parser."""
        assert callee.block is not None
        block = callee.block.decl
        if isinstance(block, ast.ExternDecl):
            return self.make_extern(decl, callee, name)
        if isinstance(block, ast.PackageDecl):  # the architecture looks into those that it knows
            return Instance("package", name, decl=decl)
        return self.make_block(block, callee, name)

    def _local(self, decl: ast.Declaration) -> None:
        """A declaration inside a parser or control, elaborated once for each instance."""
        name = qualified_name(self.env.prefix, decl)
        if isinstance(decl, ast.VariableDecl):
            self.env.bind(decl, self.new_variable(decl.name, self.type(self.concrete(decl.type), decl.at)))
        elif isinstance(decl, ast.Instantiation):
            self.env.bind(decl, self.construct(decl.target, decl, name))
        elif isinstance(decl, ast.ActionDecl):
            self.env.bind(decl, Instance("action", name, decl=decl))
        elif isinstance(decl, ast.TableDecl):
            self.env.bind(decl, self.make_table(decl, name))
        elif isinstance(decl, ast.ValueSetDecl):
            self.env.bind(decl, self.make_value_set(decl, name))

    # ---------------------------------------------------------------- blocks

    def lower(self) -> Program:
        """The program in IR; AbortError after a reported problem."""
        main = self._main()
        for decl in self.program.declarations:
            if isinstance(decl, ast.Instantiation) and decl is not main:
                self.globals.bind(decl, self.construct(decl.target, decl, qualified_name("", decl)))
        return self.architecture.program(main)

    def _main(self) -> ast.Instantiation:
        decl = self.checker.scopes[0].get("main")
        end = max(0, len(self.reporter.source.text.rstrip()) - 1)
        if not isinstance(decl, ast.Instantiation):
            raise self.reporter.fail(end, "the program has no 'main'")
        architecture = ARCHITECTURES.get(decl.type.decl.name) if isinstance(decl.type, TBlock) else None
        if architecture is None:
            raise self.unsupported(decl.at, f"package {decl.type}; known packages are {', '.join(ARCHITECTURES)}")
        if self.wanted_architecture not in (None, architecture.name):
            raise self.reporter.fail(
                decl.at, f"this program is for {architecture.name}, and {self.wanted_architecture} is asked for"
            )
        self.architecture = architecture(self)
        return decl

    def _begin(self, label: str) -> None:
        self.variables = []
        self.frames = []
        self.loops = []
        self.exit_flag = None
        self.block_label = self.fresh_name(label)

    def _instance(self, block: tuple[Callee, ast.Expr]) -> Instance:
        callee, argument = block
        if isinstance(argument, ast.Name):
            found = self.instance_of(argument)
            if found is not None:
                return found
        return self.make_block(callee.decl, callee, callee.decl.name)

    def _bind(self, instance: Instance, values: tuple[ir.VarRef | None, ...]) -> Env:
        env = Env(instance.env)
        for p, value in zip(instance.decl.parameters, values, strict=False):
            env.bind(p, value if value is not None else Instance("packet", "packet"))
        return env

    def lower_parser(self, block: tuple[Callee, ast.Expr], values: tuple[ir.VarRef, ...]) -> Parser:
        """A parser; `values` are bound to its parameters behind the packet. It may leave out parameters at the end."""
        self._begin("parsed")
        self.states = []
        instance = self._instance(block)
        env = self._bind(instance, (None, *values))
        with self.body() as first, self.within(env):
            self.initialise_locals(instance.decl)
        self.out = []
        self.parser_states(instance.decl, env, "", ACCEPT)
        states = list(self.states)
        if first:
            start = states[0]
            states[0] = type(start)(start.name, (), start.transition, start.location)
            states = self._with_prologue(start, tuple(first), states)
        return Parser(instance.name, tuple(self.variables), tuple(states))

    def _with_prologue(self, start: Any, first: tuple[Any, ...], states: list[Any]) -> list[Any]:
        """A state before `start` that runs the initialisers once (start may be entered again)."""
        entry = ParserState(
            self.fresh_name("entry"), first, Transition((), (SelectCase((), start.name),)), start.location
        )
        return [entry, start, *states[1:]]

    def lower_control(self, block: tuple[Callee, ast.Expr], values: tuple[ir.VarRef | None, ...]) -> Block:
        """A control, as lower_parser; None is bound to the packet."""
        self._begin("end")
        instance = self._instance(block)
        env = self._bind(instance, values)
        with self.body() as body, self.within(env):
            self.initialise_locals(instance.decl)
            self.statements(instance.decl.body.body)
        return Block(instance.name, tuple(self.variables), (Labelled(self.block_label, tuple(body)),))

    # ---------------------------------------------------------------- for the control plane

    def controller_headers(self) -> tuple[ControllerHeader, ...]:
        out: list[ControllerHeader] = []
        for decl in self.program.declarations:
            if not isinstance(decl, ast.StructDecl) or decl.kind != "header" or decl.type_parameters:
                continue
            for a in self.annotations(decl.annotations):
                if a.name == "controller_header" and a.body:
                    header = self.type(TStruct(decl), decl.at)
                    assert isinstance(header, irt.HeaderType)
                    out.append(ControllerHeader(str(a.body[0]), header, header.annotations))
        return tuple(out)

    def named_types(self) -> tuple[tuple[NewType, ...], tuple[SerializableEnum, ...]]:
        new_types: list[NewType] = []
        enums: list[SerializableEnum] = []
        for decl in self.program.declarations:
            if isinstance(decl, ast.TypedefDecl) and isinstance(decl.type, TNew):
                representation = self.type(decl.type, decl.at)
                assert isinstance(representation, irt.Bits | irt.Bool | irt.EnumType)
                inner = decl.type.underlying
                underlying = inner.decl.name if isinstance(inner, TNew | TEnum) else ""
                new_types.append(NewType(decl.name, underlying, representation, self.annotations(decl.annotations)))
            elif isinstance(decl, ast.EnumDecl) and isinstance(decl.type, TEnum) and decl.type.underlying is not None:
                bits = irt.Bits(decl.type.underlying.width, decl.type.underlying.signed)
                enums.append(
                    SerializableEnum(decl.name, bits, tuple(decl.values.items()), self.annotations(decl.annotations))
                )
        return tuple(new_types), tuple(enums)


def lower(checked: CheckedProgram, architecture: str | None = None) -> Program:
    """Lower a checked program to IR. CompileError when something in it is not supported, or it is not for
    `architecture` (None: any)."""
    lowering = ProgramLowering(checked, architecture)
    try:
        program = lowering.lower()
    except AbortError:
        checked.reporter.raise_if_errors()
        raise
    checked.reporter.raise_if_errors()
    return program
