"""The reading API for generators of codecs."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.frontend import CompileError, layouts


def test_layouts_constants_and_enums(tmp_path: Path) -> None:
    path = tmp_path / "headers.p4"
    path.write_text(
        """
        #include <core.p4>
        typedef bit<128> key_t;
        const bit<16> PORT = 4793; const int N = 3 * W;
        enum bit<8> Op { JOIN = 1, GET = 1 + 3 }
        header control_t { bit<4> version; bit<4> op; Op kind; key_t key; varbit<64> rest; }
        struct note_t { key_t key; bool hot; }
        """
    )
    found = layouts(path, {"W": "7"})
    fields = [(f.name, f.bits, f.declared, f.is_varbit) for f in found.headers["control_t"]]
    assert fields == [
        ("version", 4, "bit<4>", False), ("op", 4, "bit<4>", False), ("kind", 8, "Op", False),
        ("key", 128, "bit<128>", False), ("rest", 64, "varbit<64>", True),
    ]  # fmt: skip
    assert (found.constants["PORT"], found.constants["N"]) == (4793, 21)
    assert (found.enums["Op"].bits, found.enums["Op"].members) == (8, (("JOIN", 1), ("GET", 4)))
    assert [f.bits for f in found.structs["note_t"]] == [128, 1]


def test_wrong_files_raise(tmp_path: Path) -> None:
    path = tmp_path / "headers.p4"
    path.write_text("header h { nope x; }")
    with pytest.raises(CompileError, match="type 'nope' is not declared"):
        layouts(path)
