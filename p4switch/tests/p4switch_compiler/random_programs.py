"""Random v1model programs as P4 text: parsers with loops and errors, controls, functions, tables, stacks, registers.

The same seed gives the same program. Fields of a header are only read where the header is known to be valid, loops end,
and nothing depends on time, so that a program has one meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

WIDTHS = (1, 3, 4, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 128, 129)
STACK_SIZE = 3
REGISTER_SIZE = 8
GROUPS = 3

FRAME = """#include <core.p4>
#include <v1model.p4>
{types}
struct headers_t {{ base_t base; left_t left; right_t right; item_t[{stack}] items; options_t options; }}
struct metadata_t {{ {metadata} @field_list(1) inner_t inner; @field_list(1, 2) bit<8> rounds; }}
{functions}
{controls}
parser P(packet_in pkt, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
{parser}
}}
control V(inout headers_t h, inout metadata_t m) {{ apply {{ }} }}
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
{ingress}
}}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
{egress}
}}
control C(inout headers_t h, inout metadata_t m) {{
    apply {{ update_checksum(h.base.isValid(), {{ h.base.kind, h.base.count }}, h.base.sum, HashAlgorithm.csum16); }}
}}
control D(packet_out pkt, in headers_t h) {{ apply {{ pkt.emit(h); }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


@dataclass
class Scope:
    """What a piece of code may read and write: text of places by width; and the headers known to be valid."""

    places: dict[str, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    tables: list[str] = field(default_factory=list)
    may_exit: bool = True
    """Whether exit and apply may be used."""


class Generator:
    """Makes one program."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.serial = 0
        self.fields: dict[str, dict[str, int]] = {}
        self.functions: dict[str, tuple[tuple[int, ...], int]] = {}
        self.controls: list[str] = []

    def program(self) -> str:
        """The text."""
        types = self.types()
        metadata = {f"m{i}": self.random.choice(WIDTHS) for i in range(5)}
        self.metadata = {f"m.{n}": w for n, w in metadata.items()} | {
            f"m.inner.{n}": w for n, w in self.fields["inner_t"].items()
        }
        functions = "\n".join(self.function() for _ in range(3))
        controls = "\n".join(self.sub_control() for _ in range(2))
        return FRAME.format(
            types=types,
            metadata=" ".join(
                f"{self.random.choice(('', '@field_list(1)', '@field_list(2)'))} bit<{w}> {n};"
                for n, w in metadata.items()
            ),
            functions=functions,
            controls=controls,
            parser=self.parser(),
            ingress=self.control("ingress"),
            egress=self.control("egress"),
            stack=STACK_SIZE,
        )

    # ---------------------------------------------------------------- types

    def fresh(self, prefix: str) -> str:
        """A name not used yet."""
        self.serial += 1
        return f"{prefix}{self.serial}"

    def types(self) -> str:
        """Headers of whole bytes, with fields of odd widths in them."""
        out = []
        for name, fixed, room in (
            ("base_t", {"kind": 8, "count": 8, "sum": 16}, 96),
            ("left_t", {}, 72),
            ("right_t", {}, 160),
            ("item_t", {"more": 8}, 40),
        ):
            fields = dict(fixed)
            left = room
            while left:
                width = min(left, self.random.choice(WIDTHS))
                fields[f"f{len(fields)}"] = width
                left -= width
            self.fields[name] = fields
            out.append(f"header {name} {{ " + " ".join(f"bit<{w}> {n};" for n, w in fields.items()) + " }")
        self.fields["inner_t"] = {f"x{i}": self.random.choice(WIDTHS) for i in range(3)}
        out.append("struct inner_t { " + " ".join(f"bit<{w}> {n};" for n, w in self.fields["inner_t"].items()) + " }")
        out.append("header options_t { bit<8> size; varbit<64> rest; }")
        return "\n".join(out)

    def places_of(self, header: str) -> dict[str, int]:
        """The fields of a header instance, as text."""
        kind = "item_t" if header.startswith("h.items") else header.removeprefix("h.") + "_t"
        return {f"{header}.{n}": w for n, w in self.fields[kind].items()}

    # ---------------------------------------------------------------- expressions

    def number(self, width: int) -> str:
        """A literal; corners are frequent."""
        corners = (0, 1, (1 << width) - 1, 1 << (width - 1), self.random.getrandbits(width))
        return f"{width}w{self.random.choice(corners)}"

    def expression(self, scope: Scope, width: int, depth: int = 2) -> str:
        """A value of bit<width>."""
        readable = [n for n, w in (scope.places | scope.constants).items() if w == width]
        if depth == 0 or self.random.random() < 0.2:
            return self.random.choice(readable) if readable and self.random.random() < 0.8 else self.number(width)

        def sub(w: int = width) -> str:
            return self.expression(scope, w, depth - 1)

        kind = self.random.choice(
            ("arith", "arith", "cast", "cast", "slice", "concat", "mux", "shift", "unary", "call")
        )
        if kind == "cast":
            others = list((scope.places | scope.constants).items())
            name, other = self.random.choice(others) if others else (self.number(16), 16)
            if other == width and self.random.random() < 0.5:
                return f"(bit<{width}>)((int<{width}>){name} >> {self.random.randrange(width + 2)})"
            return f"(bit<{width}>){name}"
        if kind == "slice":
            wider = width + self.random.choice((0, 1, 5, 40))
            low = self.random.randrange(wider - width + 1)
            return f"({sub(wider)})[{low + width - 1}:{low}]"
        if kind == "concat" and width > 1:
            left = self.random.randrange(1, width)
            return f"({sub(left)} ++ {sub(width - left)})"
        if kind == "mux":
            return f"({self.condition(scope, depth - 1)} ? {sub()} : {sub()})"
        if kind == "shift":
            return f"({sub()} {self.random.choice(('<<', '>>'))} {sub(8)})"
        if kind == "unary":
            return f"({self.random.choice('~-')}{sub()})"
        if kind == "call" and scope.may_exit:
            fitting = [(n, a) for n, (a, result) in self.functions.items() if result == width]
            if fitting:
                name, arguments = self.random.choice(fitting)
                return f"{name}({', '.join(sub(w) for w in arguments)})"
        if self.random.random() < 0.15:
            divisor = f"{width}w{self.random.getrandbits(width) or 1}"
            return f"({sub()} {self.random.choice('/%')} {divisor})"
        op = self.random.choice(("+", "-", "*", "&", "|", "^", "|+|", "|-|"))
        return f"({sub()} {op} {sub()})"

    def condition(self, scope: Scope, depth: int = 1) -> str:
        """A value of bool."""
        kind = self.random.choice(("compare", "compare", "signed", "logic", "not"))
        width = self.random.choice(list(scope.places.values()) or [8])
        if kind == "logic" and depth:
            op = self.random.choice(("&&", "||"))
            return f"({self.condition(scope, depth - 1)} {op} {self.condition(scope, depth - 1)})"
        if kind == "not" and depth:
            return f"(!{self.condition(scope, depth - 1)})"
        left, right = (self.expression(scope, width, depth) for _ in range(2))
        op = self.random.choice(("==", "!=", "<", "<=", ">", ">="))
        if kind == "signed" and width > 1:
            return f"((int<{width}>){left} {op} (int<{width}>){right})"
        return f"({left} {op} {right})"

    # ---------------------------------------------------------------- statements

    def statements(self, scope: Scope, count: int, depth: int = 2) -> str:
        """Some statements."""
        return " ".join(self.statement(scope, depth) for _ in range(count))

    def statement(self, scope: Scope, depth: int) -> str:
        """One statement."""
        choices = [self.assign, self.assign, self.assign, self.slice, self.operate]
        if depth:
            choices += [self.if_else, self.if_else, self.switch, self.loop]
        if scope.headers:
            choices += [self.guarded, self.stack, self.validity, self.copy_header]
        if scope.tables and scope.may_exit:
            choices += [self.apply, self.apply, self.hit]
        if scope.headers and scope.may_exit:
            choices += [self.state, self.hash, self.sub_apply]
        return self.random.choice(choices)(scope, depth)

    def assign(self, scope: Scope, depth: int) -> str:
        name, width = self.random.choice(list(scope.places.items()))
        return f"{name} = {self.expression(scope, width)};"

    def slice(self, scope: Scope, depth: int) -> str:
        name, width = self.random.choice(list(scope.places.items()))
        high = self.random.randrange(width)
        low = self.random.randrange(high + 1)
        return f"{name}[{high}:{low}] = {self.expression(scope, high - low + 1)};"

    def operate(self, scope: Scope, depth: int) -> str:
        name, width = self.random.choice(list(scope.places.items()))
        return f"{name} {self.random.choice(('+=', '-=', '^=', '|=', '&='))} {self.expression(scope, width)};"

    def if_else(self, scope: Scope, depth: int) -> str:
        then = self.statements(scope, 2, depth - 1)
        otherwise = f" else {{ {self.statements(scope, 1, depth - 1)} }}" if self.random.random() < 0.5 else ""
        if scope.may_exit and self.random.random() < 0.06:
            then += self.random.choice((" exit;", " return;"))
        return f"if ({self.condition(scope)}) {{ {then} }}{otherwise}"

    def switch(self, scope: Scope, depth: int) -> str:
        name, width = self.random.choice(list(scope.places.items()))
        labels = sorted({self.random.getrandbits(min(width, 3)) for _ in range(4)})
        cases = ""
        for label in labels:
            fall = label != labels[-1] and self.random.random() < 0.3
            cases += f"{width}w{label}: " + ("" if fall else f"{{ {self.statements(scope, 1, depth - 1)} }} ")
        return f"switch ({name}) {{ {cases} default: {{ {self.statements(scope, 1, 0)} }} }}"

    def loop(self, scope: Scope, depth: int) -> str:
        i = self.fresh("i")
        inner = Scope(dict(scope.places), scope.constants | {i: 8}, scope.headers, [], False)
        body = self.statements(inner, 2, depth - 1)
        leave = self.random.choice(("break;", "continue;"))
        return f"for (bit<8> {i} in 8w0 .. {self.random.randrange(5)}) {{ if ({i} == 2) {{ {leave} }} {body} }}"

    def guarded(self, scope: Scope, depth: int) -> str:
        """Code for a header that may be valid."""
        header = self.random.choice(("h.left", "h.right", "h.items[0]", f"h.items[{STACK_SIZE - 1}]"))
        inner = Scope(scope.places | self.places_of(header), scope.constants, (), [], False)
        return f"if ({header}.isValid()) {{ {self.statements(inner, 2, 0)} }}"

    def validity(self, scope: Scope, depth: int) -> str:
        header = self.random.choice(("h.left", "h.right", "h.items[1]", "h.options"))
        return f"{header}.{self.random.choice(('setValid', 'setInvalid'))}();"

    def copy_header(self, scope: Scope, depth: int) -> str:
        i, j = (self.random.randrange(STACK_SIZE) for _ in range(2))
        fields = ", ".join(self.number(w) for w in self.fields["left_t"].values())
        return self.random.choice((f"h.items[{i}] = h.items[{j}];", f"h.left = {{ {fields} }};"))

    def stack(self, scope: Scope, depth: int) -> str:
        method = self.random.choice(("push_front", "pop_front"))
        return f"h.items.{method}({self.random.randrange(1, STACK_SIZE)});"

    def state(self, scope: Scope, depth: int) -> str:
        index = f"(bit<32>)({self.expression(scope, 8, 1)} & 15)"
        name, width = self.random.choice([(n, w) for n, w in scope.places.items() if w == 32] or [("", 0)])
        if width and self.random.random() < 0.5:
            return f"{self.registers}.read({name}, {index});"
        if self.random.random() < 0.3:
            return f"{self.counters}.count({index});"
        return f"{self.registers}.write({index}, {self.expression(scope, 32)});"

    def hash(self, scope: Scope, depth: int) -> str:
        name, width = self.random.choice(list(scope.places.items()))
        parts = ", ".join(self.expression(scope, w, 1) for w in self.random.sample(WIDTHS, 2))
        algorithm = self.random.choice(("crc32", "csum16"))
        limit = self.random.choice((1, 7, 16, 1000))
        return f"hash({name}, HashAlgorithm.{algorithm}, {width}w0, {{ {parts} }}, 32w{limit});"

    def apply(self, scope: Scope, depth: int) -> str:
        return f"{self.random.choice(scope.tables)}.apply();"

    def hit(self, scope: Scope, depth: int) -> str:
        table = self.random.choice(scope.tables)
        quiet = Scope(scope.places, scope.constants, (), [], False)
        if self.random.random() < 0.4:
            action = self.random.choice(("set", "add"))
            body = f"{action}_{self.where}: {{ {self.statements(quiet, 1, 0)} }} default: {{ }}"
            return f"switch ({table}.apply().action_run) {{ {body} }}"
        return f"if ({table}.apply().{self.random.choice(('hit', 'miss'))}) {{ {self.statements(quiet, 1, 0)} }}"

    def sub_apply(self, scope: Scope, depth: int) -> str:
        control = self.random.choice(self.controls)
        eights = [n for n, w in scope.places.items() if w == 8] or ["h.base.kind"]
        return f"{control}_{self.where}.apply(m.inner, {self.expression(scope, 16)}, {self.random.choice(eights)});"

    # ---------------------------------------------------------------- declarations

    def function(self) -> str:
        name, result = self.fresh("fn"), self.random.choice((8, 16, 32, 65))
        widths = tuple(self.random.choice((8, 16, 33)) for _ in range(2))
        scope = Scope({"v": result}, {f"a{i}": w for i, w in enumerate(widths)}, (), [], False)
        parameters = ", ".join(f"in bit<{w}> a{i}" for i, w in enumerate(widths))
        start = self.expression(Scope({}, scope.constants), result, 1)
        body = f"bit<{result}> v = {start}; {self.statements(scope, 2, 1)}"
        early = f"if ({self.condition(scope)}) {{ return {self.expression(scope, result, 1)}; }}"
        text = f"bit<{result}> {name}({parameters}) {{ {body} {early} return v; }}"
        self.functions[name] = (widths, result)
        return text

    def sub_control(self) -> str:
        name = self.fresh("Sub")
        self.controls.append(name)
        places = {f"p.{n}": w for n, w in self.fields["inner_t"].items()} | {"b": 8, "local": 33}
        scope = Scope(places, {"a": 16}, (), [], False)
        body = self.statements(scope, 3, 1)
        early = f"if ({self.condition(scope)}) {{ {self.random.choice(('return', 'exit'))}; }}"
        return (
            f"control {name}(inout inner_t p, in bit<16> a, inout bit<8> b) {{ bit<33> local = 5;"
            f" apply {{ {body} {early} {self.statements(scope, 1, 1)} }} }}"
        )

    def parser(self) -> str:
        base = self.places_of("h.base")
        scope = Scope(base | self.metadata, {}, (), [], False)
        error = self.random.choice(("NoMatch", "HeaderTooShort", "ParserInvalidArgument"))
        mask = self.random.choice((0x03, 0x0F))
        return f"""    bit<8> seen = 0;
    state start {{
        pkt.extract(h.base);
        {self.statements(scope, 2, 1)}
        verify(h.base.kind != {self.random.randrange(8)}, error.{error});
        transition select(h.base.kind & {mask}, h.base.count) {{
            (0, _): accept; (1, 0 .. 200): left; (1 &&& 1, 3): left; (2, _): items; (4, _): options;
            (5, _): ahead; (6, _): reject; (7, _): right; default: items;
        }}
    }}
    state left {{ pkt.extract(h.left); transition select(h.base.count[0:0]) {{ 1: right; default: accept; }} }}
    state right {{ pkt.extract(h.right); transition accept; }}
    state items {{
        pkt.extract(h.items.next);
        seen = seen + 1;
        m.inner.x0 = (bit<{self.fields["inner_t"]["x0"]}>) h.items.last.more;
        transition select(h.items.last.more, seen) {{ (1 &&& 1, _): items; (_, 2): left; default: accept; }}
    }}
    state options {{
        bit<8> size = pkt.lookahead<bit<8>>();
        pkt.extract(h.options, (bit<32>)(size & 15) * {self.random.choice((4, 8))});
        transition accept;
    }}
    state ahead {{
        left_t peek = pkt.lookahead<left_t>();
        m.inner.x1 = (bit<{self.fields["inner_t"]["x1"]}>) peek.{next(iter(self.fields["left_t"]))};
        pkt.advance((bit<32>) h.base.count[1:0] * 8);
        transition right;
    }}"""

    def table(self, name: str, scope: Scope) -> str:
        """A table with keys of some kinds; a controller fills it."""
        kinds = self.random.choice(
            (("exact",), ("exact", "exact"), ("lpm",), ("exact", "lpm"), ("ternary", "exact"), ("range", "optional"))
        )
        small = [(n, w) for n, w in scope.places.items() if w < 64]
        keys = ""
        for i, kind in enumerate(kinds):
            place, width = self.random.choice(small)
            shown = f"({place} & {(1 << min(width, 3)) - 1})" if kind != "lpm" else place
            keys += f'{shown}: {kind} @name("k{i}"); '
        actions = f"set_{self.where}; add_{self.where}; nothing_{self.where};"
        default = self.random.choice((f"set_{self.where}(5, 7)", f"nothing_{self.where}()"))
        return f"table {name} {{ key = {{ {keys}}} actions = {{ {actions} }} default_action = {default}; size = 64; }}"

    def field_list(self) -> int:
        """Number of a field list: 3 is empty."""
        return self.random.choice((1, 2, 3))

    def again(self, how: str, condition: str) -> str:
        """Once round again; list 3 would forget how often the packet has been round."""
        call = f"{how}_preserving_field_list({self.random.choice((1, 2))})"
        return f" if ({condition} && m.rounds < 2) {{ m.rounds = m.rounds + 1; {call}; }}"

    def control(self, where: str) -> str:
        """Ingress or egress."""
        self.where = where
        self.registers, self.counters = f"cells_{where}", f"counts_{where}"
        scope = Scope(self.places_of("h.base") | self.metadata | {"x": 32, "y": 8, "z": 65}, {}, ("h.base",))
        inner = Scope(scope.places, {"p": 8, "q": 33}, (), [], False)
        quiet = Scope(scope.places, {}, (), [], False)
        scope.tables = [f"t{i}_{where}" for i in range(3)]
        tables = "\n".join("    " + self.table(t, scope) for t in scope.tables)
        head = f"""    register<bit<32>>({REGISTER_SIZE}) {self.registers};
    counter({REGISTER_SIZE}, CounterType.packets) {self.counters};
    {" ".join(f"{c}() {c}_{where};" for c in self.controls)}
    bit<32> x = 1; bit<8> y = 2; bit<65> z = 3;
    action set_{where}(bit<8> p, bit<33> q) {{ {self.statements(inner, 2, 1)} }}
    action add_{where}() {{ {self.statements(quiet, 2, 1)} }}
    action nothing_{where}() {{ }}
{tables}"""
        begin = "if (!h.base.isValid()) { h.base.setValid(); }"
        end = "s.egress_spec = (bit<9>) (h.base.kind & 7);"
        if where == "ingress":
            begin += " if (s.parser_error != error.NoError) { m.m0 = m.m0 + 1; }"
            end += f" if (h.base.count[1:0] == 1) {{ s.mcast_grp = (bit<16>)(h.base.kind & {GROUPS}); }}"
            end += " if (h.base.kind == 9) { mark_to_drop(s); }"
            end += f" if (h.base.count == 2) {{ clone_preserving_field_list(CloneType.I2E, 7, {self.field_list()}); }}"
            end += self.again("resubmit", "h.base.count == 3")
        else:
            begin += " y = (bit<8>) s.egress_port; x = (bit<32>) s.egress_rid;"
            end = "if (h.base.sum == 3) { mark_to_drop(s); }" + self.again("recirculate", "h.base.count == 4")
        body = "\n        ".join(self.statement(scope, 2) for _ in range(10))
        return f"{head}\n    apply {{\n        {begin}\n        {end}\n        {body}\n    }}"
