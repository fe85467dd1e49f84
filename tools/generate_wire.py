#!/usr/bin/env python3
"""Write kvproto/src/kvproto/wire/layouts.py from p4/include/headers.p4, so that both ends speak one truth.

The headers and constants are read by p4switch's own front end; the output stands alone (standard library and numpy).
`--check` compares instead of writing and ends with status 1 when the file is not what it should be.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "p4switch" / "src"))

from p4switch.frontend.layouts import FieldLayout, layouts  # noqa: E402

HEADERS = ROOT / "p4" / "include" / "headers.p4"
OUTPUT = ROOT / "kvproto" / "src" / "kvproto" / "wire" / "layouts.py"

NOT_OURS = ("arp_", "ARP_", "vlan_", "ip_option_")
"""Headers and constants that the switch needs and no end host writes begin so."""
SIZE_ALONE = ("udp_t", "icrc_t")
"""Headers that kernels and data paths write: here nothing but their size matters."""
WITHOUT_COLUMNS = ("ethernet_t", "ipv4_t")
"""Headers of which nobody reads many at once: they have no numpy dtype."""
DERIVED_SUFFIX = "_BYTES"
"""Constants of the P4 program that restate sizes: here they follow from the layouts, or from the segment size that the
controller sends at run time."""


@dataclass(frozen=True, slots=True)
class Header:
    """One header type in declaration order."""

    name: str
    fields: tuple[FieldLayout, ...]


def byte_groups(header: Header) -> Iterator[tuple[FieldLayout, ...]]:
    """The fields of a header in runs that end on byte boundaries, each as short as possible."""
    run: list[FieldLayout] = []
    for field in header.fields:
        run.append(field)
        if sum(each.bits for each in run) % 8 == 0:
            yield tuple(run)
            run = []
    if run:
        raise SystemExit(f"generate_wire: {header.name} does not end on a byte boundary")


def class_name(header: Header) -> str:
    """`kv_control_t` -> `KvControl`."""
    return "".join(part.capitalize() for part in header.name.removesuffix("_t").split("_"))


def struct_code(bits: int) -> str:
    """The code of `struct` for one group of `bits` bits."""
    return {8: "B", 16: "H", 32: "I", 64: "Q"}.get(bits, f"{bits // 8}s")


def dtype_entry(name: str, bits: int) -> str:
    """One field of a numpy dtype for one group of `bits` bits."""
    if bits in (8, 16, 32, 64):
        return f'("{name}", ">u{bits // 8}")'
    return f'("{name}", "u1", ({bits // 8},))'


def field_type(bits: int) -> str:
    """Python type of a field: keys are bytes, everything else is an unsigned integer."""
    return "bytes" if bits == 128 else "int"


def pack_expression(group: Sequence[FieldLayout]) -> str:
    """The value of one group, from the fields of `self`."""
    bits = sum(field.bits for field in group)
    if len(group) == 1:
        value = f"self.{group[0].name}"
        return value if bits in (8, 16, 32, 64, 128) else f'{value}.to_bytes({bits // 8}, "big")'
    parts, left = [], bits
    for field in group:
        left -= field.bits
        parts.append(f"self.{field.name} << {left}" if left else f"self.{field.name}")
    return " | ".join(parts)


def unpack_expressions(group: Sequence[FieldLayout], slot: int) -> Iterator[str]:
    """The fields of one group, from `raw[slot]`."""
    bits = sum(field.bits for field in group)
    if len(group) == 1:
        yield f"raw[{slot}]" if bits in (8, 16, 32, 64, 128) else f'int.from_bytes(raw[{slot}], "big")'
        return
    left = bits
    for field in group:
        left -= field.bits
        shifted = f"raw[{slot}] >> {left}" if left else f"raw[{slot}]"
        yield f"{shifted} & {(1 << field.bits) - 1:#x}"


def group_name(group: Sequence[FieldLayout]) -> str:
    """What numpy calls a group: the names of its fields, joined."""
    return "_".join(field.name for field in group)


def render_header(header: Header) -> Iterator[str]:
    """The lines of one header: its size, a value class with `pack` and `unpack`, and a numpy dtype."""
    name, groups = class_name(header), list(byte_groups(header))
    widths = [sum(field.bits for field in group) for group in groups]
    upper = header.name.removesuffix("_t").upper()
    yield f"{upper}_BYTES: Final = {sum(widths) // 8}"
    if header.name in SIZE_ALONE:
        return
    yield f'_{upper} = struct.Struct("!{"".join(map(struct_code, widths))}")'
    if header.name not in WITHOUT_COLUMNS:
        yield f"{upper}_DTYPE: Final = np.dtype("
        yield "    ["
        columns = zip(groups, widths, strict=True)
        yield from (f"        {dtype_entry(group_name(group), width)}," for group, width in columns)
        yield "    ]"
        yield ")"
    yield ""
    yield ""
    yield "@dataclass(frozen=True, slots=True)"
    yield f"class {name}:"
    yield f'    """`{header.name}`, {sum(widths) // 8} bytes."""'
    yield ""
    for field in header.fields:
        default = "bytes(16)" if field_type(field.bits) == "bytes" else "0"
        yield f"    {field.name}: {field_type(field.bits)} = {default}"
    yield ""
    yield "    def pack(self) -> bytes:"
    yield '        """The header\'s bytes. Raises struct.error or OverflowError for a value that does not fit."""'
    yield f"        return _{upper}.pack("
    yield from (f"            {pack_expression(group)}," for group in groups)
    yield "        )"
    yield ""
    yield "    @classmethod"
    yield f'    def unpack(cls, buffer: bytes | bytearray | memoryview, offset: int = 0) -> "{name}":'
    yield '        """The header at `offset`. Raises struct.error when the buffer ends before it does."""'
    yield f"        raw = _{upper}.unpack_from(buffer, offset)"
    yield "        return cls("
    for slot, group in enumerate(groups):
        yield from (f"            {expression}," for expression in unpack_expressions(group, slot))
    yield "        )"


def render(headers: Sequence[Header], constants: Mapping[str, int]) -> str:
    """The whole module as text."""
    lines = [
        '"""Wire layouts and their constants. Generated from p4/include/headers.p4 by tools/generate_wire.py.',
        "",
        "Fields that share a byte share an entry of the numpy dtypes, named after all of them.",
        '"""',
        "",
        "import struct",
        "from dataclasses import dataclass",
        "from typing import Final",
        "",
        "import numpy as np",
        "",
    ]
    lines += [
        f"{name}: Final = {value if value < 256 else hex(value)}"
        for name, value in constants.items()
        if not name.endswith(DERIVED_SUFFIX)
    ]
    for header in headers:
        lines += ["", "", *render_header(header)]
    return "\n".join(lines) + "\n"


def generate() -> str:
    """The module as it should be, formatted."""
    found = layouts(HEADERS, {"SEGMENT_BYTES": "4096"})
    headers = [Header(name, fields) for name, fields in found.headers.items() if not name.startswith(NOT_OURS)]
    constants = {name: value for name, value in found.constants.items() if not name.startswith(NOT_OURS)}
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(OUTPUT), "-"],
        input=render(headers, constants),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout


def main() -> int:
    """Write or check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    wanted, asked = generate(), parser.parse_args()
    if not asked.check:
        OUTPUT.write_text(wanted)
        return 0
    if OUTPUT.read_text() == wanted:
        return 0
    print(f"generate_wire: {OUTPUT.relative_to(ROOT)} is not what {HEADERS.relative_to(ROOT)} says: run make wire")
    return 1


if __name__ == "__main__":
    sys.exit(main())
