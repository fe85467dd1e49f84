"""What ctypes makes of headers is what a compiler makes of them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

import hostagent.native
from hostagent.native.library import DECLARED, datapath
from kvcodec.declarations import Declarations

HEADER = """\
/* A comment; with a struct no_such { int32_t of_it; };
 * over two lines. */
#pragma once
#define KC_API __attribute__((visibility("default")))
#define ROWS 3
#define CELLS (ROWS * 4) /* a product */

enum colour { COLOUR_RED, /* the first */ COLOUR_BLUE, COLOURS };

struct inner {
    uint8_t first;
    uint64_t second;
};

struct outer {
    struct inner inside, beside;
    const uint8_t *text; /* bytes */
    struct inner *of;
    uint16_t cells[ROWS][CELLS];
    uint32_t from;
    double last;
};

KC_API struct outer *make(const struct outer *like, int number,
                          enum colour colour);

KC_API void take(uint64_t *counts, uint8_t digest[CELLS]);
"""
PROGRAM = """
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "declared.h"
int main(void) {
    printf("%zu %zu %zu %zu %zu\\n", sizeof(struct inner), sizeof(struct outer), offsetof(struct outer, text),
           offsetof(struct outer, from), offsetof(struct outer, last));
}
"""


@pytest.fixture
def header(tmp_path: Path) -> Path:
    path = tmp_path / "declared.h"
    path.write_text(HEADER)
    return path


def test_structures_lie_as_the_compiler_lays_them(header: Path) -> None:
    declared = Declarations.of([header])
    inner, outer = declared.structures["inner"], declared.structures["outer"]
    (header.parent / "sizes.c").write_text(PROGRAM)
    program = header.parent / "sizes"
    subprocess.run(["cc", "-o", program, header.parent / "sizes.c"], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    offsets = [getattr(outer, name).offset for name in ("text", "from_", "last")]
    assert [ctypes.sizeof(inner), ctypes.sizeof(outer), *offsets] == list(map(int, said))
    one = outer(text=b"abc", from_=7)
    one.cells[2][11] = 5
    assert (one.text, one.from_, one.cells[2][11]) == (b"abc", 7, 5)


def test_functions_constants_and_enumerations(header: Path) -> None:
    declared = Declarations.of([header])
    result, arguments = declared.functions["make"]
    assert result is ctypes.c_void_p
    assert [one.__name__ for one in arguments] == ["LP_outer", "c_int", "c_int"]
    assert declared.functions["take"] == (None, (ctypes.c_void_p, ctypes.c_void_p))
    assert (declared.constants["ROWS"], declared.constants["CELLS"]) == (3, 12)
    assert declared.enumerations["colour"] == ("COLOUR_RED", "COLOUR_BLUE", "COLOURS")


def test_the_data_path_has_all_that_its_headers_declare() -> None:
    library = datapath()  # compares sizes
    sources = "".join(path.read_text() for path in Path(hostagent.native.__file__).parent.joinpath("src").glob("*.h"))
    public = {line.split("(")[0].split()[-1].lstrip("*") for line in sources.split("DP_PUBLIC ")[1:] if "(" in line}
    assert {name for name in public if name.startswith("dp_")} - {"dp_structure_bytes[];"} <= set(DECLARED.functions)
    assert all(hasattr(library, name) for name in DECLARED.functions)
