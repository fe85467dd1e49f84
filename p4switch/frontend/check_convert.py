"""Second layer of the checker: implicit conversions, explicit casts, and what can be written to."""

from __future__ import annotations

from p4switch.frontend import ast, constants
from p4switch.frontend.check_types import TypeResolver
from p4switch.frontend.types import (
    ANY,
    BOOL,
    DOTS,
    INT,
    INVALID,
    UNKNOWN,
    TBits,
    TEnum,
    TList,
    TNew,
    TRecord,
    TStack,
    TStruct,
    TTuple,
    TVar,
    TVarbits,
    Type,
    is_header_like,
)


class ConversionChecker(TypeResolver):
    """Converts checked expressions."""

    # ---------------------------------------------------------------- conversions

    def mismatch(self, e: ast.Expr, want: Type) -> ast.Expr:
        """Report that a type does not fit."""
        if e.type is not UNKNOWN and want is not UNKNOWN:
            self.reporter.error(e.at, f"expected {want}, found {e.type}")
        e.type = UNKNOWN
        return e

    def coerce(self, e: ast.Expr, want: Type) -> ast.Expr:
        """Convert implicitly as the language allows, or report."""
        t = e.type
        if t == want or t is UNKNOWN or want is UNKNOWN or want is ANY:
            return e
        if isinstance(e, ast.ListExpr):
            return self._coerce_list(e, want)
        if isinstance(e, ast.StructExpr):
            return self._coerce_struct(e, want)
        if t is DOTS:
            e.type = want
            return e
        if t is INVALID:
            if not is_header_like(want) and not isinstance(want, TVar):
                return self.mismatch(e, want)
            e.type = want
            return e
        if isinstance(e, ast.Ternary) and (t is INT or isinstance(t, TTuple | TRecord)):
            e.yes = self.coerce(e.yes, want)
            e.no = self.coerce(e.no, want)
            e.type = want
            return e
        if t is INT and isinstance(want, TBits | TNew) and castable(t, want):
            return self.convert(e, want)
        if isinstance(t, TEnum) and t.underlying is not None and isinstance(want, TBits) and t.underlying == want:
            return self.convert(e, want)
        return self.mismatch(e, want)

    def convert(self, e: ast.Expr, want: Type) -> ast.Expr:
        """Wrap in an implicit cast."""
        cast = ast.Cast(at=e.at, ref=None, operand=e)
        cast.type = want
        if isinstance(e.value, int):
            if isinstance(want, TBits) and e.type is INT and not constants.fits(e.value, want):
                unsigned_ok = want.signed is False and constants.fits(e.value, TBits(want.width, True))
                if not unsigned_ok:
                    self.reporter.warning(e.at, f"{e.value} does not fit in {want}")
            cast.value = constants.cast(e.value, want)
        return cast

    def _coerce_list(self, e: ast.ListExpr, want: Type) -> ast.Expr:
        if isinstance(want, TStruct) and want.kind != "header_union":
            targets = [f for _, f in want.fields()]
        elif isinstance(want, TTuple):
            targets = list(want.elements)
        elif isinstance(want, TStack | TList):
            targets = [want.element] * (len(e.items) if isinstance(want, TList) else want.size)
        elif isinstance(want, TVar):
            return e
        else:
            return self.mismatch(e, want)
        short = len(e.items) < len(targets) and (e.dots or isinstance(want, TStack))
        if len(e.items) > len(targets) or (len(e.items) < len(targets) and not short):
            raise self.reporter.fail(e.at, f"{want} has {len(targets)} parts, this list has {len(e.items)}")
        e.items = [self.coerce(item, target) for item, target in zip(e.items, targets, strict=False)]
        e.type = want
        if not short and all(item.value is not None for item in e.items):
            e.value = tuple(item.value for item in e.items)
        return e

    def _coerce_struct(self, e: ast.StructExpr, want: Type) -> ast.Expr:
        if isinstance(want, TVar):
            return e
        if not isinstance(want, TStruct) or want.kind == "header_union":
            return self.mismatch(e, want)
        given = {name: (at, item) for name, at, item in e.fields}
        out: list[tuple[str, int, ast.Expr]] = []
        for name, t in want.fields():
            if name in given:
                at, item = given.pop(name)
                out.append((name, at, self.coerce(item, t)))
            elif not e.dots:
                self.reporter.error(e.at, f"field '{name}' of {want} has no value")
        for name, (at, _) in given.items():
            self.reporter.error(at, f"{want} has no field '{name}'")
        e.fields = out
        e.type = want
        if not e.dots and all(item.value is not None for _, _, item in out):
            e.value = tuple(item.value for _, _, item in out)
        return e

    # ---------------------------------------------------------------- places

    def require_place(self, e: ast.Expr, what: str) -> None:
        """Report unless the expression can be written to."""
        if e.type is UNKNOWN:
            return
        problem = self._place_problem(e)
        if problem:
            self.reporter.error(e.at, f"{what} must be something that can be written: {problem}")

    def _place_problem(self, e: ast.Expr) -> str:
        if isinstance(e, ast.Name):
            decl = e.decl
            if isinstance(decl, ast.VariableDecl):
                return ""
            if isinstance(decl, ast.Parameter):
                if decl.direction in ("out", "inout"):
                    return ""
                return (
                    f"parameter '{e.name}' is read-only"
                    if decl.direction == "in"
                    else f"parameter '{e.name}' has no direction"
                )
            return f"'{e.name}' is not a variable"
        if isinstance(e, ast.Member):
            if isinstance(e.base.type, TStack) and e.name in ("lastIndex", "size"):
                return f"'{e.name}' is read-only"
            if isinstance(e.base.type, TStruct | TStack):
                return self._place_problem(e.base)
            return f"'{e.name}' is not a field"
        if isinstance(e, ast.Index | ast.Slice):
            return self._place_problem(e.base)
        return "this is a value"


def castable(source: Type, target: Type) -> bool:
    """Whether an explicit cast exists."""
    if source == target:
        return True
    if isinstance(target, TVar) or isinstance(source, TVar):
        return True
    if isinstance(target, TNew):
        return source == target.underlying or (source is INT and castable(source, target.underlying))
    if isinstance(source, TNew):
        return castable(source.underlying, target)
    if isinstance(source, TEnum):
        return source.underlying is not None and castable(source.underlying, target)
    if isinstance(target, TEnum):
        return target.underlying is not None and castable(source, target.underlying)
    if source is INT:
        return isinstance(target, TBits) or target == BOOL
    if isinstance(source, TBits) and isinstance(target, TBits):
        return source.width == target.width or source.signed == target.signed
    if target == BOOL:
        return source == TBits(1)
    if source == BOOL:
        return target == TBits(1)
    if isinstance(source, TBits) and target is INT:
        return True
    return isinstance(source, TVarbits) and isinstance(target, TVarbits) and source == target
