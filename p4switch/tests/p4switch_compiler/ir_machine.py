"""A slow, obvious machine that runs a whole program's IR on one packet, to hold generated C and the runtime against.

Scalars are bit patterns (Python integers), structs and unions dictionaries, headers and stacks small objects. Reading a
field of an invalid header has no defined value: it raises Unspecified, and the caller leaves that packet out.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt
from p4switch.ir.program import ACCEPT, REJECT, MatchKind, MatchOp, Program, SelectCase, Table
from p4switch.values import ActionCall
from p4switch_compiler import ir_evaluator

DROP = 511
NORMAL, INGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 4, 5, 6
"""instance_type"""
PARSER_TURNS_MAX = 1 << 16


class Unspecified(Exception):
    """The program asks for something that P4 gives no value."""


class Left(Exception):
    """A jump behind the block or loop of a label."""


class ParserStop(Exception):
    """The parser ends with an error (an index into the program's errors)."""


@dataclass
class Header:
    """Validity and fields."""

    fields: dict[str, Any]
    valid: bool = False


@dataclass
class Stack:
    """Headers and the next index."""

    elements: list[Header]
    next: int = 0


@dataclass(frozen=True)
class Varbits:
    """A bit string of some length."""

    value: int = 0
    bits: int = 0


@dataclass(frozen=True)
class Entry:
    """A table entry: one (first, second) a key, as the runtime's Match, larger priorities first."""

    keys: tuple[tuple[int, int], ...]
    call: ActionCall
    priority: int


def zero(t: irt.Type) -> Any:
    """The value that a variable of a type starts with."""
    if isinstance(t, irt.HeaderType):
        return Header({f.name: zero(f.type) for f in t.fields})
    if isinstance(t, irt.StackType):
        return Stack([zero(t.element) for _ in range(t.size)])
    if isinstance(t, irt.StructType | irt.UnionType):
        return {f.name: zero(f.type) for f in t.fields}
    return Varbits() if isinstance(t, irt.Varbits) else 0


@dataclass
class Machine:
    """A program with its tables, registers, counters, groups and sessions; `run` is one packet and all it becomes."""

    program: Program
    entries: Mapping[int, Sequence[Entry]]
    groups: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    sessions: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.thread,) = self.program.threads
        (self.standard,) = self.thread.intrinsic
        self.registers = [[0] * r.size for r in self.program.registers]
        self.counts = [[0] * c.size for c in self.program.counters]
        self.variables: dict[str, Any] = {}
        self.frame = b""
        self.at = 0
        self.out: list[tuple[int, int]] = []  # values and widths in bits of the deparsed headers

    # ---------------------------------------------------------------- a packet

    def run(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """What leaves, as (port, frame), of the packet and of all that it becomes."""
        self.sent: list[tuple[int, bytes]] = []
        self.waiting: list[tuple[int, bytes, int, dict[str, Any]]] = [(port, frame, NORMAL, {})]
        while self.waiting:
            self.one_pass(*self.waiting.pop(0))
        return self.sent

    def receive(self, frame: bytes, preserved: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Fresh variables, what the packet has kept, and the parser; gives standard metadata and the parser's error."""
        self.variables = {v.name: zero(v.type) for v in self.thread.variables()}
        self.variables |= copy.deepcopy(preserved)
        self.frame, self.at = frame, 0
        return self.variables[self.standard.name], self.parse()

    def one_pass(self, port: int, frame: bytes, instance_type: int, preserved: dict[str, Any]) -> None:
        """Parser, ingress, and egress of every copy."""
        t = self.thread
        std, error = self.receive(frame, preserved)
        std |= {
            "ingress_port": port,
            "packet_length": len(frame),
            "instance_type": instance_type,
            "parser_error": error,
        }
        consumed = self.at
        self.block(t.control("verify_checksum"))
        self.intents: dict[str, Any] = {}
        self.block(t.control("ingress"))
        after, intents = self.variables, self.intents
        if "clone" in intents:
            session, fields = intents["clone"]
            kept = self.preserve(fields)
            self.receive(frame, {})
            self.variables |= {v.name: zero(v.type) for v in (t.metadata, self.standard)} | kept
            self.variables[self.standard.name]["instance_type"] = INGRESS_CLONE
            self.send(self.sessions.get(session, ()), frame[self.at :])
            self.variables = after
        if "resubmit" in intents:
            self.waiting.append((port, frame, RESUBMITTED, self.preserve(intents["resubmit"])))
        elif std["mcast_grp"]:
            std["instance_type"] = REPLICATED
            self.send(self.groups.get(std["mcast_grp"], ()), frame[consumed:])
        elif std["egress_spec"] != DROP:
            std["instance_type"] = NORMAL
            self.send([(std["egress_spec"], 0)], frame[consumed:])

    def preserve(self, fields: int | None) -> dict[str, Any]:
        """Metadata that starts as zero but for the fields of a list."""
        before = self.variables
        self.variables = {v.name: zero(v.type) for v in (self.thread.metadata, self.standard)}
        kept = self.variables
        for place in () if fields is None else self.program.field_lists[fields].fields:
            self.variables = before
            value = self.value(place)
            self.variables = kept
            self.store(place, value)
        self.variables = before
        return kept

    def send(self, copies: Sequence[tuple[int, int]], payload: bytes) -> None:
        """Egress of every copy, from the same state."""
        pristine = self.variables
        for egress_port, rid in copies:
            self.variables = copy.deepcopy(pristine)
            std = self.variables[self.standard.name]
            std["egress_port"], std["egress_rid"], std["egress_spec"] = egress_port, rid, 0
            self.intents = {}
            self.block(self.thread.control("egress"))
            if std["egress_spec"] == DROP:
                continue
            intents = self.intents
            self.block(self.thread.control("compute_checksum"))
            frame = self.deparse() + payload
            if "recirculate" in intents:
                self.waiting.append((0, frame, RECIRCULATED, self.preserve(intents["recirculate"])))
            else:
                self.sent.append((egress_port, frame))

    def parse(self) -> int:
        """Run the parser; gives the error it ends with."""
        parser = self.thread.parser
        states = {state.name: state for state in parser.states}
        self.variables |= {v.name: zero(v.type) for v in parser.variables}
        name = parser.states[0].name
        try:
            for _ in range(PARSER_TURNS_MAX):
                state = states[name]
                self.body(state.body)
                keys = [self.value(k) for k in state.transition.keys]
                types = [k.type for k in state.transition.keys]
                name = next((c.state for c in state.transition.cases if self.selects(c, keys, types)), "")
                if name in (ACCEPT, REJECT):
                    return 0
                if not name:
                    return self.program.errors.members.index("NoMatch")
        except ParserStop as stop:
            return int(stop.args[0])
        raise AssertionError("the parser does not end")

    def selects(self, case: SelectCase, keys: list[int], types: list[irt.Type]) -> bool:
        """Whether all matches of a case hold."""
        for m, key, t in zip(case.matches, keys, types, strict=True):
            if m.op is MatchOp.VALUE and key != m.first:
                return False
            if m.op is MatchOp.MASK and key & m.second != m.first:
                return False
            if m.op is MatchOp.RANGE:
                low, value, high = (ir_evaluator.number(v, t) for v in (m.first, key, m.second))
                if not low <= value <= high:
                    return False
            assert m.op is not MatchOp.VALUE_SET
        return True

    def block(self, block: Any) -> None:
        """Run a control."""
        self.variables |= {v.name: zero(v.type) for v in block.variables}
        self.body(block.body)

    def deparse(self) -> bytes:
        """The headers as bytes."""
        self.out = []
        self.block(self.thread.deparser)
        value, bits = 0, 0
        for part, width in self.out:
            value, bits = value << width | part, bits + width
        return value.to_bytes(bits // 8, "big")

    # ---------------------------------------------------------------- expressions

    def value(self, e: ir.Expr) -> Any:
        """The value of an expression: places are looked up here, operators are ir_evaluator's."""
        if isinstance(e, ir.VarRef):
            return self.variables[e.name]
        if isinstance(e, ir.Member):
            base = self.value(e.base)
            if isinstance(base, Header):
                if not base.valid:
                    raise Unspecified(f"field {e.field} of an invalid header")
                return base.fields[e.field]
            return base[e.field]
        if isinstance(e, ir.Element):
            stack, index = self.value(e.base), self.value(e.index)
            return stack.elements[index] if index < len(stack.elements) else zero(e.type)
        if isinstance(e, ir.IsValid):
            header = self.value(e.header)
            return int(any(h.valid for h in header.values()) if isinstance(header, dict) else header.valid)
        if isinstance(e, ir.NextIndex):
            return self.value(e.stack).next
        if isinstance(e, ir.VarbitLength):
            return self.value(e.operand).bits
        if isinstance(e, ir.PacketLength):
            return len(self.frame)
        if isinstance(e, ir.Mux):  # only the chosen side is read
            return self.value(e.yes if self.value(e.condition) else e.no)
        if isinstance(e, ir.Binary) and e.op in (ir.BinaryOp.LAND, ir.BinaryOp.LOR):
            left = self.value(e.left)
            return left if bool(left) == (e.op is ir.BinaryOp.LOR) else int(bool(self.value(e.right)))
        parts = {name: getattr(e, name) for name in ("operand", "left", "right") if hasattr(e, name)}
        if not parts:
            return ir_evaluator.evaluate(e, {})
        known = {name: ir.Const(self.value(part), part.type) for name, part in parts.items()}
        rebuilt = copy.copy(e)
        for name, constant in known.items():
            object.__setattr__(rebuilt, name, constant)
        return ir_evaluator.evaluate(rebuilt, {})

    def store(self, place: ir.LValue, value: Any) -> None:
        """Write a place; out of a stack's range nothing is written."""
        value = copy.deepcopy(value)
        if isinstance(place, ir.VarRef):
            self.variables[place.name] = value
        elif isinstance(place, ir.Member):
            base = self.value_of_base(place.base)
            (base.fields if isinstance(base, Header) else base)[place.field] = value
        else:
            stack, index = self.value(place.base), self.value(place.index)
            if index < len(stack.elements):
                stack.elements[index] = value

    def value_of_base(self, e: ir.LValue) -> Any:
        """The aggregate that a place is in; writing to an invalid header is allowed and seen by nobody."""
        if isinstance(e, ir.Member):
            base = self.value_of_base(e.base)
            return (base.fields if isinstance(base, Header) else base)[e.field]
        return self.value(e)

    # ---------------------------------------------------------------- statements

    def body(self, statements: s.Body) -> None:
        """Run statements in order."""
        for statement in statements:
            getattr(self, "do_" + type(statement).__name__)(statement)

    def do_Assign(self, st: s.Assign) -> None:
        self.store(st.target, self.value(st.value))

    def do_AssignSlice(self, st: s.AssignSlice) -> None:
        mask = ((1 << (st.high - st.low + 1)) - 1) << st.low
        self.store(st.target, self.value(st.target) & ~mask | self.value(st.value) << st.low & mask)

    def do_SetValidity(self, st: s.SetValidity) -> None:
        header = self.value_of_base(st.header)
        if st.valid and not header.valid:
            header.fields = {f.name: zero(f.type) for f in st.header.type.fields}
        header.valid = st.valid

    def do_SetNextIndex(self, st: s.SetNextIndex) -> None:
        self.value(st.stack).next = self.value(st.value)

    def do_ShiftStack(self, st: s.ShiftStack) -> None:
        stack, size, n = self.value(st.stack), st.stack.type.size, abs(st.count)
        fresh = [zero(st.stack.type.element) for _ in range(n)]
        if st.count > 0:
            stack.elements = [*fresh, *stack.elements[: size - n]]
            stack.next = min(stack.next + n, size)
        else:
            stack.elements = [*stack.elements[n:], *fresh]
            stack.next = max(stack.next - n, 0)

    def do_If(self, st: s.If) -> None:
        self.body(st.then if self.value(st.condition) else st.otherwise)

    def do_Switch(self, st: s.Switch) -> None:
        value = self.value(st.selector)
        self.body(next((c.body for c in st.cases if value in c.values), st.default))

    def do_Labelled(self, st: s.Labelled) -> None:
        try:
            self.body(st.body)
        except Left as left:
            if left.args[0] != st.label:
                raise

    def do_Leave(self, st: s.Leave) -> None:
        raise Left(st.label)

    def do_Loop(self, st: s.Loop) -> None:
        try:
            while True:
                self.body(st.body)
        except Left as left:
            if left.args[0] != st.label:
                raise

    # ---------------------------------------------------------------- tables and state

    def do_ApplyTable(self, st: s.ApplyTable) -> None:
        table = self.program.tables[st.table]
        found = self.lookup(table, [self.value(k) for k in st.keys])
        call = table.default_action if found is None else found.call
        if st.hit is not None:
            self.variables[st.hit] = int(found is not None)
        for position, arm in enumerate(st.arms):
            if arm.action == call.action:
                if st.action_run is not None:
                    self.variables[st.action_run] = position
                self.variables |= dict(zip(arm.parameters, call.arguments, strict=True))
                self.body(arm.body)

    def lookup(self, table: Table, keys: list[int]) -> Entry | None:
        """Try every entry; the longest prefix wins, else the highest priority."""

        prefix_key = next((i for i, k in enumerate(table.keys) if k.match is MatchKind.LPM), None)

        def rank(entry: Entry) -> int:
            return entry.priority if prefix_key is None else entry.keys[prefix_key][1]

        matching = [e for e in self.entries.get(table.index, ()) if matches(table, e, keys)]
        return max(matching, key=rank, default=None)

    def do_RegisterRead(self, st: s.RegisterRead) -> None:
        cells, index = self.registers[st.register], self.value(st.index)
        self.store(st.target, cells[index] if index < len(cells) else 0)

    def do_RegisterWrite(self, st: s.RegisterWrite) -> None:
        cells, index, value = self.registers[st.register], self.value(st.index), self.value(st.value)
        if index < len(cells):
            cells[index] = value

    def do_CounterCount(self, st: s.CounterCount) -> None:
        cells, index = self.counts[st.counter], self.value(st.index)
        if index < len(cells):
            cells[index] += 1

    def do_Hash(self, st: s.Hash) -> None:
        limit, base = self.value(st.max), self.value(st.base)
        hashed = self.hash(st.algorithm, st.fields)
        self.store(st.target, (base + (hashed % limit if limit else 0)) & ((1 << irt.width_of(st.target.type)) - 1))

    def hash(self, algorithm: s.HashAlgorithm, fields: tuple[ir.Expr, ...]) -> int:
        """An algorithm over the fields as one bit string, padded with zeros on the right."""
        value = bits = 0
        for e in fields:
            value, bits = value << irt.width_of(e.type) | self.value(e), bits + irt.width_of(e.type)
        pad = -bits % 8
        octets = (value << pad).to_bytes((bits + pad) // 8, "big")
        if algorithm is s.HashAlgorithm.CRC32:
            return zlib.crc32(octets)
        assert algorithm is s.HashAlgorithm.CSUM16
        words = octets + bytes(len(octets) % 2)
        total = sum(int.from_bytes(words[i : i + 2], "big") for i in range(0, len(words), 2))
        while total > 0xFFFF:
            total = (total & 0xFFFF) + (total >> 16)
        return 0xFFFF - total

    def do_UpdateChecksum(self, st: s.UpdateChecksum) -> None:
        assert not st.with_payload
        if self.value(st.condition):
            self.store(st.target, self.hash(st.algorithm, st.fields))

    def do_Clone(self, st: s.Clone) -> None:
        assert st.kind is s.CloneType.INGRESS_TO_EGRESS
        self.intents["clone"] = (self.value(st.session), st.field_list)

    def do_Resubmit(self, st: s.Resubmit) -> None:
        self.intents["resubmit"] = st.field_list

    def do_Recirculate(self, st: s.Recirculate) -> None:
        self.intents["recirculate"] = st.field_list

    def do_MarkToDrop(self, st: s.MarkToDrop) -> None:
        metadata = self.value(st.metadata)
        metadata["egress_spec"], metadata["mcast_grp"] = DROP, 0

    # ---------------------------------------------------------------- packets

    def take(self, bits: int) -> int:
        """The next bits of the packet, without moving."""
        if (len(self.frame) - self.at) * 8 < bits:
            self.stop("PacketTooShort")
        octets = self.frame[self.at : self.at + (bits + 7) // 8]
        return int.from_bytes(octets, "big") >> (-bits % 8)

    def stop(self, error: str) -> None:
        """End the parser with an error of core.p4."""
        raise ParserStop(self.program.errors.members.index(error))

    def do_Extract(self, st: s.Extract) -> None:
        t = st.header.type
        varbits = 0 if st.varbit_bits is None else self.value(st.varbit_bits)
        if varbits % 8:
            self.stop("ParserInvalidArgument")
        whole = self.take(t.width_bits() + varbits)
        widest = next((f.type.max_width for f in t.fields if isinstance(f.type, irt.Varbits)), 0)
        if varbits > widest:
            self.stop("HeaderTooShort")
        header = zero(t)
        fill(header.fields, t, whole, varbits)
        header.valid = True
        self.store(st.header, header)
        self.at += (t.width_bits() + varbits) // 8

    def do_Lookahead(self, st: s.Lookahead) -> None:
        t = st.target.type
        whole = self.take(irt.width_of(t))
        if isinstance(t, irt.HeaderType | irt.StructType):
            target = zero(t)
            fill(target.fields if isinstance(target, Header) else target, t, whole, 0)
            if isinstance(target, Header):
                target.valid = True
            whole = target
        self.store(st.target, whole)

    def do_Advance(self, st: s.Advance) -> None:
        bits = self.value(st.bits)
        if bits % 8:
            self.stop("ParserInvalidArgument")
        self.take(bits)
        self.at += bits // 8

    def do_ParserCheck(self, st: s.ParserCheck) -> None:
        if not self.value(st.condition):
            raise ParserStop(self.value(st.error))

    def do_Emit(self, st: s.Emit) -> None:
        header = self.value(st.header)
        for f in st.header.type.fields if header.valid else ():
            value = header.fields[f.name]
            self.out.append((value.value, value.bits) if isinstance(value, Varbits) else (value, irt.width_of(f.type)))


def fill(fields: dict[str, Any], t: irt.HeaderType | irt.StructType, whole: int, varbits: int) -> None:
    """Spread a number over the fields of a header, first field at the top."""
    left = sum(irt.width_of(f.type) for f in t.fields) + varbits
    for f in t.fields:
        width = varbits if isinstance(f.type, irt.Varbits) else irt.width_of(f.type)
        left -= width
        part = whole >> left & ((1 << width) - 1)
        if isinstance(f.type, irt.StructType):
            fill(fields[f.name], f.type, part, 0)
        else:
            fields[f.name] = Varbits(part, width) if isinstance(f.type, irt.Varbits) else part


def matches(table: Table, entry: Entry, keys: list[int]) -> bool:
    """Whether every key field of an entry matches."""
    for k, (first, second), key in zip(table.keys, entry.keys, keys, strict=True):
        width = irt.width_of(k.type)
        if k.match is MatchKind.LPM:
            if (key ^ first) >> (width - second):
                return False
        elif k.match is MatchKind.RANGE:
            if not first <= key <= second:
                return False
        elif k.match is MatchKind.TERNARY:
            if (key ^ first) & second:
                return False
        elif k.match is MatchKind.OPTIONAL:
            if second and key != first:
                return False
        elif key != first:
            return False
    return True
