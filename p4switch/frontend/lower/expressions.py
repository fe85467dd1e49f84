"""Lowering of expressions. Calls inside become statements before; operands read before a call are saved first."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lower.base import BIT32, TRUE, Instance, Known, LowerBase
from p4switch.frontend.types import INT, TBits, TStack, TStruct, TTable, TTuple
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp
from p4switch.ir.stmt import Assign, AssignSlice, If, ParserCheck, SetNextIndex, SetValidity

_BINARY = {op.value: op for op in BinaryOp}
_UNARY = {"-": UnaryOp.NEGATE, "~": UnaryOp.COMPLEMENT, "!": UnaryOp.NOT}


class ExpressionLowering(LowerBase):
    """Expressions, places and assignments."""

    # ---------------------------------------------------------------- provided by the next layer

    def call_value(self, e: ast.Call) -> ir.Expr:
        """Lower a call that gives a value."""
        raise AssertionError("provided by CallLowering")

    # ---------------------------------------------------------------- values

    def expr(self, e: ast.Expr) -> ir.Expr:
        """Lower a value. Aggregates come back as places."""
        placed = self.placed.get(id(e))
        if placed is not None:
            return placed
        known = self.known(e)
        if known is not None and not isinstance(known, tuple | str):
            t = self.concrete(e.type)
            if t is INT:
                raise self.reporter.fail(e.at, "the width of this number is not known")
            return self.constant(known, t, e.at)
        if isinstance(e, ast.Name | ast.Index):
            return self.place(e)
        if isinstance(e, ast.Member):
            return self._member(e)
        if isinstance(e, ast.Call):
            return self.call_value(e)
        if isinstance(e, ast.Unary):
            return self._unary(e)
        if isinstance(e, ast.Binary):
            return self._binary(e)
        if isinstance(e, ast.Slice):
            return self._slice(e)
        if isinstance(e, ast.Ternary):
            return self._ternary(e)
        if isinstance(e, ast.Cast):
            return self._cast(e)
        if isinstance(e, ast.ListExpr | ast.StructExpr | ast.InvalidExpr | ast.DotsExpr):
            return self.build(e)
        raise self.unsupported(e.at, "this expression")

    def _member(self, e: ast.Member) -> ir.Expr:
        if isinstance(e.base.type, TTable):
            return self._table_result(e)
        if isinstance(e.base.type, TStack) and e.name == "lastIndex":
            stack = self.place(e.base)
            return ir.Binary(BinaryOp.SUB, ir.NextIndex(stack), ir.Const(1, BIT32), BIT32)
        return self.place(e)

    def _table_result(self, e: ast.Member) -> ir.Expr:
        if not isinstance(e.base, ast.Call):
            raise self.unsupported(e.at, "a table's result kept in a variable")
        hit = self.new_variable("hit", irt.Bool())
        self.apply_table(e.base, hit.name, None)
        return hit if e.name == "hit" else ir.Unary(UnaryOp.NOT, hit, irt.Bool())

    def apply_table(self, e: ast.Call, hit: str | None, action_run: str | None) -> None:
        """Lower table.apply()."""
        raise AssertionError("provided by TableLowering")

    def _unary(self, e: ast.Unary) -> ir.Expr:
        operand = self.expr(e.operand)
        return operand if e.op == "+" else ir.Unary(_UNARY[e.op], operand, operand.type)

    def _binary(self, e: ast.Binary) -> ir.Expr:
        if e.op in ("&&", "||"):
            return self._logical(e)
        left = self.expr(e.left)
        mark_after = len(self.out)
        if isinstance(e.right, ast.IntLiteral | ast.Cast | ast.Name) and self.concrete(e.right.type) is INT:
            right: ir.Expr = self._shift_amount(e)
        else:
            right = self.expr(e.right)
        if len(self.out) > mark_after:
            left = self._saved_before(left, mark_after)
        if e.op in ("==", "!="):
            equal = self.equal(left, right)
            return equal if e.op == "==" else negate(equal)
        op = _BINARY[e.op]
        if op in ir.COMPARISONS:
            return ir.Binary(op, left, right, irt.Bool())
        return ir.Binary(op, left, right, self.type(self.concrete(e.type), e.at))

    def _shift_amount(self, e: ast.Binary) -> ir.Const:
        """A number without width: only shifts have one on the right."""
        value = self.known_int(e.right, "the shift amount")
        return ir.Const(min(value, (1 << 32) - 1), BIT32)

    def _saved_before(self, value: ir.Expr, mark: int) -> ir.Expr:
        """Keep an operand's value from before the statements emitted since `mark`."""
        if isinstance(value, ir.Const):
            return value
        variable = self.new_variable("left", value.type)
        self.out.insert(mark, Assign(variable, value))
        return variable

    def _logical(self, e: ast.Binary) -> ir.Expr:
        left = self.expr(e.left)
        with self.body() as statements:
            right = self.expr(e.right)
        op = BinaryOp.LAND if e.op == "&&" else BinaryOp.LOR
        if not statements:
            return ir.Binary(op, left, right, irt.Bool())
        result = self.new_variable("logic", irt.Bool())
        self.emit(Assign(result, left))
        body = (*statements, Assign(result, right))
        condition = result if op is BinaryOp.LAND else negate(result)
        self.emit(If(condition, body, ()))
        return result

    def equal(self, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        """left == right for any type, as an expression on scalars."""
        t = left.type
        if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
            return ir.Binary(BinaryOp.EQ, left, right, irt.Bool())
        assert isinstance(left, ir.VarRef | ir.Member | ir.Element)
        assert isinstance(right, ir.VarRef | ir.Member | ir.Element)
        if isinstance(t, irt.StackType):
            parts = [
                self.equal(
                    ir.Element(left, ir.Const(i, BIT32), t.element), ir.Element(right, ir.Const(i, BIT32), t.element)
                )
                for i in range(t.size)
            ]
            return conjunction(parts)
        fields = [self.equal(ir.Member(left, f.name, f.type), ir.Member(right, f.name, f.type)) for f in t.fields]
        if not isinstance(t, irt.HeaderType):
            return conjunction(fields)
        both = ir.Binary(BinaryOp.LAND, ir.IsValid(left), conjunction([ir.IsValid(right), *fields]), irt.Bool())
        neither = ir.Binary(BinaryOp.LAND, negate(ir.IsValid(left)), negate(ir.IsValid(right)), irt.Bool())
        return ir.Binary(BinaryOp.LOR, both, neither, irt.Bool())

    def _slice(self, e: ast.Slice) -> ir.Expr:
        base = self.expr(e.base)
        t = self.type(self.concrete(e.type), e.at)
        if e.bounds is not None:
            return ir.Slice(base, e.bounds[0], e.bounds[1], t)
        start = self.expr_of_width(e.high)
        return ir.Cast(unsigned(ir.Binary(BinaryOp.SHR, unsigned(base), start, unsigned(base).type)), t)

    def expr_of_width(self, e: ast.Expr) -> ir.Expr:
        """A value; a number without width becomes bit<32>."""
        if self.concrete(e.type) is INT:
            return ir.Const(self.known_int(e, "this number") & 0xFFFFFFFF, BIT32)
        return self.expr(e)

    def _ternary(self, e: ast.Ternary) -> ir.Expr:
        known = self.known(e.condition)
        if isinstance(known, bool):
            return self.expr(e.yes if known else e.no)
        condition = self.expr(e.condition)
        with self.body() as yes_statements:
            yes = self.expr(e.yes)
        with self.body() as no_statements:
            no = self.expr(e.no)
        if not yes_statements and not no_statements and is_scalar(yes.type):
            return ir.Mux(condition, yes, no, yes.type)
        result = self.new_variable("choice", yes.type)
        self.emit(If(condition, (*yes_statements, Assign(result, yes)), (*no_statements, Assign(result, no))))
        return result

    def _cast(self, e: ast.Cast) -> ir.Expr:
        target = self.concrete(e.type)
        source = self.concrete(e.operand.type)
        if isinstance(target, TStruct | TTuple | TStack) and source != target:
            return self._cast_aggregate(e)
        operand = self.expr(e.operand)
        t = self.type(target, e.at)
        return operand if operand.type == t else ir.Cast(operand, t)

    def _cast_aggregate(self, e: ast.Cast) -> ir.Expr:
        source = self.expr(e.operand)
        assert isinstance(source, ir.VarRef | ir.Member | ir.Element)
        assert isinstance(source.type, irt.StructType)
        t = self.type(self.concrete(e.type), e.at)
        result = self.new_variable("cast", t)
        if not isinstance(t, irt.StructType | irt.HeaderType):
            raise self.unsupported(e.at, f"a cast to {t}")
        for mine, theirs in zip(t.fields, source.type.fields, strict=True):
            self.emit(Assign(ir.Member(result, mine.name, mine.type), ir.Member(source, theirs.name, theirs.type)))
        return result

    # ---------------------------------------------------------------- aggregates built in place

    def build(self, e: ast.Expr) -> ir.LValue:
        """A list, struct, invalid-header or default expression in a fresh variable."""
        t = self.type(self.concrete(e.type), e.at)
        result = self.new_variable("built", t)
        self.clear(result)
        self.fill(result, e)
        return result

    def clear(self, target: ir.LValue) -> None:
        """Bring a place to its default: zero, headers invalid."""
        t = target.type
        if isinstance(t, irt.HeaderType):
            self.emit(SetValidity(target, False))
        elif isinstance(t, irt.StackType):
            for i in range(t.size):
                self.clear(ir.Element(target, ir.Const(i, BIT32), t.element))
            self.emit(SetNextIndex(target, ir.Const(0, BIT32)))
        elif isinstance(t, irt.StructType | irt.UnionType):
            for f in t.fields:
                self.clear(ir.Member(target, f.name, f.type))
        elif not isinstance(t, irt.Varbits):
            self.emit(Assign(target, ir.Const(0, t)))

    def invalidate(self, target: ir.LValue) -> None:
        """Make every header inside a place invalid, leave the rest."""
        t = target.type
        if isinstance(t, irt.HeaderType):
            self.emit(SetValidity(target, False))
        elif isinstance(t, irt.StackType):
            for i in range(t.size):
                self.invalidate(ir.Element(target, ir.Const(i, BIT32), t.element))
            self.emit(SetNextIndex(target, ir.Const(0, BIT32)))
        elif isinstance(t, irt.StructType | irt.UnionType):
            for f in t.fields:
                self.invalidate(ir.Member(target, f.name, f.type))

    def fill(self, target: ir.LValue, e: ast.Expr) -> None:
        """Assign an aggregate expression part by part."""
        t = target.type
        if isinstance(e, ast.InvalidExpr | ast.DotsExpr):
            self.clear(target)
            return
        if isinstance(t, irt.StackType):
            assert isinstance(e, ast.ListExpr)
            for i, item in enumerate(e.items):
                self.fill_part(ir.Element(target, ir.Const(i, BIT32), t.element), item)
            return
        assert isinstance(t, irt.StructType | irt.HeaderType)
        if isinstance(t, irt.HeaderType):
            self.emit(SetValidity(target, True))
        items = e.items if isinstance(e, ast.ListExpr) else []
        named = dict(zip((f.name for f in t.fields), items, strict=False))
        if isinstance(e, ast.StructExpr):
            named = {name: item for name, _, item in e.fields}
        for f in t.fields:
            part = ir.Member(target, f.name, f.type)
            if f.name in named:
                self.fill_part(part, named[f.name])
            else:
                self.clear(part)

    def fill_part(self, target: ir.LValue, e: ast.Expr) -> None:
        """Assign one part, in place where it is itself an aggregate expression."""
        if isinstance(e, ast.ListExpr | ast.StructExpr | ast.InvalidExpr | ast.DotsExpr):
            self.fill(target, e)
        else:
            self.store(target, self.expr(e))

    # ---------------------------------------------------------------- places

    def place(self, e: ast.Expr) -> ir.LValue:
        """Lower an expression that names storage; a value that has none gets a variable."""
        placed = self.placed.get(id(e))
        if placed is not None:
            return placed
        if isinstance(e, ast.Name):
            return self._name_place(e)
        if isinstance(e, ast.Member):
            return self._member_place(e)
        if isinstance(e, ast.Index):
            return self._index_place(e)
        value = self.expr(e)
        if isinstance(value, ir.VarRef | ir.Member | ir.Element):
            return value
        saved = self.new_variable("value", value.type)
        self.emit(Assign(saved, value))
        return saved

    def _name_place(self, e: ast.Name) -> ir.LValue:
        binding = self.env.find(e.decl)
        if isinstance(binding, ir.VarRef | ir.Member | ir.Element):
            return binding
        if isinstance(e.decl, ast.Constant):
            return self.build(e.decl.init)
        if isinstance(binding, Known):
            raise self.unsupported(e.at, f"constructor parameter {e.name} of type {binding.type}")
        if isinstance(binding, Instance):
            raise self.unsupported(e.at, f"instance {e.name} as a value")
        raise self.unsupported(e.at, f"'{e.name}' here")

    def _member_place(self, e: ast.Member) -> ir.LValue:
        base = e.base.type
        if isinstance(base, TStack) and e.name in ("next", "last"):
            return self._next_or_last(e)
        place = self.place(e.base)
        t = place.type
        if isinstance(t, irt.StructType | irt.HeaderType | irt.UnionType):
            return ir.Member(place, e.name, t.field(e.name).type)
        raise self.unsupported(e.at, f"member {e.name} of {t}")

    def _next_or_last(self, e: ast.Member) -> ir.LValue:
        stack = self.place(e.base)
        t = stack.type
        assert isinstance(t, irt.StackType)
        index: ir.Expr = ir.NextIndex(stack)
        out_of_bounds = ir.Const(self.errors.members.index("StackOutOfBounds"), self.errors)
        if e.name == "next":
            self.emit(ParserCheck(ir.Binary(BinaryOp.LT, index, ir.Const(t.size, BIT32), irt.Bool()), out_of_bounds))
        else:
            self.emit(ParserCheck(ir.Binary(BinaryOp.NE, index, ir.Const(0, BIT32), irt.Bool()), out_of_bounds))
            index = ir.Binary(BinaryOp.SUB, index, ir.Const(1, BIT32), BIT32)
        return ir.Element(stack, index, t.element)

    def _index_place(self, e: ast.Index) -> ir.LValue:
        if isinstance(e.base.type, TTuple):
            base = self.place(e.base)
            at = self.known_int(e.index, "the index")
            t = base.type
            assert isinstance(t, irt.StructType)
            return ir.Member(base, f"f{at}", t.fields[at].type)
        base = self.place(e.base)
        t = base.type
        assert isinstance(t, irt.StackType)
        index = self.expr_of_width(e.index)
        if not isinstance(index, ir.Const):
            index = self.save(unsigned(index), "index")
        return ir.Element(base, index, t.element)

    # ---------------------------------------------------------------- assignment

    def store(self, target: ir.LValue, value: ir.Expr) -> None:
        """target = value; the header of a union takes the place of its siblings."""
        self.emit(Assign(target, value))
        if (
            isinstance(target.type, irt.HeaderType)
            and isinstance(target, ir.Member)
            and isinstance(target.base.type, irt.UnionType)
        ):
            with self.body() as statements:
                self.invalidate_siblings(target)
            self.emit(If(ir.IsValid(target), tuple(statements), ()))

    def invalidate_siblings(self, header: ir.LValue) -> None:
        """The other headers of the union that a header is in."""
        if isinstance(header, ir.Member) and isinstance(header.base.type, irt.UnionType):
            for f in header.base.type.fields:
                if f.name != header.field:
                    self.emit(SetValidity(ir.Member(header.base, f.name, f.type), False))

    def assign_operated(self, target: ast.Expr, value: ast.Expr) -> None:
        """Lower target op= value, where `value` is `target op value`: the place is worked out once."""
        base = target
        while isinstance(base, ast.Slice):
            base = base.base
        self.placed[id(base)] = self.place(base)
        self.assign(target, value)
        del self.placed[id(base)]

    def assign(self, target: ast.Expr, value: ast.Expr) -> None:
        """Lower target = value."""
        if isinstance(target, ast.Slice):
            self._assign_slice(target, value)
            return
        place = self.place(target)
        if isinstance(value, ast.InvalidExpr) and isinstance(place.type, irt.HeaderType | irt.UnionType):
            self.invalidate(place)
            return
        self.store(place, self.expr(value))

    def _assign_slice(self, target: ast.Slice, value: ast.Expr) -> None:
        high, low = 0, 0
        base: ast.Expr = target
        first = True
        while isinstance(base, ast.Slice):
            if base.bounds is None:
                self._assign_computed_slice(base, value, first)
                return
            if first:
                high, low = base.bounds
                first = False
            else:
                high, low = high + base.bounds[1], low + base.bounds[1]
            base = base.base
        place = self.place(base)
        self.emit(AssignSlice(place, high, low, self.expr(value)))

    def _assign_computed_slice(self, target: ast.Slice, value: ast.Expr, outermost: bool) -> None:
        """base[start +: width] = value, by mask and shift."""
        if not outermost:
            raise self.unsupported(target.at, "a slice of a slice whose start is computed")
        place = self.place(target.base)
        t = place.type
        assert isinstance(t, irt.Bits)
        start = self.save(self.expr_of_width(target.high), "start")
        width = target.type
        assert isinstance(width, TBits)
        plain = irt.Bits(t.width)
        ones = ir.Const(((1 << width.width) - 1) & ((1 << t.width) - 1), plain)
        mask = ir.Binary(BinaryOp.SHL, ones, start, plain)
        part = ir.Binary(BinaryOp.SHL, ir.Cast(self.expr(value), plain), start, plain)
        part = ir.Binary(BinaryOp.AND, part, mask, plain)
        kept = ir.Binary(BinaryOp.AND, unsigned(place), ir.Unary(UnaryOp.COMPLEMENT, mask, plain), plain)
        joined: ir.Expr = ir.Binary(BinaryOp.OR, kept, part, plain)
        self.emit(Assign(place, joined if t == plain else ir.Cast(joined, t)))

    # ---------------------------------------------------------------- flattening

    def scalars(self, e: ast.Expr) -> list[ir.Expr]:
        """The scalar (and varbit) parts of a value in order, as hashes and digests take them."""
        if isinstance(e, ast.ListExpr):
            return [part for item in e.items for part in self.scalars(item)]
        if isinstance(e, ast.StructExpr):
            return [part for _, _, item in e.fields for part in self.scalars(item)]
        if isinstance(e, ast.Cast) and isinstance(e.operand, ast.ListExpr):
            return self.scalars(e.operand)
        if self.concrete(e.type) is INT:
            raise self.reporter.fail(e.at, "the width of this number is not known here")
        return self.leaves(self.expr(e))

    def leaves(self, value: ir.Expr) -> list[ir.Expr]:
        """The scalars and varbits inside a value."""
        t = value.type
        if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
            return [value]
        assert isinstance(value, ir.VarRef | ir.Member | ir.Element)
        if isinstance(t, irt.StackType):
            return [
                leaf for i in range(t.size) for leaf in self.leaves(ir.Element(value, ir.Const(i, BIT32), t.element))
            ]
        return [leaf for f in t.fields for leaf in self.leaves(ir.Member(value, f.name, f.type))]


def negate(e: ir.Expr) -> ir.Expr:
    """Not e."""
    return ir.Unary(UnaryOp.NOT, e, irt.Bool())


def conjunction(parts: list[ir.Expr]) -> ir.Expr:
    """All parts hold."""
    if not parts:
        return TRUE
    result = parts[0]
    for p in parts[1:]:
        result = ir.Binary(BinaryOp.LAND, result, p, irt.Bool())
    return result


def unsigned(e: ir.Expr) -> ir.Expr:
    """The bit pattern as bit<W>."""
    t = e.type
    return ir.Cast(e, irt.Bits(t.width)) if isinstance(t, irt.Bits) and t.signed else e


def is_scalar(t: irt.Type) -> bool:
    """Bits, bool or an enumeration."""
    return isinstance(t, irt.Bits | irt.Bool | irt.EnumType)
