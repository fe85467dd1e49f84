"""Fourth layer of the checker: types and compile-time values of expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4switch.frontend import ast, constants
from p4switch.frontend.check_operators import OperatorChecker
from p4switch.frontend.source import AbortError, Reporter
from p4switch.frontend.types import (
    ANY,
    BOOL,
    DOTS,
    ERROR,
    INT,
    INVALID,
    MATCH_KIND,
    STATE,
    STRING,
    UNKNOWN,
    EnumValue,
    TBits,
    TBlock,
    TCallable,
    TEnum,
    TName,
    TNew,
    TRecord,
    TSet,
    TStack,
    TStruct,
    TTable,
    TTuple,
    Type,
)

HEADER_METHODS = frozenset(
    {"isValid", "setValid", "setInvalid", "minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"}
)
STACK_METHODS = frozenset(
    {"push_front", "pop_front", "minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"}
)
SIZE_METHODS = frozenset({"minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"})


class ExpressionChecker(OperatorChecker):
    """Checks expressions; calls are the next layer's."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(reporter)
        self.in_parser = False
        self._rules: dict[type, Callable[[Any], ast.Expr]] = {
            ast.IntLiteral: self._int,
            ast.BoolLiteral: self._bool,
            ast.StringLiteral: self._string,
            ast.Name: self._name,
            ast.TypeExpr: self._type_expr,
            ast.Member: self._member,
            ast.Index: self._index,
            ast.Slice: self._slice,
            ast.Call: self.call,
            ast.Unary: self.unary,
            ast.Binary: self.binary,
            ast.Ternary: self.ternary,
            ast.Cast: self.cast,
            ast.ListExpr: self._list,
            ast.StructExpr: self._struct,
            ast.InvalidExpr: self._invalid,
            ast.DotsExpr: self._dots,
            ast.DefaultExpr: self._default,
            ast.Mask: self._mask,
            ast.Range: self._range,
        }

    def call(self, e: ast.Call) -> ast.Expr:
        """Type-check a call (layer above)."""
        raise AssertionError("provided by CallChecker")

    def check(self, e: ast.Expr, want: Type | None = None) -> ast.Expr:
        """Type-check an expression; convert it to `want` if given. Gives the (maybe wrapped) expression.

        After a reported error the type is UNKNOWN, which fits everywhere, so one mistake gives one message.
        """
        if e.type is None:
            try:
                e = self._rules[type(e)](e)
            except AbortError:
                e.type = UNKNOWN
        return e if want is None else self.coerce(e, want)

    def value_of(self, e: ast.Expr, want: Type | None = None) -> ast.Expr:
        """As check, but the expression must be a value (not a type, function, table...)."""
        e = self.check(e)
        if isinstance(e.type, TName | TCallable | TTable | TSet) and not (
            isinstance(e.type, TTable) and e.type.what == "result"
        ):
            self.reporter.error(e.at, f"{e.type} is not a value")
            e.type = UNKNOWN
        return e if want is None else self.coerce(e, want)

    # ---------------------------------------------------------------- leaves

    def _int(self, e: ast.IntLiteral) -> ast.Expr:
        if e.width is None:
            e.type, e.value = INT, e.number
            return e
        if e.width == 0 and e.signed:
            raise self.reporter.fail(e.at, "a signed number needs at least one bit")
        t = TBits(e.width, e.signed)
        if e.number >= 1 << e.width:
            self.reporter.warning(e.at, f"{e.number} does not fit in {t}")
        e.type, e.value = t, constants.wrap(e.number, t)
        return e

    def _bool(self, e: ast.BoolLiteral) -> ast.Expr:
        e.type, e.value = BOOL, e.truth
        return e

    def _string(self, e: ast.StringLiteral) -> ast.Expr:
        e.type, e.value = STRING, e.text
        return e

    def _invalid(self, e: ast.InvalidExpr) -> ast.Expr:
        e.type = INVALID
        return e

    def _dots(self, e: ast.DotsExpr) -> ast.Expr:
        e.type = DOTS
        return e

    def _default(self, e: ast.DefaultExpr) -> ast.Expr:
        e.type = TSet(ANY)
        return e

    def _name(self, e: ast.Name) -> ast.Expr:
        if e.name == "error" and not e.absolute:
            e.type = TName(ERROR)
            return e
        decl = self.lookup(e.name, e.absolute)
        if decl is None:
            if e.name == "this":
                raise self.reporter.fail(e.at, "'this' stands for an instance inside the methods that it implements")
            if e.name in self.match_kinds:
                e.type, e.value = MATCH_KIND, EnumValue("match_kind", e.name)
                return e
            raise self.reporter.fail(e.at, f"'{e.name}' is not declared")
        e.decl = decl
        e.type = self._type_of_name(e, decl)
        if isinstance(decl, ast.Constant):
            e.value = decl.value
        return e

    def _type_of_name(self, e: ast.Name, decl: Any) -> Type:
        if isinstance(decl, ast.Constant | ast.VariableDecl | ast.Parameter | ast.Instantiation):
            t: Type = decl.type
            return t
        if isinstance(decl, list):
            return TCallable(e.name)
        if isinstance(decl, ast.ActionDecl):
            return TCallable(e.name)
        if isinstance(decl, ast.TableDecl):
            return TTable(decl)
        if isinstance(decl, ast.ValueSetDecl):
            return TSet(decl.type)
        if isinstance(decl, ast.StateDecl):
            return STATE
        if isinstance(decl, ast.MatchKindDecl):
            return TName(MATCH_KIND)
        if isinstance(decl, ast.ParserDecl | ast.ControlDecl | ast.PackageDecl | ast.ExternDecl):
            return TName(TBlock(decl))
        if isinstance(decl, ast.StructDecl):
            return TName(TStruct(decl))
        return TName(self.type_of_decl(decl, e.name, None, e.at))

    def _type_expr(self, e: ast.TypeExpr) -> ast.Expr:
        t = self.resolve(e.ref)
        if t is UNKNOWN:
            raise AbortError
        e.type = TName(t)
        return e

    # ---------------------------------------------------------------- parts

    def _member(self, e: ast.Member) -> ast.Expr:
        e.base = self.check(e.base)
        base = e.base.type
        if base is UNKNOWN:
            raise AbortError
        if isinstance(base, TName):
            return self._static_member(e, base.named)
        if isinstance(base, TStruct):
            return self._struct_member(e, base)
        if isinstance(base, TStack):
            return self._stack_member(e, base)
        if isinstance(base, TTable):
            return self._table_member(e, base)
        if isinstance(base, TBlock):
            return self._block_member(e, base)
        if e.name in SIZE_METHODS:
            e.type = TCallable(e.name)
            return e
        raise self.reporter.fail(e.name_at, f"{base} has no member '{e.name}'")

    def _static_member(self, e: ast.Member, named: Type) -> ast.Expr:
        if isinstance(named, TEnum):
            if e.name not in named.decl.values:
                raise self.reporter.fail(e.name_at, f"enum {named} has no member '{e.name}'")
            e.type = named
            e.value = named.decl.values[e.name] if named.underlying else EnumValue(named.decl.name, e.name)
            return e
        if named is ERROR:
            if e.name not in self.errors:
                raise self.reporter.fail(e.name_at, f"error '{e.name}' is not declared")
            e.type, e.value = ERROR, EnumValue("error", e.name)
            return e
        if isinstance(named, TBlock) and e.name == "apply" and named.kind in ("parser", "control"):
            e.type = TCallable("apply")
            return e
        if e.name in SIZE_METHODS:
            e.type = TCallable(e.name)
            return e
        raise self.reporter.fail(e.name_at, f"type {named} has no member '{e.name}'")

    def _struct_member(self, e: ast.Member, base: TStruct) -> ast.Expr:
        t = base.field(e.name)
        if t is not None:
            e.type = t
            if isinstance(e.base.value, tuple):
                e.value = e.base.value[[n for n, _ in base.fields()].index(e.name)]
            return e
        methods = SIZE_METHODS if base.kind == "struct" else HEADER_METHODS
        if e.name in methods:
            e.type = TCallable(e.name)
            return e
        raise self.reporter.fail(e.name_at, f"{base.kind} {base} has no field '{e.name}'")

    def _stack_member(self, e: ast.Member, base: TStack) -> ast.Expr:
        if e.name in ("next", "last"):
            if not self.in_parser:
                raise self.reporter.fail(e.name_at, f"'{e.name}' of a header stack can only be used in a parser")
            e.type = base.element
        elif e.name == "lastIndex":
            if not self.in_parser:
                raise self.reporter.fail(e.name_at, "'lastIndex' of a header stack can only be used in a parser")
            e.type = TBits(32)
        elif e.name == "size":
            e.type, e.value = TBits(32), base.size
        elif e.name in STACK_METHODS:
            e.type = TCallable(e.name)
        else:
            raise self.reporter.fail(e.name_at, f"header stack {base} has no member '{e.name}'")
        return e

    def _table_member(self, e: ast.Member, base: TTable) -> ast.Expr:
        if base.what == "table" and e.name == "apply":
            e.type = TCallable("apply")
        elif base.what == "result" and e.name in ("hit", "miss"):
            e.type = BOOL
        elif base.what == "result" and e.name == "action_run":
            e.type = TTable(base.decl, "action")
        else:
            raise self.reporter.fail(e.name_at, f"{base} has no member '{e.name}'")
        return e

    def _block_member(self, e: ast.Member, base: TBlock) -> ast.Expr:
        if isinstance(base.decl, ast.ParserDecl | ast.ControlDecl) and e.name == "apply":
            e.type = TCallable("apply")
            return e
        if isinstance(base.decl, ast.ExternDecl) and any(m.name == e.name for m in base.decl.methods):
            e.type = TCallable(e.name)
            return e
        raise self.reporter.fail(e.name_at, f"{base} has no member '{e.name}'")

    def _index(self, e: ast.Index) -> ast.Expr:
        e.base = self.value_of(e.base)
        e.index = self.value_of(e.index)
        base = e.base.type
        if base is UNKNOWN or e.index.type is UNKNOWN:
            raise AbortError
        index_type = e.index.type
        if isinstance(index_type, TEnum) and index_type.underlying is not None:
            e.index = self.coerce(e.index, index_type.underlying)
        elif index_type is not INT and not isinstance(index_type, TBits):
            raise self.reporter.fail(e.index.at, f"an index must be a number, found {index_type}")
        at = e.index.value
        if isinstance(base, TTuple):
            if not isinstance(at, int):
                raise self.reporter.fail(e.index.at, "the index of a tuple must be known at compile time")
            if not 0 <= at < len(base.elements):
                raise self.reporter.fail(e.index.at, f"index {at} is outside of {base}")
            e.type = base.elements[at]
            if isinstance(e.base.value, tuple):
                e.value = e.base.value[at]
            return e
        if not isinstance(base, TStack):
            raise self.reporter.fail(e.at, f"{base} cannot be indexed")
        if isinstance(at, int) and not 0 <= at < base.size:
            raise self.reporter.fail(e.index.at, f"index {at} is outside of the stack's {base.size} elements")
        e.type = base.element
        return e

    def _slice(self, e: ast.Slice) -> ast.Expr:
        e.base = self.value_of(e.base)
        base = e.base.type
        if base is UNKNOWN:
            raise AbortError
        if isinstance(base, TEnum) and base.underlying is not None:
            e.base, base = self.convert(e.base, base.underlying), base.underlying
        if isinstance(base, TNew):
            raise self.reporter.fail(e.at, f"{base} has no bit slices; cast it first")
        if not isinstance(base, TBits) and base is not INT:
            raise self.reporter.fail(e.at, f"{base} has no bit slices")
        if e.plus:
            e.high = self.value_of(e.high)
            width = self.constant_int(e.low, "the width of a slice")
            if width <= 0:
                raise self.reporter.fail(e.low.at, "the width of a slice must be positive")
            e.type = TBits(width)
            if isinstance(e.high.value, int):
                self._slice_bounds(e, base, e.high.value + width - 1, e.high.value)
            return e
        high = self.constant_int(e.high, "a bound of a slice")
        low = self.constant_int(e.low, "a bound of a slice")
        self._slice_bounds(e, base, high, low)
        e.type = TBits(high - low + 1)
        return e

    def _slice_bounds(self, e: ast.Slice, base: Type, high: int, low: int) -> None:
        if low < 0 or high < low:
            raise self.reporter.fail(e.high.at, f"bit slice [{high}:{low}] is backwards or negative")
        if isinstance(base, TBits) and high >= base.width:
            raise self.reporter.fail(e.high.at, f"bit {high} is outside of {base}")
        e.bounds = (high, low)
        if isinstance(e.base.value, int):
            e.value = (e.base.value >> low) & ((1 << (high - low + 1)) - 1)

    # ---------------------------------------------------------------- aggregates and sets

    def _list(self, e: ast.ListExpr) -> ast.Expr:
        e.items = [self.value_of(item) for item in e.items]
        e.type = TTuple(tuple(item.type for item in e.items))
        if not e.dots and all(item.value is not None for item in e.items):
            e.value = tuple(item.value for item in e.items)
        return e

    def _struct(self, e: ast.StructExpr) -> ast.Expr:
        e.fields = [(name, at, self.value_of(item)) for name, at, item in e.fields]
        seen: set[str] = set()
        for name, at, _ in e.fields:
            if name in seen:
                self.reporter.error(at, f"field '{name}' has two values")
            seen.add(name)
        e.type = TRecord(tuple((name, item.type) for name, _, item in e.fields))
        return e

    def _mask(self, e: ast.Mask) -> ast.Expr:
        return self._pair(e)

    def _range(self, e: ast.Range) -> ast.Expr:
        return self._pair(e)

    def _pair(self, e: ast.Mask | ast.Range) -> ast.Expr:
        e.left = self.underlying(self.value_of(e.left))
        e.right = self.underlying(self.value_of(e.right))
        if e.left.type is INT and isinstance(e.right.type, TBits):
            e.left = self.convert(e.left, e.right.type)
        elif e.right.type is INT and isinstance(e.left.type, TBits):
            e.right = self.convert(e.right, e.left.type)
        if UNKNOWN in (e.left.type, e.right.type):
            raise AbortError
        if e.left.type != e.right.type or not (isinstance(e.left.type, TBits) or e.left.type is INT):
            what = "&&&" if isinstance(e, ast.Mask) else ".."
            raise self.reporter.fail(e.at, f"'{what}' is not defined for {e.left.type} and {e.right.type}")
        e.type = TSet(e.left.type)
        return e

    def keyset(self, e: ast.Expr, key: Type) -> ast.Expr:
        """Check one element of a keyset against the key's type."""
        e = self.check(e)
        if e.type is UNKNOWN or key is UNKNOWN:
            return e
        if isinstance(e, ast.DefaultExpr):
            return e
        base = key
        while isinstance(base, TNew):
            base = base.underlying
        if (
            isinstance(base, TEnum)
            and base.underlying is not None
            and (isinstance(e, ast.Mask | ast.Range) or e.type != base)
        ):
            base = base.underlying
        if isinstance(e, ast.Mask | ast.Range):
            e.left = self.coerce(e.left, base)
            e.right = self.coerce(e.right, base)
            e.type = TSet(base)
            return e
        if isinstance(e.type, TSet):
            if e.type.element != key:
                self.reporter.error(e.at, f"expected a set of {key}, found {e.type}")
            return e
        if isinstance(e.type, TNew) and e.type == key:
            return e
        return self.coerce(e, base) if e.type is INT or base is not key else self.coerce(e, key)
