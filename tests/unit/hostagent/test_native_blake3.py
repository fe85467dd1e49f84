"""BLAKE3 in C is BLAKE3, in as many lanes as the processor has registers for, and in fewer."""

from __future__ import annotations

import ctypes
import platform
import random
from pathlib import Path

import pytest
from blake3 import blake3

import hostagent.native
from p4switch.build import FLAGS_FAST, build_shared_object

SOURCES = Path(hostagent.native.__file__).parent / "src"
OUT_BYTES = 32
BYTES_MAX = 64 * 1024
SIZES = [*range(130), *range(1022, 1027), *(1024 * chunks + odd for chunks in range(1, 64) for odd in (0, 1, 1000))]
WIDTHS = {
    "this processor's": (),
    "without AVX-512": ("-mno-avx512f",),
    "without AVX2": ("-mno-avx512f", "-mno-avx2"),
}


class Mode(ctypes.Structure):
    """struct blake3_mode"""

    _fields_ = (("key", ctypes.c_uint32 * 8), ("flags", ctypes.c_uint32))


@pytest.mark.parametrize("width", WIDTHS)
def test_hashes_of_all_sizes(width: str) -> None:
    flags = WIDTHS[width]
    if flags and platform.machine() != "x86_64":
        pytest.skip("instructions of x86-64")
    path = build_shared_object(
        "blake3",
        [SOURCES / "blake3.c"],
        include_dirs=(SOURCES,),
        flags=(*FLAGS_FAST, "-fvisibility=default", *flags),
    )
    library = ctypes.CDLL(str(path))
    library.blake3_plain.restype = library.blake3_of_context.restype = Mode
    library.blake3_of_context.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    library.blake3_hash.argtypes = (ctypes.POINTER(Mode), ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
    content = random.Random(1).randbytes(BYTES_MAX)
    context = "a context of this test"
    plain = library.blake3_plain()
    derived = library.blake3_of_context(context.encode(), len(context))
    found = ctypes.create_string_buffer(OUT_BYTES)
    for size in (*SIZES, BYTES_MAX - 1, BYTES_MAX):
        library.blake3_hash(ctypes.byref(plain), content, size, found)
        assert found.raw == blake3(content[:size]).digest(), size
        library.blake3_hash(ctypes.byref(derived), content, size, found)
        assert found.raw == blake3(content[:size], derive_key_context=context).digest(), size
