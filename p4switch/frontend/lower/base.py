"""What all layers of the lowering share: bindings, instances, variables, the list of statements under construction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from p4switch.frontend import ast, constants
from p4switch.frontend.check_decl import Checker
from p4switch.frontend.constants import ConstantError
from p4switch.frontend.lexer import parse_number, unescape
from p4switch.frontend.source import AbortError, Reporter
from p4switch.frontend.types import (
    BOOL,
    ERROR,
    INT,
    EnumValue,
    TBits,
    TEnum,
    TNew,
    TStack,
    TStruct,
    TTuple,
    TVar,
    TVarbits,
    Type,
    substitute,
)
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Variable
from p4switch.ir.stmt import Assign, Location, Stmt


@dataclass(slots=True)
class Instance:
    """An elaborated instance.

    kind: 'packet', 'control', 'parser', or the extern's name. `index` counts within the program's list for that kind.
    """

    kind: str
    name: str
    index: int = -1
    decl: Any = None
    env: Env | None = None
    types: dict[TVar, Type] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """A value known at elaboration: of a constructor parameter."""

    value: Any
    type: Type


Binding: TypeAlias = ir.VarRef | ir.Member | ir.Element | Instance | Known


class Env:
    """What declarations are bound to here; inner environments shadow outer ones."""

    __slots__ = ("bindings", "parent", "prefix", "types")

    def __init__(self, parent: Env | None, types: dict[TVar, Type] | None = None, prefix: str | None = None) -> None:
        self.parent = parent
        self.bindings: dict[int, Binding] = {}
        inherited = parent.types if parent is not None else {}
        self.types: dict[TVar, Type] = {**inherited, **types} if types else inherited
        self.prefix: str = prefix if prefix is not None else (parent.prefix if parent is not None else "")

    def bind(self, decl: object, binding: Binding) -> None:
        """Bind a declaration."""
        self.bindings[id(decl)] = binding

    def find(self, decl: object) -> Binding | None:
        """The binding of a declaration, or None."""
        env: Env | None = self
        key = id(decl)
        while env is not None:
            found = env.bindings.get(key)
            if found is not None:
                return found
            env = env.parent
        return None


TRUE = ir.Const(1, irt.Bool())
BIT32 = irt.Bits(32)


class LowerBase:
    """State of the lowering, conversion of types, fresh variables, compile-time values."""

    def __init__(self, checker: Checker, reporter: Reporter) -> None:
        self.checker = checker
        self.reporter = reporter
        self.globals = Env(None)
        self.env = self.globals
        self.out: list[Stmt] = []
        self.variables: list[Variable] = []
        self.used_names: set[str] = set()
        self.placed: dict[int, ir.LValue] = {}  # expressions whose place is already worked out
        self.headers: dict[str, irt.HeaderType] = {}
        self.structs: dict[str, irt.StructType] = {}
        self.unions: dict[str, irt.UnionType] = {}
        self.errors = irt.EnumType("error", tuple(checker.errors) or ("NoError",))

    # ---------------------------------------------------------------- diagnostics

    def unsupported(self, at: int, what: str) -> AbortError:
        """Report a legal construct that is not supported, as an exception to raise."""
        return self.reporter.fail_unsupported(at, f"not supported: {what}")

    def location(self, at: int) -> Location:
        """An offset as a location for the IR."""
        return Location(*self.reporter.source.locate(at))

    # ---------------------------------------------------------------- types

    def concrete(self, t: Type) -> Type:
        """The type with this environment's type arguments put in."""
        return substitute(t, self.env.types) if self.env.types else t

    def type(self, t: Type, at: int) -> irt.Type:
        """The IR type of a checked type."""
        if isinstance(t, TVar):
            bound = self.env.types.get(t)
            if bound is None or bound == t:
                raise self.unsupported(at, f"type parameter {t} without a value")
            return self.type(bound, at)
        if isinstance(t, TBits):
            return irt.Bits(t.width, t.signed)
        if t == BOOL:
            return irt.Bool()
        if isinstance(t, TNew):
            return self.type(t.underlying, at)
        if isinstance(t, TEnum):
            if t.underlying is not None:
                return irt.Bits(t.underlying.width, t.underlying.signed)
            return irt.EnumType(t.decl.name, tuple(t.decl.values))
        if t == ERROR:
            return self.errors
        if isinstance(t, TVarbits):
            return irt.Varbits(t.width)
        if isinstance(t, TStruct):
            return self.struct_type(t, at)
        if isinstance(t, TStack):
            element = self.type(t.element, at)
            if not isinstance(element, irt.HeaderType | irt.UnionType):
                raise self.unsupported(at, f"arrays of {t.element}")
            return irt.StackType(element, t.size)
        if isinstance(t, TTuple):
            return self.tuple_type(t, at)
        raise self.unsupported(at, f"a value of type {t}")

    def tuple_type(self, t: TTuple, at: int) -> irt.StructType:
        """A tuple as a struct with fields f0, f1...; one IR type for one shape."""
        parts = tuple(irt.Field(f"f{i}", self.type(e, at)) for i, e in enumerate(t.elements))
        name = "tuple<" + ",".join(str(p.type) for p in parts) + ">"
        if name not in self.structs:
            self.structs[name] = irt.StructType(name, parts, is_tuple=True)
        return self.structs[name]

    def struct_type(self, t: TStruct, at: int) -> irt.Type:
        """A struct, header or union; specialisations of a generic one get names of their own."""
        t = TStruct(t.decl, tuple(self.concrete(a) for a in t.arguments)) if t.arguments else t
        name = str(t)
        known = self.headers.get(name) or self.unions.get(name) or self.structs.get(name)
        if known is not None:
            return known
        fields: list[irt.Field] = []
        for decl, (field_name, field_type) in zip(t.decl.fields, t.fields(), strict=True):
            annotations = self.annotations(decl.annotations)
            concrete = self.concrete(field_type)
            fields.append(irt.Field(field_name, self.type(concrete, decl.at), annotations, declared_name(concrete)))
        annotations = self.annotations(t.decl.annotations)
        if t.kind == "header":
            return self._header_type(t, name, tuple(fields), annotations)
        if t.kind == "header_union":
            union = irt.UnionType(name, tuple(fields), annotations)
            self.unions[name] = union
            return union
        struct = irt.StructType(name, tuple(fields), annotations)
        self.structs[name] = struct
        return struct

    def _header_type(
        self, t: TStruct, name: str, fields: tuple[irt.Field, ...], annotations: tuple[irt.Annotation, ...]
    ) -> irt.HeaderType:
        header = irt.HeaderType(name, fields, annotations)
        before = 0
        for f in fields:
            if isinstance(f.type, irt.Varbits) and before % 8:
                raise self.unsupported(t.decl.at, f"header {name}: a varbit field that does not start at a byte")
            before += irt.width_of(f.type)
        if header.width_bits() % 8:
            raise self.unsupported(
                t.decl.at, f"header {name} has {header.width_bits()} bits, which is not a whole number of bytes"
            )
        self.headers[name] = header
        return header

    def annotations(self, annotations: list[ast.Annotation]) -> tuple[irt.Annotation, ...]:
        """Annotations as the control plane sees them."""
        return tuple(convert_annotation(a) for a in annotations)

    # ---------------------------------------------------------------- variables and statements

    def fresh_name(self, hint: str) -> str:
        """A name no other variable or label has."""
        name = hint
        count = 1
        while name in self.used_names:
            count += 1
            name = f"{hint}_{count}"
        self.used_names.add(name)
        return name

    def new_variable(self, hint: str, t: irt.Type) -> ir.VarRef:
        """A fresh variable of the current block."""
        name = self.fresh_name(hint)
        self.variables.append(Variable(name, t))
        return ir.VarRef(name, t)

    def emit(self, statement: Stmt) -> None:
        """Append a statement to the current body."""
        self.out.append(statement)

    @contextmanager
    def body(self) -> Iterator[list[Stmt]]:
        """Collect the statements emitted inside into a list of their own."""
        outer = self.out
        self.out = []
        try:
            yield self.out
        finally:
            self.out = outer

    @contextmanager
    def within(self, env: Env) -> Iterator[Env]:
        """Lower inside another environment."""
        outer = self.env
        self.env = env
        try:
            yield env
        finally:
            self.env = outer

    def save(self, value: ir.Expr, hint: str = "tmp") -> ir.Expr:
        """The value in a variable of its own, unless it is constant."""
        if isinstance(value, ir.Const):
            return value
        variable = self.new_variable(hint, value.type)
        self.emit(Assign(variable, value))
        return variable

    # ---------------------------------------------------------------- compile-time values

    def constant(self, value: Any, t: Type, at: int) -> ir.Const:
        """A compile-time value as an IR constant."""
        lowered = self.type(t, at)
        if isinstance(value, EnumValue):
            assert isinstance(lowered, irt.EnumType)
            return ir.Const(lowered.members.index(value.member), lowered)
        if isinstance(lowered, irt.Bool):
            return ir.Const(int(bool(value)), lowered)
        if isinstance(lowered, irt.Bits) and isinstance(value, int):
            return ir.Const(value & ((1 << lowered.width) - 1), lowered)
        raise self.unsupported(at, f"a constant of type {t} here")

    def known(self, e: ast.Expr) -> Any:
        """Value of an expression at elaboration (constructor parameters put in), or None."""
        if e.value is not None:
            return e.value
        if isinstance(e, ast.Name):
            binding = self.env.find(e.decl)
            if isinstance(binding, Known):
                return binding.value
            if isinstance(e.decl, ast.Constant):
                return self.known(e.decl.init)
            return None
        if isinstance(e, ast.Cast):
            value = self.known(e.operand)
            return constants.cast(value, self.concrete(e.type)) if isinstance(value, int) else value
        if isinstance(e, ast.Unary):
            value = self.known(e.operand)
            return constants.unary(e.op, value, self.concrete(e.type)) if isinstance(value, int) else None
        if isinstance(e, ast.Binary):
            return self._known_binary(e)
        if isinstance(e, ast.Ternary):
            condition = self.known(e.condition)
            return None if condition is None else self.known(e.yes if condition else e.no)
        if isinstance(e, ast.Slice) and e.bounds is not None:
            value = self.known(e.base)
            high, low = e.bounds
            return (value >> low) & ((1 << (high - low + 1)) - 1) if isinstance(value, int) else None
        return self._known_aggregate(e)

    def _known_aggregate(self, e: ast.Expr) -> Any:
        if isinstance(e, ast.Member):
            value = self.known(e.base)
            base = e.base.type
            if isinstance(value, tuple) and isinstance(base, TStruct):
                return value[[n for n, _ in base.fields()].index(e.name)]
        elif isinstance(e, ast.ListExpr) and not e.dots:
            parts = [self.known(item) for item in e.items]
            return None if any(p is None for p in parts) else tuple(parts)
        elif isinstance(e, ast.StructExpr) and not e.dots:
            parts = [self.known(item) for _, _, item in e.fields]
            return None if any(p is None for p in parts) else tuple(parts)
        elif isinstance(e, ast.Index) and not isinstance(e.base.type, TStack):
            value = self.known(e.base)
            at = self.known(e.index)
            return value[at] if isinstance(value, tuple) and isinstance(at, int) and at < len(value) else None
        return None

    def _known_binary(self, e: ast.Binary) -> Any:
        left = self.known(e.left)
        if left is None:
            return None
        right = self.known(e.right)
        if right is None:
            return None
        if e.op == "&&":
            return left and right
        if e.op == "||":
            return left or right
        if not isinstance(left, int) or not isinstance(right, int):
            return (left == right) == (e.op == "==") if e.op in ("==", "!=") else None
        try:
            return constants.binary(e.op, left, right, self.concrete(e.left.type), self.concrete(e.right.type))
        except ConstantError as problem:
            raise self.reporter.fail(e.at, str(problem)) from problem

    def known_int(self, e: ast.Expr, what: str) -> int:
        """An integer known at elaboration; reports otherwise."""
        value = self.known(e)
        if not isinstance(value, int):
            raise self.reporter.fail(e.at, f"{what} must be known at compile time")
        return int(value)


def declared_name(t: Type) -> str | None:
    """Name of a `type` or serializable enum, which P4Info keeps."""
    if isinstance(t, TNew):
        return t.decl.name
    return t.decl.name if isinstance(t, TEnum) and t.underlying is not None else None


def convert_annotation(a: ast.Annotation) -> irt.Annotation:
    """Parse the body of an unstructured annotation as far as it is a list of numbers, strings and truth values."""
    if a.structured:
        expressions = tuple(_plain(e) for e in a.expressions)
        named = tuple((k, _plain(e)) for k, e in a.pairs)
        return irt.Annotation(a.name, expressions, named, a.text, structured=True)
    values: list[int | str | bool] = []
    pairs: list[tuple[str, int | str | bool]] = []
    key: str | None = None
    for index, (kind, text, _) in enumerate(a.tokens):
        following = a.tokens[index + 1][1] if index + 1 < len(a.tokens) else ""
        value: int | str | bool
        if kind == "number":
            parsed = parse_number(text)
            value = parsed[0] if parsed is not None else text
        elif kind == "string":
            value = unescape(text)
        elif text in ("true", "false"):
            value = text == "true"
        elif kind in ("name", "keyword") and following == "=":
            key = text
            continue
        elif kind in ("name", "keyword") and following != "<":
            value = text
        else:
            continue
        if key is not None:
            pairs.append((key, value))
            key = None
        else:
            values.append(value)
    return irt.Annotation(a.name, tuple(values), tuple(pairs), a.text)


def _plain(e: ast.Expr) -> int | str | bool:
    if isinstance(e, ast.IntLiteral):
        return e.number
    if isinstance(e, ast.BoolLiteral):
        return e.truth
    if isinstance(e, ast.StringLiteral):
        return e.text
    if isinstance(e, ast.Unary):
        operand = _plain(e.operand)
        return constants.unary(e.op, operand, INT) if isinstance(operand, int) else ""
    if isinstance(e, ast.Binary):
        left, right = _plain(e.left), _plain(e.right)
        if isinstance(left, bool) and isinstance(right, bool) and e.op in ("&&", "||"):
            return (left and right) if e.op == "&&" else (left or right)
        if isinstance(left, str) and isinstance(right, str):
            return left + right if e.op == "++" else ""
        if isinstance(left, int) and isinstance(right, int):
            return constants.binary(e.op, left, right, INT, INT)
    return ""


def find_annotation(annotations: list[ast.Annotation], name: str) -> ast.Annotation | None:
    """The first annotation of that name, or None."""
    return next((a for a in annotations if a.name == name), None)


def qualified_name(prefix: str, decl: ast.Declaration) -> str:
    """Control-plane name of a declaration inside `prefix`; @name(".x") is absolute."""
    name = decl.name
    annotation = find_annotation(decl.annotations, "name")
    if annotation is not None:
        body = convert_annotation(annotation).body
        if body and isinstance(body[0], str):
            name = body[0]
    if name.startswith("."):
        return name[1:]
    return f"{prefix}.{name}" if prefix else name
