"""Opens trace files: plain, in gzip or zstd, or a tar of CSV files in zstd. A file that was cut is refused."""

from __future__ import annotations

import csv
import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import zstandard

from planner.traces.meaning import Trace, understood
from planner.traces.records import Recorded, TimeUnit, TraceError, csv_records, json_records

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

FORMATS: Final = (".jsonl", ".jsonl.zst", ".jsonl.gz", ".csv", ".csv.zst", ".csv.gz", ".tar.zst")
_LINE_CHARACTERS_MAX: Final = 64 << 20
"""A line without an end would take all memory."""
_MEMBER_BYTES_MAX: Final = 1 << 30
"""Of a CSV file in a tar, which is taken whole."""
_PACKED_BYTES: Final = 2048
"""Taken at once: zstd makes up to 32,768 bytes of one."""


def read_trace(
    path: Path, member: str | None = None, unit: TimeUnit | None = None, block_tokens: int | None = None
) -> Trace:
    """A file as the trace that it is.

    JSON lines are Mooncake's or Bailian's, CSV is Azure's or BurstGPT's; of a tar the file whose name contains
    `member`, or the first. `unit` and `block_tokens`: what the user knows of timestamps and hashes. Raises TraceError,
    one line that names the file and its mistake.
    """
    if not path.name.endswith(FORMATS):
        raise TraceError(f"trace {path}: a name that ends in {', '.join(FORMATS)} says how to read it")
    try:
        recorded = _from_tar(path, member) if path.name.endswith(".tar.zst") else _from_file(path)
        return understood(recorded, unit, block_tokens)
    except FileNotFoundError:
        raise TraceError(f"trace {path}: no such file") from None
    except (EOFError, zlib.error) as error:
        raise TraceError(f"trace {path}: ends in the middle or is damaged: {error}") from error
    except (OSError, tarfile.TarError, UnicodeDecodeError, csv.Error, TraceError) as error:
        raise TraceError(f"trace {path}: {error}") from error


def _from_file(path: Path) -> Recorded:
    with _opened(path) as plain, _text(plain) as text:
        lines = _lines(text)
        return csv_records(lines) if ".csv" in path.suffixes[-2:] else json_records(lines)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The plain bytes of a file."""
    with path.open("rb") as file:
        if path.suffix == ".zst":
            yield io.BufferedReader(_ZstdFrames(file))
        elif path.suffix == ".gz":
            yield io.BufferedReader(gzip.GzipFile(fileobj=file))
        else:
            yield file


def _text(plain: IO[bytes]) -> io.TextIOWrapper:
    return io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Raises TraceError for a line beyond all measure."""
    while line := text.readline(_LINE_CHARACTERS_MAX):
        if len(line) == _LINE_CHARACTERS_MAX:
            raise TraceError(f"a line of more than {_LINE_CHARACTERS_MAX:,} characters")
        yield line


class _ZstdFrames(io.RawIOBase):
    """Plain bytes of a file of one or more zstd frames. zstandard's own reader ends without a word where a frame is
    cut, and after the first frame: here the first raises TraceError, and all frames are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._plain = b""

    def readable(self) -> bool:
        return True

    def readinto(self, target: WriteableBuffer, /) -> int:
        while not self._plain:
            packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = zstandard.ZstdDecompressor().decompressobj(), False
            packed = packed or self._file.read(_PACKED_BYTES)
            if not packed:
                if self._begun:
                    raise TraceError("ends in the middle of its compressed data: was it copied whole?")
                return 0
            self._begun = True
            try:
                self._plain = self._frame.decompress(packed)
            except zstandard.ZstdError as error:
                raise TraceError(str(error)) from error
        view = memoryview(target)
        taken = min(len(view), len(self._plain))
        view[:taken], self._plain = self._plain[:taken], self._plain[taken:]
        return taken


def _from_tar(path: Path, member: str | None) -> Recorded:
    with (
        path.open("rb") as file,
        io.BufferedReader(_ZstdFrames(file)) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        for entry in archive:
            if entry.name.endswith(".csv") and (member is None or member in entry.name):
                content = archive.extractfile(entry)
                if content is not None:
                    text = content.read(_MEMBER_BYTES_MAX + 1)
                    if len(text) > _MEMBER_BYTES_MAX:
                        raise TraceError(f"{entry.name!r} in it is above 1 GiB: plan a part of it")
                    return csv_records(_lines(_text(io.BytesIO(text))))
    wanted = "CSV file" if member is None else f"CSV file with {member!r} in its name"
    raise TraceError(f"no {wanted} in it")
