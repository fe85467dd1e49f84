"""Lowering of calls: functions, actions, controls inlined with explicit copy-in and copy-out; tables applied."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import TRUE, Env, Instance, Known
from p4switch.frontend.lower.expressions import is_scalar
from p4switch.frontend.lower.objects import ObjectLowering
from p4switch.frontend.types import BOOL, TBits, TEnum, TNew
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.stmt import (
    ActionArm,
    ApplyTable,
    Assign,
    AssignSlice,
    If,
    Labelled,
    Leave,
    SetValidity,
    ShiftStack,
)

MAX_INLINE_DEPTH = 64


@dataclass(slots=True)
class CopyOut:
    """After the call: target (a slice of it) = source."""

    target: ir.LValue
    source: ir.VarRef
    bounds: tuple[int, int] | None = None


@dataclass(slots=True)
class Frame:
    """One inlined call: where return goes, what is copied out afterwards."""

    label: str
    result: ir.VarRef | None = None
    copy_outs: list[CopyOut] = field(default_factory=list)
    exited: bool = False
    is_action: bool = False


@dataclass(slots=True)
class LoopFrame:
    """Labels of the innermost loop."""

    leave: str
    following: str


class CallLowering(ObjectLowering):
    """Calls of everything but externs, which the next layer adds."""

    def __init__(self, checker: Any, reporter: Any) -> None:
        super().__init__(checker, reporter)
        self.frames: list[Frame] = []
        self.block_label = "done"
        self.exit_flag: ir.VarRef | None = None
        self.loops: list[LoopFrame] = []

    # ---------------------------------------------------------------- provided by later layers

    def statements(self, body: list[ast.Statement]) -> None:
        """Lower statements."""
        raise AssertionError("provided by StatementLowering")

    def extern_call(self, e: ast.Call, callee: Callee) -> ir.Expr | None:
        """Lower a call of an extern function or method."""
        raise AssertionError("provided by ExternLowering")

    # ---------------------------------------------------------------- dispatch

    def call_value(self, e: ast.Call) -> ir.Expr:
        result = self.call(e)
        if result is None:
            raise self.reporter.fail(e.at, "this call gives no value")
        return result

    def call(self, e: ast.Call) -> ir.Expr | None:
        """Lower a call; gives its value, if any."""
        callee = e.target
        assert isinstance(callee, Callee)
        if len(self.frames) > MAX_INLINE_DEPTH:
            raise self.unsupported(e.at, f"calls nested deeper than {MAX_INLINE_DEPTH}")
        if callee.kind == "builtin":
            return self._builtin(e, callee)
        if callee.kind == "table":
            self.apply_table(e, None, None)
            return None
        if callee.kind == "action":
            self._inline_action(callee)
            return None
        if callee.kind == "function" and callee.decl.body is not None:
            return self._inline_function(callee, e)
        if callee.kind in ("apply", "direct"):
            self.apply_block(e, callee)
            return None
        return self.extern_call(e, callee)

    def _builtin(self, e: ast.Call, callee: Callee) -> ir.Expr | None:
        assert callee.receiver is not None
        if callee.name in ("isValid", "setValid", "setInvalid", "push_front", "pop_front"):
            place = self.place(callee.receiver)
            if callee.name == "isValid":
                return ir.IsValid(place)
            if callee.name in ("push_front", "pop_front"):
                argument = e.arguments[0].expr
                assert argument is not None
                self._shift(place, self.known_int(argument, "the count") * (1 if callee.name == "push_front" else -1))
                return None
            if callee.name == "setInvalid":
                self.invalidate(place)
            else:
                self.invalidate_siblings(place)
                self.emit(SetValidity(place, True))
            return None
        raise self.unsupported(e.at, f"{callee.name} of a type that is not known yet")

    def _shift(self, stack: ir.LValue, count: int) -> None:
        t = stack.type
        assert isinstance(t, irt.StackType)
        count = max(-t.size, min(t.size, count))
        if count:
            self.emit(ShiftStack(stack, count))

    # ---------------------------------------------------------------- inlining

    def inner_env(self, parent: Env, callee: Callee) -> Env:
        """An environment for the body of a callee, with its type arguments."""
        types = {v: self.concrete(t) for v, t in callee.bindings.items()}
        return Env(parent, types)

    def _inline_function(self, callee: Callee, e: ast.Call) -> ir.Expr | None:
        decl = callee.decl
        env = self.inner_env(self.globals, callee)
        frame = Frame(self.fresh_name(decl.name))
        with self.within(env):
            returned = self.concrete(decl.return_type)
            if str(returned) != "void":
                frame.result = self.new_variable(f"{decl.name}_result", self.type(returned, e.at))
        self.bind_arguments(env, callee, frame, isolate=self.overlapping(callee))
        self.inline(env, frame, decl.body)
        return frame.result

    def _inline_action(self, callee: Callee) -> None:
        decl = callee.decl
        scalar = all(
            p.direction or self.concrete(p.type) == BOOL or isinstance(self.concrete(p.type), TBits | TEnum | TNew)
            for p in decl.parameters
        )
        if scalar and not any(f.is_action for f in self.frames):
            self.action_index(decl)  # p4c lists actions that a control only calls, too
        env = Env(self.env)
        frame = Frame(self.fresh_name(decl.name), is_action=True)
        self.bind_arguments(env, callee, frame, isolate=True)
        self.inline(env, frame, decl.body)

    def inline(self, env: Env, frame: Frame, block: ast.Block) -> None:
        """The body of a call in its environment, then copy-out, then any exit that happened inside."""
        loops, self.loops = self.loops, []
        self.frames.append(frame)
        with self.body() as statements, self.within(env):
            self.statements(block.body)
        self.emit(Labelled(frame.label, tuple(statements)))
        self.loops = loops
        self.frames.pop()
        self.finish(frame)

    def finish(self, frame: Frame) -> None:
        """Copy-outs of a frame that has been left."""
        for c in frame.copy_outs:
            if c.bounds is not None:
                self.emit(AssignSlice(c.target, c.bounds[0], c.bounds[1], c.source))
            else:
                self.store(c.target, c.source)
        if frame.exited:
            with self.body() as statements:
                self.leave_block()
            assert self.exit_flag is not None
            self.emit(If(self.exit_flag, tuple(statements), ()))

    def leave_block(self) -> None:
        """Lower `exit`: straight out, or from copy-out to copy-out."""
        for frame in reversed(self.frames):
            if frame.copy_outs:
                if self.exit_flag is None:
                    self.exit_flag = self.new_variable("exited", irt.Bool())
                self.emit(Assign(self.exit_flag, TRUE))
                frame.exited = True
                self.emit(Leave(frame.label))
                return
        self.emit(Leave(self.block_label))

    # ---------------------------------------------------------------- arguments

    def overlapping(self, callee: Callee) -> bool:
        """Whether an argument that the callee writes may share storage with another argument."""
        written: list[ast.Expr] = []
        others: list[ast.Expr] = []
        for p, a in callee.arguments:
            if a is None:
                continue
            if p.direction in ("out", "inout"):
                written.append(a)
            elif not is_simple_constant(a):
                others.append(a)
        for i, w in enumerate(written):
            for other in written[i + 1 :] + others:
                if may_overlap(w, other):
                    return True
        return False

    def bind_arguments(self, env: Env, callee: Callee, frame: Frame, isolate: bool) -> None:
        """Evaluate arguments here and bind the parameters in `env`.

        isolate: writes must not be seen through other names before the call ends, so they go to variables first.
        """
        for p, argument in callee.arguments:
            with self.within(env):
                declared = self.concrete(p.type)
            if p.direction in ("out", "inout"):
                self._bind_written(env, p, argument, frame, isolate)
            elif argument is None:
                raise self.unsupported(p.at, f"an argument left out for '{p.name}'")
            else:
                self._bind_read(env, p, argument, declared, isolate)

    def _bind_read(self, env: Env, p: ast.Parameter, argument: ast.Expr, declared: Any, isolate: bool) -> None:
        instance = self.instance_of(argument)
        if instance is not None:
            env.bind(p, instance)
            return
        known = self.known(argument)
        if known is not None and not isinstance(known, tuple):
            env.bind(p, Known(known, declared))
            return
        value = self.expr(argument)
        if is_scalar(value.type) or isolate or not isinstance(value, ir.VarRef | ir.Member | ir.Element):
            variable = self.new_variable(p.name, value.type)
            self.emit(Assign(variable, value))
            env.bind(p, variable)
        else:
            env.bind(p, value)

    def _bind_written(self, env: Env, p: ast.Parameter, argument: ast.Expr | None, frame: Frame, isolate: bool) -> None:
        with self.within(env):
            t = self.type(self.concrete(p.type), p.at)
        if argument is None:
            variable = self.new_variable(p.name, t)
            self.clear(variable)
            env.bind(p, variable)
            return
        bounds = None
        if isinstance(argument, ast.Slice):
            if argument.bounds is None or isinstance(argument.base, ast.Slice):
                raise self.unsupported(argument.at, "this slice as an argument that is written")
            bounds = argument.bounds
            target = self.place(argument.base)
            value: ir.Expr = ir.Slice(target, bounds[0], bounds[1], t)
        else:
            target = self.place(argument)
            value = target
        if bounds is None and not isolate:
            env.bind(p, target)
            if p.direction == "out":
                self.invalidate(target)
            return
        variable = self.new_variable(p.name, t)
        if p.direction == "inout":
            self.emit(Assign(variable, value))
        else:
            self.invalidate(variable)
        env.bind(p, variable)
        frame.copy_outs.append(CopyOut(target, variable, bounds))

    def instance_of(self, e: ast.Expr) -> Instance | None:
        """The instance an argument names, or None."""
        if isinstance(e, ast.Name):
            found = self.env.find(e.decl)
            return found if isinstance(found, Instance) else None
        return None

    # ---------------------------------------------------------------- controls

    def apply_block(self, e: ast.Call, callee: Callee) -> None:
        """Inline the body of a control."""
        instance = self.block_instance(e, callee)
        decl = instance.decl
        if not isinstance(decl, ast.ControlDecl):
            raise self.unsupported(e.at, "a parser applied inside a branch")
        assert instance.env is not None
        assert decl.body is not None
        callee = actual_callee(callee, decl)
        env = Env(instance.env, {v: self.concrete(t) for v, t in callee.bindings.items()})
        frame = Frame(self.fresh_name(f"{instance.name}_end"))
        self.bind_arguments(env, callee, frame, isolate=self.overlapping(callee))
        with self.body() as statements, self.within(env):
            self.frames.append(frame)
            self.initialise_locals(decl)
            self.statements(decl.body.body)
            self.frames.pop()
        self.emit(Labelled(frame.label, tuple(statements)))
        self.finish(frame)

    def block_instance(self, e: ast.Call, callee: Callee) -> Instance:
        """The instance that apply is called on; `Type.apply` makes one."""
        if callee.kind == "direct":
            key = e
            found = self.env.find(key)
            if isinstance(found, Instance):
                return found
            name = f"{self.env.prefix}.{callee.decl.name}" if self.env.prefix else callee.decl.name
            fresh = Callee("constructor", callee.decl.name, callee.decl, block=callee.block, bindings=callee.bindings)
            instance = self.make_block(callee.decl, fresh, name)
            self.env.bind(key, instance)
            return instance
        assert callee.receiver is not None
        found_receiver = self.instance_of(callee.receiver)
        if found_receiver is None:
            raise self.unsupported(e.at, "apply of something that is not a named instance")
        return found_receiver

    def make_block(self, decl: ast.ParserDecl | ast.ControlDecl, callee: Callee, name: str) -> Instance:
        """Elaborate a parser or control: its local instances, tables and variables."""
        raise AssertionError("provided by ProgramLowering")

    def initialise_locals(self, decl: ast.ControlDecl | ast.ParserDecl) -> None:
        """Run the initialisers of local variables."""
        for local in decl.locals:
            if isinstance(local, ast.VariableDecl):
                self.initialise(local)

    def initialise(self, decl: ast.VariableDecl) -> None:
        """Initialiser of one variable; headers without one start invalid."""
        place = self.env.find(decl)
        assert isinstance(place, ir.VarRef)
        if decl.init is None:
            self.invalidate(place)
            return
        if isinstance(decl.init, ast.InvalidExpr):
            self.invalidate(place)
        elif isinstance(decl.init, ast.ListExpr | ast.StructExpr | ast.DotsExpr):
            self.fill(place, decl.init)
        else:
            self.store(place, self.expr(decl.init))

    # ---------------------------------------------------------------- tables

    def apply_table(self, e: ast.Call, hit: str | None, action_run: str | None) -> None:
        callee = e.target
        assert isinstance(callee, Callee)
        assert callee.receiver is not None
        instance = self.instance_of(callee.receiver)
        if instance is None or instance.kind != "table":
            raise self.unsupported(e.at, "a table that is not declared in this control")
        table = self.tables[instance.index]
        decl: ast.TableDecl = callee.decl
        ordinary = [k for k in decl.keys if k.match_kind != "selector"]
        selectors = [k for k in decl.keys if k.match_kind == "selector"]
        keys: list[ir.Expr] = []
        for key in ordinary + selectors:
            mark = len(self.out)
            value = self.expr(key.expr)
            if len(self.out) > mark:
                keys = [self._saved_before(k, mark) for k in keys]
            keys.append(value)
        by_action = {ref.decl: ref for ref in decl.actions}
        arms: list[ActionArm] = []
        no_action = self.checker.scopes[0].get("NoAction")
        for listed in table.actions:
            ref = next(
                (r for d, r in by_action.items() if d is not None and self.action_index(d) == listed.action), None
            )
            action = ref.decl if ref is not None else no_action
            assert isinstance(action, ast.ActionDecl)
            arms.append(self._arm(listed.action, action, ref))
        self.emit(ApplyTable(instance.index, tuple(keys), tuple(arms), hit, action_run))

    def _arm(self, index: int, decl: ast.ActionDecl, ref: ast.ActionRef | None) -> ActionArm:
        """An action's body with parameters from the entry and, for those with direction, from the action list."""
        env = Env(self.env)
        frame = Frame(self.fresh_name(decl.name), is_action=True)
        parameters: list[str] = []
        loops, self.loops = self.loops, []
        with self.body() as statements:
            directional = [p for p in decl.parameters if p.direction]
            bound = ref.arguments if ref is not None and ref.arguments is not None else []
            callee = Callee("action", decl.name, decl)
            callee.arguments = [(p, a.expr) for p, a in zip(directional, bound, strict=False)]
            self.bind_arguments(env, callee, frame, isolate=True)
            for p in decl.parameters:
                if not p.direction:
                    variable = self.new_variable(f"{decl.name}_{p.name}", self.type(self.concrete(p.type), p.at))
                    env.bind(p, variable)
                    parameters.append(variable.name)
            self.frames.append(frame)
            with self.body() as inner, self.within(env):
                self.statements(decl.body.body)
            self.frames.pop()
            self.emit(Labelled(frame.label, tuple(inner)))
            self.finish(frame)
        self.loops = loops
        return ActionArm(index, tuple(parameters), tuple(statements))


def actual_callee(callee: Callee, decl: ast.ParserDecl | ast.ControlDecl) -> Callee:
    """The call with the parameters of the instance's own declaration (it may have been passed as its type)."""
    if callee.decl is decl:
        return callee
    arguments = [(p, a) for p, (_, a) in zip(decl.parameters, callee.arguments, strict=True)]
    return replace(callee, decl=decl, arguments=arguments)


def is_simple_constant(e: ast.Expr) -> bool:
    """A value without storage."""
    return e.value is not None


def root_and_path(e: ast.Expr) -> tuple[object, tuple[str, ...]] | None:
    """The declaration and field path of a place; '*' for an index not known. None: not a place."""
    path: list[str] = []
    while True:
        if isinstance(e, ast.Name):
            return e.decl, tuple(reversed(path))
        if isinstance(e, ast.Member):
            path.append("*" if e.name in ("next", "last") else e.name)
            e = e.base
        elif isinstance(e, ast.Index):
            path.append(str(e.index.value) if e.index.value is not None else "*")
            e = e.base
        elif isinstance(e, ast.Slice):
            e = e.base
        else:
            return None


def may_overlap(a: ast.Expr, b: ast.Expr) -> bool:
    """Whether two arguments may share storage; expressions that are no places are saved before the call anyway."""
    left, right = root_and_path(a), root_and_path(b)
    if left is None or right is None:
        return False
    if left[0] is not right[0]:
        return False
    return all(x == y or "*" in (x, y) for x, y in zip(left[1], right[1], strict=False))
