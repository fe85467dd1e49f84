"""What a shared object's headers declare, as ctypes takes it: the headers come with the package, and alone say what
structures, functions and constants there are.

Reads declarations as kvcast's headers have them: structures of numbers, pointers, arrays and other structures, public
functions of such, `#define`s of numbers and products, enumerations without values of their own.
"""

from __future__ import annotations

import ctypes
import keyword
import math
import re
from collections.abc import Iterable, Mapping
from ctypes import POINTER, c_char_p, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

Signature: TypeAlias = tuple[Any, tuple[Any, ...]]
"""(result, arguments)."""
_NUMBERS: Final = {
    "int": ctypes.c_int,
    "double": ctypes.c_double,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_DEFINE: Final = re.compile(r"^#define (\w+) +\(?([\w *]+)\)?\s*$", re.MULTILINE)
_ENUMERATION: Final = re.compile(r"^enum (\w+) \{(.*?)\}", re.MULTILINE | re.DOTALL)
_STRUCTURE: Final = re.compile(r"^struct (\w+) \{(.*?)^\};", re.MULTILINE | re.DOTALL)
_FUNCTION: Final = re.compile(r"^(?:DP_PUBLIC|KC_API) ([\w ]+?)( \*|  *)(\w+)\((.*?)\);", re.MULTILINE | re.DOTALL)
_DECLARED: Final = re.compile(r"\s*(?P<const>const )?(?P<type>(?:struct |enum )?\w+) (?P<names>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Declarations:
    """By name."""

    structures: Mapping[str, type[ctypes.Structure]]
    """A field whose name Python keeps for itself has an underscore behind it. A `const uint8_t *` takes bytes or an
    address; other pointers are addresses."""
    functions: Mapping[str, Signature]
    constants: Mapping[str, int]
    enumerations: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, headers: Iterable[Path]) -> Declarations:
        """Read headers, each after those that it includes. Raises OSError."""
        text = _COMMENT.sub("", "".join(header.read_text() for header in headers))
        constants: dict[str, int] = {}
        for name, value in _DEFINE.findall(text):
            constants[name] = _product(value, constants)
        structures: dict[str, type[ctypes.Structure]] = {}
        for name, body in _STRUCTURE.findall(text):
            lines = body.split(";")[:-1]
            fields = [field for line in lines for field in _fields(line, structures, constants)]
            structures[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        functions: dict[str, Signature] = {}
        for type_, star, name, arguments in _FUNCTION.findall(text):
            result = c_void_p if "*" in star else _NUMBERS.get(type_)
            functions[name] = result, tuple(_argument(one, structures) for one in arguments.split(","))
        enumerations = {name: tuple(re.findall(r"\w+", body)) for name, body in _ENUMERATION.findall(text)}
        return cls(structures, functions, constants, enumerations)


def _product(words: str, constants: Mapping[str, int]) -> int:
    """Of numbers and constants."""
    return math.prod(constants[one] if one in constants else int(one) for one in re.findall(r"\w+", words))


def _fields(
    line: str, structures: Mapping[str, type[ctypes.Structure]], constants: Mapping[str, int]
) -> list[tuple[str, Any]]:
    """One line of a structure may declare several fields of a type."""
    found = _DECLARED.match(line)
    assert found is not None, line
    fields = []
    for one in found["names"].split(","):
        kind: Any = structures.get(found["type"].removeprefix("struct ")) or _NUMBERS.get(found["type"])
        name, *sizes = re.findall(r"\w+|\[[^]]*\]", re.sub(r"[\s*]*", "", one))
        if "*" in one:
            kind = c_char_p if found["const"] and found["type"] == "uint8_t" else c_void_p
        for size in reversed(sizes):
            kind = kind * _product(size, constants)
        fields.append((name + "_" * keyword.iskeyword(name), kind))
    return fields


def _argument(words: str, structures: Mapping[str, type[ctypes.Structure]]) -> Any:
    """Addresses take arrays, bytes and references as well; those of structures only references to such."""
    found = _DECLARED.match(words)
    assert found is not None, words
    if "*" in found["names"] or "[" in found["names"]:
        structure = structures.get(found["type"].removeprefix("struct "))
        return c_void_p if structure is None else POINTER(structure)
    return ctypes.c_int if found["type"].startswith("enum ") else _NUMBERS[found["type"]]
