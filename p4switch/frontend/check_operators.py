"""Third layer of the checker: operators and casts, and what they come to at compile time."""

from __future__ import annotations

from p4switch.frontend import ast, constants
from p4switch.frontend.check_convert import ConversionChecker, castable
from p4switch.frontend.constants import ConstantError
from p4switch.frontend.source import AbortError
from p4switch.frontend.types import (
    BOOL,
    DOTS,
    INT,
    INVALID,
    STATE,
    STRING,
    UNKNOWN,
    VOID,
    TBits,
    TBlock,
    TEnum,
    TTable,
    TVar,
    Type,
)

RELATIONAL = frozenset({"<", "<=", ">", ">="})


class OperatorChecker(ConversionChecker):
    """Checks operators; their operands are the next layer's."""

    def value_of(self, e: ast.Expr, want: Type | None = None) -> ast.Expr:
        """Check an expression that must be a value (layer above)."""
        raise AssertionError("provided by ExpressionChecker")

    def unary(self, e: ast.Unary) -> ast.Expr:
        """A unary operator."""
        e.operand = self.value_of(e.operand)
        t = e.operand.type
        if t is UNKNOWN:
            raise AbortError
        if isinstance(t, TEnum) and t.underlying is not None:
            e.operand, t = self.convert(e.operand, t.underlying), t.underlying
        good = t == BOOL if e.op == "!" else isinstance(t, TBits) or (t is INT and e.op != "~")
        if not good:
            raise self.reporter.fail(e.at, f"operator '{e.op}' is not defined for {t}")
        e.type = t
        if isinstance(e.operand.value, int):
            e.value = constants.unary(e.op, e.operand.value, t)
        return e

    def underlying(self, e: ast.Expr) -> ast.Expr:
        """A serializable enum as the number that it stands for; anything else as it is."""
        t = e.type
        return self.convert(e, t.underlying) if isinstance(t, TEnum) and t.underlying is not None else e

    def binary(self, e: ast.Binary) -> ast.Expr:
        """A binary operator."""
        e.left = self.value_of(e.left)
        e.right = self.value_of(e.right)
        if e.left.type is UNKNOWN or e.right.type is UNKNOWN:
            raise AbortError
        if e.op in ("&&", "||"):
            e.left = self.coerce(e.left, BOOL)
            e.right = self.coerce(e.right, BOOL)
            e.type = BOOL
        elif e.op in ("==", "!="):
            self._equality(e)
        elif e.op in ("<<", ">>"):
            self._shift(e)
        elif e.op == "++":
            self._concat(e)
        else:
            self._arithmetic(e)
        self._fold(e)
        return e

    def _bad_operands(self, e: ast.Binary) -> AbortError:
        return self.reporter.fail(e.at, f"operator '{e.op}' is not defined for {e.left.type} and {e.right.type}")

    def _balance(self, e: ast.Binary) -> None:
        """Bring an int operand to the other's type."""
        if e.left.type is INT and isinstance(e.right.type, TBits):
            e.left = self.convert(e.left, e.right.type)
        elif e.right.type is INT and isinstance(e.left.type, TBits):
            e.right = self.convert(e.right, e.left.type)

    def _equality(self, e: ast.Binary) -> None:
        if e.left.type != e.right.type:
            e.left, e.right = self.underlying(e.left), self.underlying(e.right)
            self._balance(e)
        left, right = e.left.type, e.right.type
        if left != right:
            if isinstance(e.right, ast.ListExpr | ast.StructExpr | ast.InvalidExpr):
                e.right = self.coerce(e.right, left)
            elif isinstance(e.left, ast.ListExpr | ast.StructExpr | ast.InvalidExpr):
                e.left = self.coerce(e.left, right)
            else:
                raise self._bad_operands(e)
        t = e.left.type
        if isinstance(t, TBlock | TTable | TVar) or t in (STATE, INVALID, DOTS, VOID):
            raise self._bad_operands(e)
        e.type = BOOL

    def _shift(self, e: ast.Binary) -> None:
        e.left, e.right = self.underlying(e.left), self.underlying(e.right)
        left, right = e.left.type, e.right.type
        if not (isinstance(left, TBits) or left is INT) or not (isinstance(right, TBits) or right is INT):
            raise self._bad_operands(e)
        if isinstance(right, TBits) and right.signed and e.right.value is None:
            raise self.reporter.fail(e.right.at, f"the shift amount must be unsigned, found {right}")
        if isinstance(e.right.value, int) and e.right.value < 0:
            raise self.reporter.fail(e.right.at, "the shift amount must not be negative")
        if left is INT and e.right.value is None and right is not INT:
            raise self.reporter.fail(
                e.left.at, "a number without width cannot be shifted by a value known only at run time"
            )
        e.type = left

    def _concat(self, e: ast.Binary) -> None:
        e.left, e.right = self.underlying(e.left), self.underlying(e.right)
        left, right = e.left.type, e.right.type
        if left == STRING and right == STRING:
            e.type = STRING
            return
        if not isinstance(left, TBits) or not isinstance(right, TBits):
            raise self._bad_operands(e)
        e.type = TBits(left.width + right.width, left.signed)

    def _arithmetic(self, e: ast.Binary) -> None:
        e.left, e.right = self.underlying(e.left), self.underlying(e.right)
        if e.op in ("/", "%"):
            for operand in (e.left, e.right):
                if operand.type is INT and isinstance(operand.value, int) and operand.value < 0:
                    raise self.reporter.fail(operand.at, f"operator '{e.op}' is not defined for negative numbers")
        self._balance(e)
        t = e.left.type
        if t != e.right.type or not (isinstance(t, TBits) or t is INT):
            raise self._bad_operands(e)
        if t is INT and e.op in ("|+|", "|-|"):
            raise self._bad_operands(e)
        if e.op in ("/", "%"):
            if isinstance(t, TBits) and t.signed:
                raise self.reporter.fail(e.at, f"operator '{e.op}' is not defined for signed {t}")
            if e.right.value == 0:
                raise self.reporter.fail(e.right.at, "division by zero")
        e.type = BOOL if e.op in RELATIONAL else t

    def _fold(self, e: ast.Binary) -> None:
        left, right = e.left.value, e.right.value
        if e.op in ("&&", "||"):
            if isinstance(left, bool) and left == (e.op == "||"):
                e.value = left
            elif isinstance(left, bool) and isinstance(right, bool):
                e.value = right
            return
        if left is None or right is None:
            return
        if isinstance(left, int) and isinstance(right, int):
            try:
                e.value = constants.binary(e.op, left, right, e.left.type, e.right.type)
            except ConstantError as problem:
                raise self.reporter.fail(e.at, str(problem)) from problem
        elif e.op in ("==", "!="):
            e.value = (left == right) == (e.op == "==")
        elif e.op == "++" and isinstance(left, str):
            e.value = left + str(right)

    def ternary(self, e: ast.Ternary) -> ast.Expr:
        """`condition ? yes : no`."""
        e.condition = self.value_of(e.condition, BOOL)
        e.yes = self.value_of(e.yes)
        e.no = self.value_of(e.no)
        yes, no = e.yes.type, e.no.type
        if yes is UNKNOWN or no is UNKNOWN:
            raise AbortError
        if yes is INT and isinstance(no, TBits):
            e.yes = self.convert(e.yes, no)
        elif no is INT and isinstance(yes, TBits):
            e.no = self.convert(e.no, yes)
        elif yes != no:
            if isinstance(e.yes, ast.ListExpr | ast.StructExpr | ast.InvalidExpr):
                e.yes = self.coerce(e.yes, no)
            else:
                e.no = self.coerce(e.no, yes)
        e.type = e.yes.type
        if isinstance(e.condition.value, bool):
            e.value = (e.yes if e.condition.value else e.no).value
        return e

    def cast(self, e: ast.Cast) -> ast.Expr:
        """`(type) operand`."""
        target = e.type if e.ref is None else self.resolve(e.ref)
        e.operand = self.value_of(e.operand)
        source = e.operand.type
        if target is UNKNOWN or source is UNKNOWN:
            raise AbortError
        if isinstance(e.operand, ast.ListExpr | ast.StructExpr | ast.InvalidExpr) or source in (DOTS, INVALID):
            return self.coerce(e.operand, target)
        if not castable(source, target):
            raise self.reporter.fail(e.at, f"cannot cast {source} to {target}")
        e.type = target
        value = e.operand.value
        if isinstance(value, int):
            if source is INT and target == BOOL and value not in (0, 1):
                raise self.reporter.fail(e.at, "only 0 and 1 can be cast to bool")
            e.value = constants.cast(value, target)
        elif value is not None:
            e.value = value
        return e
