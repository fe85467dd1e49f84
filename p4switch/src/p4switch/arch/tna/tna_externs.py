"""tna's extern functions and methods."""

from __future__ import annotations

from p4switch.arch.tna.stateful_alu import MIRROR_HEADER_BYTES_MAX, check_action
from p4switch.arch.tna.tna_context import TnaLowering
from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.aggregates import clear, scalars
from p4switch.frontend.lower.bindings import Env, Frame, Instance
from p4switch.frontend.lower.extern_arguments import argument_of, given_arguments
from p4switch.frontend.lower.inlining import inline_body
from p4switch.frontend.lower.known_values import known_value
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.types_to_ir import ir_type
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Register, Thread
from p4switch.ir.stmt import (
    Advance,
    ApplyTable,
    Assign,
    ChecksumGet,
    CounterCount,
    DirectCounterCount,
    DirectMeterExecute,
    Hash,
    MeterExecute,
    MirrorPacket,
    Random,
    RegisterAccess,
    RegisterRead,
    RegisterWrite,
    SendDigest,
)
from p4switch.ir.walk import nodes

COLOR = irt.Bits(8)
WORD = irt.Bits(16)
COUNTER = irt.Bits(8)
PORT_METADATA_BITS = 64


def lower_execute(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr | None:
    """Read the cell, run the action's `apply` on it, write it back."""
    register = tna.low.registers[instance.index]
    index = tna.low.save(tna.low.expr(argument_of(callee, "index")), "index")
    decl = instance.decl
    assert isinstance(decl, ast.Instantiation)
    assert decl.body is not None
    (method,) = decl.body
    assert isinstance(method, ast.FunctionDecl)
    assert method.body is not None
    outer, tna.parameters = tna.parameters, []
    if outer is not None:
        raise tna.low.reporter.fail(e.at, "a register action cannot execute another")
    before = len(tna.low.variables)
    cell = tna.low.new_variable("cell", register.element)
    value = cell if register.struct is None else tna.low.new_variable("value", register.struct)
    result: ir.VarRef | None = None
    with tna.low.body() as statements:
        tna.low.emit(RegisterRead(cell, register.index, index))
        _unpack(tna.low, register, cell, value)
        env = Env(tna.low.env)
        env.bind(method.parameters[0], value)
        if len(method.parameters) > 1:
            given = method.parameters[1]
            result = tna.low.new_variable(
                given.name, ir_type(tna.low, tna.low.concrete(tna.low.types[given]), given.at)
            )
            clear(tna.low, result)
            env.bind(given, result)
        with tna.low.body() as inner:
            inline_body(tna.low, env, Frame(tna.low.fresh_name(decl.name)), method.body)
        reads = [RegisterRead(v, i, ir.Const(0, irt.Bits(32))) for i, v in tna.parameters]
        for statement in (*reads, *inner):
            tna.low.emit(statement)
        pack(tna.low, register, cell, value)
        tna.low.emit(RegisterWrite(register.index, index, cell))
    own = {v.name for v in tna.low.variables[before:]}
    check_action(tna.low, decl, tuple(inner), own, len({i for i, _ in tna.parameters}))
    tna.parameters = None
    access = RegisterAccess(register.index, instance.name, tuple(statements), tna.low.location(e.at))
    tna.access_offsets[id(access)] = e.at
    tna.low.emit(access)
    return result


def lower_register_read(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    """A cell as it is, by an access of its own."""
    register = tna.low.registers[instance.index]
    cell = tna.low.new_variable("cell", register.element)
    index = tna.low.save(tna.low.expr(argument_of(callee, "index")), "index")
    _access(tna, e, register, RegisterRead(cell, register.index, index))
    if register.struct is None:
        return cell
    value = tna.low.new_variable("value", register.struct)
    _unpack(tna.low, register, cell, value)
    return value


def lower_register_write(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    register = tna.low.registers[instance.index]
    index = tna.low.save(tna.low.expr(argument_of(callee, "index")), "index")
    given = tna.low.expr(argument_of(callee, "value"))
    cell = tna.low.new_variable("cell", register.element)
    if register.struct is None:
        tna.low.emit(Assign(cell, given))
    else:
        value = tna.low.new_variable("value", register.struct)
        tna.low.emit(Assign(value, given))
        pack(tna.low, register, cell, value)
    _access(tna, e, register, RegisterWrite(register.index, index, cell))


def _access(tna: TnaLowering, e: ast.Call, register: Register, statement: RegisterRead | RegisterWrite) -> None:
    access = RegisterAccess(register.index, register.name, (statement,), tna.low.location(e.at))
    tna.access_offsets[id(access)] = e.at
    tna.low.emit(access)


def lower_predicate(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    """1, 2, 4 or 8: which of the two conditions hold."""
    t = ir_type(tna.low, tna.low.concrete(tna.low.types[e]), e.at)
    conditions = [tna.low.expr(a) for a in given_arguments(callee)]
    if not conditions:
        raise tna.low.unsupported(e.at, "predicate without a condition")
    if not isinstance(t, irt.Bits) or t.width < 4:
        raise tna.low.reporter.fail(e.at, f"predicate gives four bits, which {t} does not hold")

    def choose(condition: ir.Expr, yes: ir.Expr, no: ir.Expr) -> ir.Expr:
        return ir.Mux(condition, yes, no, t)

    neither, first, second, both = (ir.Const(1 << i, t) for i in range(4))
    alone = choose(conditions[0], first, neither)
    return alone if len(conditions) == 1 else choose(conditions[1], choose(conditions[0], both, second), alone)


def lower_read_parameter(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    if tna.parameters is None:
        raise tna.low.reporter.fail(e.at, "a register parameter can be read in a register action only")
    # A variable for each read: a comparison with another read is another comparison to p4c, too.
    read = tna.low.new_variable("parameter", tna.low.registers[instance.index].element)
    tna.parameters.append((instance.index, read))
    return read


# ---------------------------------------------------------------- numbers


def lower_min(tna: TnaLowering, e: ast.Call, callee: Callee) -> ir.Expr:
    return _chosen(tna, callee, ir.BinaryOp.LT)


def lower_max(tna: TnaLowering, e: ast.Call, callee: Callee) -> ir.Expr:
    return _chosen(tna, callee, ir.BinaryOp.GT)


def _chosen(tna: TnaLowering, callee: Callee, op: ir.BinaryOp) -> ir.Expr:
    left, right = (tna.low.save(tna.low.expr(a)) for a in given_arguments(callee))
    return ir.Mux(ir.Binary(op, left, right, irt.Bool()), left, right, left.type)


def lower_hash(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    t = ir_type(tna.low, tna.low.concrete(tna.low.types[e]), e.at)
    target = tna.low.new_variable("hash", t)
    fields = tuple(scalars(tna.low, argument_of(callee, "data")))
    width = irt.width_of(t)
    limit = ir.Const(0 if width >= 64 else 1 << width, irt.Bits(64))
    if width >= 64:
        raise tna.low.unsupported(e.at, "a hash of 64 bits or more")
    zero = ir.Const(0, t)
    tna.low.emit(Hash(target, tna.hashes[instance.index], zero, fields, limit))
    return target


def lower_random(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    t = ir_type(tna.low, tna.low.concrete(tna.low.types[e]), e.at)
    if not isinstance(t, irt.Bits) or t.width > 64:
        raise tna.low.unsupported(e.at, f"a random number of type {t}")
    target = tna.low.new_variable("random", t)
    tna.low.emit(Random(target, ir.Const(0, t), ir.Const((1 << t.width) - 1, t)))
    return target


def lower_count(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    tna.low.emit(CounterCount(instance.index, tna.low.expr(argument_of(callee, "index"))))


def lower_execute_meter(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    index = tna.low.expr(argument_of(callee, "index"))
    color = tna.low.new_variable("color", COLOR)
    tna.low.emit(MeterExecute(color, instance.index, index, _pre_color(tna, callee)))
    return _tna_color(color)


def lower_execute_direct_meter(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    color = tna.low.new_variable("color", COLOR)
    statement = DirectMeterExecute(color, instance.index, _pre_color(tna, callee))
    tna.entry_offsets[id(statement)] = e.at
    tna.low.emit(statement)
    return _tna_color(color)


def _tna_color(color: ir.Expr) -> ir.Expr:
    """MeterColor_t for 0 green, 1 yellow, 2 red: there red is 3."""
    is_red = ir.Binary(ir.BinaryOp.EQ, color, ir.Const(2, COLOR), irt.Bool())
    return ir.Mux(is_red, ir.Const(3, COLOR), color, COLOR)


def _pre_color(tna: TnaLowering, callee: Callee) -> ir.Expr | None:
    """The colour that the packet has already: 0, 1, 2. Bytes that a program would add to it must be none."""
    for parameter, argument in callee.arguments:
        if parameter.name == "adjust_byte_count" and argument is not None and known_value(tna.low, argument) != 0:
            raise tna.low.unsupported(argument.at, "an adjust_byte_count that is not zero")
    given = next((a for p, a in callee.arguments if p.name == "color" and a is not None), None)
    if given is None:
        return None
    color = tna.low.save(tna.low.expr(given))
    is_red = ir.Binary(ir.BinaryOp.GT, color, ir.Const(1, COLOR), irt.Bool())
    return ir.Mux(is_red, ir.Const(2, COLOR), color, COLOR)


def lower_direct_count(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    statement = DirectCounterCount(instance.index)
    tna.entry_offsets[id(statement)] = e.at
    tna.low.emit(statement)


def _entry_table(tna: TnaLowering, node: DirectMeterExecute | DirectCounterCount) -> tuple[str, str, int | None]:
    """Kind and name of what is called, and the table whose entries have it."""
    if isinstance(node, DirectMeterExecute):
        meter = tna.low.meters[node.meter]
        return "meter", meter.name, meter.table
    counter = tna.low.counters[node.counter]
    return "counter", counter.name, counter.table


def check_entry_calls(tna: TnaLowering, threads: tuple[Thread, ...]) -> None:
    """Refuse a direct meter or counter that is called outside of the actions of its table: there is no entry."""
    called = (DirectMeterExecute, DirectCounterCount)
    for thread in threads:
        for block in thread.blocks():
            within = {
                id(node)
                for table in nodes(block.body)
                if isinstance(table, ApplyTable)
                for node in nodes(table.arms)
                if isinstance(node, called) and _entry_table(tna, node)[2] == table.table
            }
            for node in nodes(block.body):
                if isinstance(node, called) and id(node) not in within:
                    kind, name, _ = _entry_table(tna, node)
                    verb = "executed" if kind == "meter" else "counted"
                    raise tna.low.reporter.fail(
                        tna.entry_offsets[id(node)], f"direct {kind} {name} is {verb} outside of its table's actions"
                    )


# ---------------------------------------------------------------- parsers


def _running(tna: TnaLowering, instance: Instance, t: irt.Bits) -> ir.VarRef:
    """What an instance holds while this packet is parsed; zero at the start."""
    if instance.name not in tna.running:
        tna.running[instance.name] = tna.low.new_variable(instance.name.rpartition(".")[2], t)
    return tna.running[instance.name]


def lower_checksum_add(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    """The sum so far, in ones' complement; what is summed next to it begins at a whole word."""
    total = _running(tna, instance, WORD)
    fields = tuple(scalars(tna.low, argument_of(callee, "data")))
    complemented = tna.low.new_variable("sum", WORD)
    tna.low.emit(ChecksumGet(complemented, (total, *fields)))
    tna.low.emit(Assign(total, ir.Unary(ir.UnaryOp.COMPLEMENT, complemented, WORD)))


def lower_checksum_verify(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    """The error bit of the chip's parser: true where the sum, its own checksum in it, is not all ones."""
    return ir.Binary(ir.BinaryOp.NE, _running(tna, instance, WORD), ir.Const(0xFFFF, WORD), irt.Bool())


def lower_parser_counter_set(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    if len(callee.arguments) != 1:
        raise tna.low.unsupported(e.at, "ParserCounter.set of a field with mask, rotation and sum")
    given = tna.low.expr(given_arguments(callee)[0])
    tna.low.emit(Assign(_running(tna, instance, COUNTER), ir.Cast(given, COUNTER) if given.type != COUNTER else given))


def lower_parser_counter_step(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    counter = _running(tna, instance, COUNTER)
    op = ir.BinaryOp.ADD if callee.name == "increment" else ir.BinaryOp.SUB
    by = tna.low.expr(given_arguments(callee)[0])
    tna.low.emit(Assign(counter, ir.Binary(op, counter, ir.Cast(by, COUNTER) if by.type != COUNTER else by, COUNTER)))


def lower_parser_counter_is_zero(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    return ir.Binary(ir.BinaryOp.EQ, _running(tna, instance, COUNTER), ir.Const(0, COUNTER), irt.Bool())


def lower_parser_counter_is_negative(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    return ir.Binary(ir.BinaryOp.GE, _running(tna, instance, COUNTER), ir.Const(0x80, COUNTER), irt.Bool())


def lower_port_metadata(tna: TnaLowering, e: ast.Call, callee: Callee) -> ir.Expr:
    """What the control plane has set for the port: nothing here, so zeros, in place of the chip's 64 bits."""
    t = ir_type(tna.low, tna.low.concrete(tna.low.types[e]), e.at)
    value = tna.low.new_variable("port_metadata", t)
    clear(tna.low, value)
    tna.low.emit(Advance(ir.Const(PORT_METADATA_BITS, irt.Bits(32))))
    return value


def lower_checksum(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    if any(p.name == "zeros_as_ones" and a is not None for p, a in callee.arguments):
        raise tna.low.unsupported(e.at, "zeros_as_ones")
    target = tna.low.new_variable("checksum", irt.Bits(16))
    tna.low.emit(ChecksumGet(target, tuple(scalars(tna.low, argument_of(callee, "data")))))
    return target


# ---------------------------------------------------------------- requests to the runtime


def lower_pack(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    values = tuple(scalars(tna.low, argument_of(callee, "data")))
    tna.low.emit(SendDigest(instance.index, values))


def lower_mirror(tna: TnaLowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    if tna.gress != "ingress":
        raise tna.low.unsupported(e.at, "mirroring at egress")
    session = tna.low.save(tna.low.expr(argument_of(callee, "session_id")))
    given = next((a for p, a in callee.arguments if p.name == "hdr"), None)
    fields = () if given is None else tuple(scalars(tna.low, given))
    bits = sum(irt.width_of(f.type) for f in fields)
    if bits % 8 or bits > MIRROR_HEADER_BYTES_MAX * 8:
        raise tna.low.reporter.fail(
            e.at, f"a mirror header of {bits} bits: whole bytes, at most {MIRROR_HEADER_BYTES_MAX}"
        )
    tna.low.emit(MirrorPacket(session, fields))


def _unpack(low: Lowering, register: Register, cell: ir.VarRef, value: ir.VarRef) -> None:
    """The fields of a cell that is a struct, the first one from the highest bits."""
    if register.struct is None:
        return
    high = irt.width_of(register.element)
    for f in register.struct.fields:
        width = irt.width_of(f.type)
        part: ir.Expr = ir.Slice(cell, high - 1, high - width, irt.Bits(width))
        if part.type != f.type:
            part = ir.Cast(part, f.type)
        low.emit(Assign(ir.Member(value, f.name, f.type), part))
        high -= width


def pack(low: Lowering, register: Register, cell: ir.VarRef, value: ir.VarRef) -> None:
    if register.struct is None:
        return
    joined: ir.Expr | None = None
    for f in register.struct.fields:
        part: ir.Expr = ir.Member(value, f.name, f.type)
        plain = irt.Bits(irt.width_of(f.type))
        if f.type != plain:
            part = ir.Cast(part, plain)
        if joined is None:
            joined = part
        else:
            width = irt.width_of(joined.type) + plain.width
            joined = ir.Binary(ir.BinaryOp.CONCAT, joined, part, irt.Bits(width))
    assert joined is not None
    low.emit(Assign(cell, joined))
