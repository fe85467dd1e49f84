"""BLAKE3 in C is BLAKE3, in as many lanes as the processor has registers for, and in fewer."""

from __future__ import annotations

import ctypes
import random

import pytest
from blake3 import blake3

from tools.native_build import OBJECTS, build

OUT_BYTES = 32
BYTES_MAX = 64 * 1024
SIZES = [*range(130), *range(1022, 1027), *(1024 * chunks + odd for chunks in range(1, 64) for odd in (0, 1, 1000))]
LEVELS = ("every processor's", "AVX2", "AVX-512")
"""enum cpu_level of kvcodec/src/cpu.h, in order."""


class Mode(ctypes.Structure):
    """struct blake3_mode"""

    _fields_ = (("key", ctypes.c_uint32 * 8), ("flags", ctypes.c_uint32))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The data path, compiled so that what it keeps to itself can be called."""
    (made,) = (one for one in OBJECTS if one.path.startswith("hostagent"))
    target = tmp_path_factory.mktemp("native") / "datapath.so"
    build(made, target, ("-fvisibility=default", "-O1"))
    found = ctypes.CDLL(str(target))
    found.blake3_plain.restype = found.blake3_of_context.restype = Mode
    found.blake3_of_context.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    found.blake3_hash.argtypes = (ctypes.POINTER(Mode), ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
    return found


@pytest.mark.parametrize("name", LEVELS)
def test_hashes_of_all_sizes(library: ctypes.CDLL, name: str) -> None:
    level = LEVELS.index(name)
    if library.dp_use_level(level) != level:
        pytest.skip(f"this processor has no {name}")
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
