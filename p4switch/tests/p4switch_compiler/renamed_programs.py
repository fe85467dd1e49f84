"""The same program under other names: what its author may choose, and what must leave no trace in the generated C."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from p4switch.frontend.lexer import KEYWORDS
from p4switch.frontend.preprocess import INCLUDE_DIRECTORY

Naming = Callable[[int], str]
"""A name or a text for each number; any characters."""

_TABLE_OF_TEXT = re.compile(r"^(static const char text_\d+\[\] = \{)-?\d+(?:, -?\d+)*(\};)$", re.M)
_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|@\s*\w+|\d\w*|[A-Za-z_]\w*|\s+|.', re.S)
_PLACEHOLDER = "{}"
_NAMED = ("table", "action", "register", "counter", "meter", "action_selector", "direct_counter", "value_set")
_BUILT_IN = """start accept reject main action_run hit miss next last lastIndex isValid setValid setInvalid push_front
    pop_front minSizeInBits minSizeInBytes maxSizeInBits maxSizeInBytes default_action size implementation counters
    meters support_timeout"""
_UNRULY = re.compile(r"\W", re.ASCII)

ANNOTATED = """#include <core.p4>
#include <v1model.p4>
error { Odd }
enum kinds_t { one, two }
header small_t { bit<8> kind; varbit<64> rest; }
header wide_t { bit<160> number; bit<48> more; bit<16> sum; }
header_union either_t { small_t small; wide_t wide; }
struct headers_t { wide_t wide; small_t[3] stack; either_t either; }
struct inner_t { @field_list(1) bit<32> count; bool seen; }
struct metadata_t { inner_t inner; kinds_t kind; tuple<bit<8>, bit<16>> pair; }
struct report_t { bit<48> more; bit<32> count; }
parser P(packet_in pkt, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    value_set<bit<16>>(4) known;
    state start { pkt.extract(h.wide); transition select(h.wide.sum) { known: again; 7: reject; default: accept; } }
    state again {
        pkt.extract(h.stack.next, 16);
        verify(h.stack.last.kind != 9, error.Odd);
        transition select(h.stack.lastIndex) { 2: accept; default: again; }
    }
}
control V(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<32>>(8) cells; counter(8, CounterType.packets) counted; meter(8, MeterType.bytes) metered;
    action_selector(HashAlgorithm.crc16, 32w16, 32w8) chosen; direct_counter(CounterType.bytes) each;
    bit<32> local = 1;
    bit<9> left_out = 0;
    action send(@name("port number") bit<9> port) { s.egress_spec = port; left_out = port; }
    action note(bit<32> by, bit<160> wide) { m.inner.count = m.inner.count + by; h.wide.number = wide; }
    table pick {
        key = { h.wide.more : ternary @name("more bits"); h.wide.sum : selector; }
        actions = { send; note; } implementation = chosen;
    }
    table count_each { key = { h.wide.sum : exact; } actions = { note; NoAction; } counters = each; size = 16;
        const entries = { 1 : note(2, 3); } default_action = NoAction(); }
    apply {
        cells.read(local, 32w1);
        local = local + 1;
        cells.write(32w1, local);
        counted.count(32w2);
        metered.execute_meter(32w3, local);
        if (pick.apply().hit) { count_each.apply(); }
        switch (count_each.apply().action_run) { note: { left_out = 1; } NoAction: { exit; } }
        random(local, 32w1, 32w9);
        log_msg("local is {} of {} %n %s", { local, left_out });
        log_msg("nothing to show");
        assert(left_out != 511);
        hash(m.inner.count, HashAlgorithm.crc32, 32w0, { h.wide.more, h.wide.sum }, 32w100);
        digest<report_t>(1, { h.wide.more, m.inner.count });
        recirculate_preserving_field_list(1);
        m.pair = { 8w1, 16w2 };
        m.kind = kinds_t.two;
        standard_metadata_t copied = s;
        mark_to_drop(copied);
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control C(inout headers_t h, inout metadata_t m) {
    apply { update_checksum(h.wide.isValid(), { h.wide.more }, h.wide.sum, HashAlgorithm.csum16); }
}
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.wide); pkt.emit(h.stack); pkt.emit(h.either); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""
"""A program with a name of every kind that the language and v1model have."""


def code_of(generated: str) -> str:
    """Generated C without what its tables of texts hold: the part that a compiler takes as code."""
    return _TABLE_OF_TEXT.sub(r"\1\2", generated)


@cache
def _architectures_words() -> frozenset[str]:
    """What is not the program's to name: keywords, and what the architectures' files declare."""
    files = (re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.S) for path in INCLUDE_DIRECTORY.glob("*.p4"))
    return KEYWORDS | {word for text in files for word in re.findall(r"[A-Za-z_]\w*", text)} | {*_BUILT_IN.split()}


def identifier(text: str, number: int) -> str:
    """An identifier of P4 that is like a text and like no other number's."""
    return f"{_UNRULY.sub('_', text) or 'x'}_{number}" if text[:1].isalpha() else f"_{_UNRULY.sub('_', text)}_{number}"


def renamed(source: str, names: Naming, texts: Naming) -> str:
    """The program with each identifier of its own from `names`, and each string and control-plane name from `texts`."""
    kept = _architectures_words()
    chosen: dict[str, str] = {}
    count = 0
    out: list[str] = []
    for line in source.split("\n"):
        if line.lstrip().startswith("#"):
            out.append(line + "\n")
            kept |= frozenset(re.findall(r"[A-Za-z_]\w*", line))
            continue
        for token in _TOKEN.findall(line + "\n"):
            count += 1
            if token.startswith('"'):
                out.append(quoted(texts(count), token.count(_PLACEHOLDER)))
            elif token in _NAMED:
                out.append(f"@name({quoted(texts(count), 0)}) {token}")
            elif token.isidentifier() and token not in kept:
                if token not in chosen:
                    chosen[token] = identifier(names(count), count)
                out.append(chosen[token])
            else:
                out.append(token)
    return "".join(out)


def quoted(text: str, placeholders: int) -> str:
    """A string of P4 with this text and so many places for values."""
    plain = text.replace(_PLACEHOLDER, "").replace("\\", "\\\\").replace('"', '\\"').replace("\0", "\\0")
    plain = plain.replace("\n", "\\n").replace("\r", "\\r")
    return f'"{plain}{_PLACEHOLDER * placeholders}"'


def sources() -> list[str]:
    """Programs that compile, of both architectures."""
    here = Path(__file__).parents[2]
    folders = ("tests/stf", "src/p4switch/bench/programs")
    return [ANNOTATED, *(path.read_text() for folder in folders for path in sorted((here / folder).glob("*.p4")))]
