"""The C compiles for AArch64 by Debian's cross compiler, and hashes as it should in an emulator of that processor."""

from __future__ import annotations

import random
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from blake3 import blake3

from tools import native_build

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = next((path for name in ("qemu-aarch64-static", "qemu-aarch64") if (path := shutil.which(name))), None)
SIZES = (0, 1, 63, 64, 1000, 1024, 4096, 9 * 1024 + 7, 65536)
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>

#include "blake3.h"
#include "crc32.h"

/* Of standard input, for each size and each set of instructions: its CRC and its BLAKE3. */
int main(int count, char **sizes)
{
    static uint8_t bytes[BLAKE3_BYTES_MAX], hash[BLAKE3_OUT_BYTES];
    struct blake3_mode plain = blake3_plain();
    unsigned all = cpu_of_this_machine().extras;
    if (fread(bytes, 1, sizeof bytes, stdin) != sizeof bytes || all != CPU_FOLDS)
        return 1;
    blake3_use_level(CPU_BASE);
    for (unsigned extras = 0; extras <= all; extras++)
        for (int i = 1; i < count; i++) {
            size_t size = strtoul(sizes[i], NULL, 10);
            dp_crc32_use(extras);
            blake3_hash(&plain, bytes, size, hash);
            printf("%08x ", dp_crc32(0, bytes, size));
            for (int at = 0; at < BLAKE3_OUT_BYTES; at++)
                printf("%02x", hash[at]);
            putchar('\\n');
        }
    return 0;
}
"""

pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason="needs Debian's gcc-aarch64-linux-gnu and libc6-dev-arm64-cross"
)


def test_both_objects_compile_without_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", COMPILER)
    objects = native_build.refresh(("-Werror", "-O1"), tmp_path)
    assert len(objects) == len(native_build.OBJECTS)
    assert native_build.platform_of(objects).endswith("_aarch64")


@pytest.mark.skipif(EMULATOR is None, reason="needs Debian's qemu-user-static")
def test_hashes_and_checksums(tmp_path: Path) -> None:
    assert EMULATOR is not None
    folder = native_build.ROOT / "hostagent" / "native" / "src"
    (tmp_path / "main.c").write_text(PROGRAM)
    sources = [folder / name for name in ("blake3.c", "blake3_base.c", "crc32.c")]
    includes = [f"-I{folder}", f"-I{native_build.ROOT / 'kvcodec' / 'src'}"]
    argv = [COMPILER, "-std=gnu11", "-D_GNU_SOURCE", "-static", "-pthread", "-O2", *includes]
    subprocess.run([*argv, str(tmp_path / "main.c"), *map(str, sources), "-o", str(tmp_path / "main")], check=True)
    content = random.Random(1).randbytes(65536)
    argv = [EMULATOR, str(tmp_path / "main"), *map(str, SIZES)]
    told = subprocess.run(argv, input=content, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
    wanted = [f"{zlib.crc32(content[:size]):08x} {blake3(content[:size]).hexdigest()}" for size in SIZES]
    assert told == wanted * 2
