"""No character that a program's author wrote reaches the generated C: not a name, an annotation, a string, a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from p4switch.codegen.c_program import SUPPORT, render
from p4switch.codegen.intrinsic import intrinsic_field
from p4switch.compiler import compile_program, compile_to_ir
from p4switch.errors import SwitchError
from p4switch.frontend.preprocess import INCLUDE_DIRECTORY
from p4switch.runtime import INCLUDE_DIR, LogEvent, Program
from p4switch_compiler import renamed_programs
from p4switch_compiler.conftest import Bench

EVIL = (
    'x */ __attribute__((constructor)) static void owned(void) { __builtin_trap(); } /* "; #error %n%s \\" ??/ \n '
    "\\u0022 // \0 \x1b]0;owned\x07 é \u202e"
)
WORDS = ("while", "int32_t", "ctx", "p", "memcpy", "PS_LIKELY", "NULL", "v0", "l0", "m0", "t0_z", "text_0", "struct_")


def generated(folder: Path, source: str, file: str = "program.p4") -> str:
    path = folder / file
    path.write_text(source)
    return render(compile_to_ir(path)[0])


def plain(number: int) -> str:
    return f"n{number}"


@pytest.mark.parametrize("number", range(len(renamed_programs.sources())))
def test_the_code_is_the_same_whatever_everything_is_called(tmp_path: Path, number: int) -> None:
    source = renamed_programs.sources()[number]
    expected = renamed_programs.code_of(generated(tmp_path, renamed_programs.renamed(source, plain, plain)))
    random = Random(number)
    odd = renamed_programs.renamed(source, lambda n: random.choice(WORDS), lambda n: f"{n} {EVIL}")
    found = generated(tmp_path, odd, 'a"; %n \\ é.p4')
    assert renamed_programs.code_of(found) == expected
    assert found.isascii()


def test_every_text_is_in_a_table_of_numbers_and_comes_out_of_it_whole(tmp_path: Path) -> None:
    source = renamed_programs.renamed(renamed_programs.ANNOTATED, plain, lambda n: f"{n} {EVIL}".replace("\0", ""))
    found = generated(tmp_path, source)
    tables = re.findall(r"^static const char text_\d+\[\] = \{(.*)\};$", found, re.M)
    texts = {bytes(int(byte) % 256 for byte in numbers.split(", ")[:-1]).decode() for numbers in tables}
    assert sum("__attribute__((constructor))" in text for text in texts) > 12
    assert "owned" not in found.replace(SUPPORT.read_text(), "")
    assert '"' not in re.sub(r'"[^"\n]*"', "", found), "a string literal that does not end on its line"
    (tmp_path / "program.p4").write_text(source)
    loaded = Program.load(compile_program(tmp_path / "program.p4").shared_object_path)
    assert {t.name for t in loaded.tables} < texts
    assert {a.name for a in loaded.actions} < texts
    assert any(table.name.endswith(EVIL.replace("\0", "")) for table in loaded.tables)


def test_a_message_shows_its_text_and_values_and_is_no_format(bench: Callable[[str], Bench]) -> None:
    source = renamed_programs.ANNOTATED.replace(
        "apply {\n        cells.read(local, 32w1);",
        'apply {\n        log_msg("%n %s 100% {} {} {}", { local, left_out });\n        cells.read(local, 32w1);',
    )
    made = bench(source)
    made.send(bytes(200))
    said = [event.text for event in made.switch.events(0.0) if isinstance(event, LogEvent) and not event.trace]
    assert "%n %s 100% 1 0 {}" in said


def test_fields_of_intrinsic_metadata_are_the_runtimes_own(tmp_path: Path) -> None:
    header = (INCLUDE_DIR / "p4switch_abi.h").read_text()
    structs = re.findall(r"^struct ps_(?:standard_metadata|ingress_f\w+|egress_f\w+) \{(.*?)^\};", header, re.M | re.S)
    assert len(structs) == 7
    members = re.findall(r"(\w+)\s*[,;]", re.sub(r"/\*.*?\*/", "", "".join(structs), flags=re.S))
    assert [intrinsic_field(name) for name in members] == members
    own = (INCLUDE_DIRECTORY / "v1model.p4").read_text().replace("ingress_port", "made_up")
    (tmp_path / "v1model.p4").write_text(own)
    source = renamed_programs.sources()[1].replace("<v1model.p4>", '"v1model.p4"').replace("ingress_port", "made_up")
    with pytest.raises(SwitchError, match="no intrinsic metadata 'made_up'"):
        generated(tmp_path, source)
