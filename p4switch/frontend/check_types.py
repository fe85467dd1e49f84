"""First layer of the checker: scopes of names, and types from their written form."""

from __future__ import annotations

from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.source import AbortError, Reporter
from p4switch.frontend.types import (
    ANY,
    BOOL,
    ERROR,
    INT,
    MATCH_KIND,
    STRING,
    UNKNOWN,
    VOID,
    TBase,
    TBits,
    TBlock,
    TEnum,
    TList,
    TNew,
    TStack,
    TStruct,
    TTuple,
    TVar,
    TVarbits,
    Type,
    has_variables,
)

MAX_BIT_WIDTH = 1 << 16
"""Widest bit<W>; nothing real comes near, and a typing mistake must not eat the memory."""
MAX_STACK_SIZE = 1 << 12

_BASE: dict[str, Type] = {
    "bool": BOOL,
    "error": ERROR,
    "match_kind": MATCH_KIND,
    "string": STRING,
    "void": VOID,
    "int": INT,
    "_": ANY,
}


class TypeResolver:
    """Holds the scopes and turns type references into types. Layers above add expressions, calls and statements."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.scopes: list[dict[str, Any]] = [{}]
        self.errors: dict[str, int] = {}  # error members in order of declaration
        self.match_kinds: set[str] = set()

    # ---------------------------------------------------------------- scopes

    def declare(self, name: str, decl: Any, at: int) -> None:
        """Put a name into the innermost scope; functions overload by number of parameters."""
        scope = self.scopes[-1]
        before = scope.get(name)
        if before is None:
            scope[name] = [decl] if isinstance(decl, ast.FunctionDecl) else decl
            return
        if isinstance(before, list) and isinstance(decl, ast.FunctionDecl):
            names = [p.name for p in decl.parameters]
            if all([p.name for p in other.parameters] != names for other in before):
                before.append(decl)
                return
        self.reporter.error(at, f"'{name}' is already declared in this scope")

    def lookup(self, name: str, absolute: bool = False) -> Any:
        """What a name means here, or None."""
        if absolute:
            return self.scopes[0].get(name)
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def push(self) -> None:
        """Open a scope."""
        self.scopes.append({})

    def pop(self) -> None:
        """Close the innermost scope."""
        self.scopes.pop()

    def declare_type_parameters(self, parameters: list[ast.TypeParameter], owner: object) -> list[TVar]:
        """Declare type variables of a generic declaration."""
        out = []
        for p in parameters:
            var = TVar(p.name, id(owner))
            self.declare(p.name, var, p.at)
            out.append(var)
        return out

    # ---------------------------------------------------------------- expressions, provided by the next layer

    def check(self, e: ast.Expr, want: Type | None = None) -> ast.Expr:
        """Type-check an expression (layer above)."""
        raise AssertionError("provided by ExpressionChecker")

    def constant_int(self, e: ast.Expr, what: str) -> int:
        """Check an expression that must be an integer known at compile time."""
        checked = self.check(e)
        if isinstance(checked.value, int) and not isinstance(checked.value, bool):
            return checked.value
        if checked.type is UNKNOWN:
            raise AbortError(what)
        raise self.reporter.fail(e.at, f"{what} must be an integer known at compile time")

    # ---------------------------------------------------------------- types

    def resolve(self, ref: ast.TypeRef) -> Type:
        """The type that a reference means; UNKNOWN after a reported error."""
        try:
            return self._resolve(ref)
        except AbortError:
            return UNKNOWN

    def _resolve(self, ref: ast.TypeRef) -> Type:
        if isinstance(ref, ast.BaseType):
            return _BASE[ref.kind]
        if isinstance(ref, ast.SizedType):
            return self._sized(ref)
        if isinstance(ref, ast.TupleTypeRef):
            elements = tuple(self._resolve(e) for e in ref.elements)
            for e, t in zip(ref.elements, elements, strict=True):
                if isinstance(t, TBlock) or t is VOID:
                    raise self.reporter.fail(e.at, f"a tuple cannot hold {t}")
            return TTuple(elements)
        if isinstance(ref, ast.ListTypeRef):
            return TList(self._resolve(ref.element))
        if isinstance(ref, ast.StackTypeRef):
            return self._stack(ref)
        return self._named(ref)

    def _sized(self, ref: ast.SizedType) -> Type:
        width = 1 if ref.width is None else self.constant_int(ref.width, f"the width of {ref.kind}<>")
        if width < 0:
            raise self.reporter.fail(ref.at, f"the width of {ref.kind}<> must not be negative")
        if width > MAX_BIT_WIDTH:
            raise self.reporter.fail_unsupported(ref.at, f"{ref.kind}<{width}> is wider than {MAX_BIT_WIDTH} bits")
        if ref.kind == "varbit":
            return TVarbits(width)
        if ref.kind == "int" and width == 0:
            raise self.reporter.fail(ref.at, "int<0> is not a type")
        return TBits(width, ref.kind == "int")

    def _stack(self, ref: ast.StackTypeRef) -> Type:
        element = self._resolve(ref.element)
        size = self.constant_int(ref.size, "the size of a header stack")
        if size <= 0:
            raise self.reporter.fail(ref.size.at, "the size of a header stack must be positive")
        if size > MAX_STACK_SIZE:
            raise self.reporter.fail_unsupported(ref.size.at, f"header stacks larger than {MAX_STACK_SIZE}")
        if isinstance(element, TBlock):
            raise self.reporter.fail_unsupported(ref.at, "arrays of instances")
        if isinstance(element, TBase) and element in (VOID, INT, STRING, MATCH_KIND):
            raise self.reporter.fail(ref.at, f"there are no arrays of {element}")
        return TStack(element, size)

    def _named(self, ref: ast.NamedType) -> Type:
        decl = self.lookup(ref.name, ref.absolute)
        if decl is None:
            raise self.reporter.fail(ref.at, f"type '{ref.name}' is not declared")
        arguments = None if ref.arguments is None else tuple(self._resolve(a) for a in ref.arguments)
        return self.type_of_decl(decl, ref.name, arguments, ref.at)

    def type_of_decl(self, decl: Any, name: str, arguments: tuple[Type, ...] | None, at: int) -> Type:
        """The type a declaration introduces, applied to arguments."""
        if isinstance(decl, ast.StructDecl | ast.ParserDecl | ast.ControlDecl | ast.PackageDecl | ast.ExternDecl):
            expected = len(decl.type_parameters)
            if arguments is not None and len(arguments) != expected:
                raise self.reporter.fail(at, f"'{name}' takes {expected} type arguments, not {len(arguments)}")
            if isinstance(decl, ast.StructDecl):
                if expected and arguments is None:
                    raise self.reporter.fail(at, f"generic type '{name}' needs type arguments")
                return TStruct(decl, arguments or ())
            return TBlock(decl, arguments or ())
        if arguments is not None:
            raise self.reporter.fail(at, f"'{name}' is not generic")
        if isinstance(decl, TVar):
            return decl
        if isinstance(decl, ast.EnumDecl):
            return self.enum_type(decl)
        if isinstance(decl, ast.TypedefDecl):
            return decl.type
        raise self.reporter.fail(at, f"'{name}' is not a type")

    def enum_type(self, decl: ast.EnumDecl) -> Type:
        """The type of an enum declaration (its underlying type is resolved once, when declared)."""
        return decl.type

    # ---------------------------------------------------------------- rules about types

    def check_field(self, owner: ast.StructDecl, f: ast.FieldDecl) -> None:
        """Which types may be fields of what."""
        t = f.type
        if t is UNKNOWN or isinstance(t, TVar):
            return
        if has_variables(t) and not (isinstance(t, TTuple) and owner.kind != "struct"):
            return
        if owner.kind == "header" and isinstance(t, TStack) and _fits_header(t.element):
            raise self.reporter.fail_unsupported(f.at, f"not supported: an array of {t.element} in a header")
        if owner.kind == "header":
            good = _fits_header(t)
        elif owner.kind == "header_union":
            good = isinstance(t, TStruct) and t.kind == "header"
        else:
            good = not isinstance(t, TBlock) and t not in (VOID, INT, STRING, MATCH_KIND, ANY)
        if not good:
            self.reporter.error(f.at, f"a field of {owner.kind} {owner.name} cannot have type {t}")


def _fits_header(t: Type) -> bool:
    if isinstance(t, TBits | TVarbits) or t == BOOL:
        return True
    if isinstance(t, TNew):
        return _fits_header(t.underlying)
    if isinstance(t, TEnum):
        return t.underlying is not None
    return isinstance(t, TStruct) and t.kind == "struct" and all(_fits_header(f) for _, f in t.fields())
