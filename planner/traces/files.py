"""Opens trace files: plain, zstd, or a tar of CSV files in zstd."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import zstandard

from planner.traces.request import TraceError, TraceRequest, parse_lengths, parse_trace

FORMATS: Final = (".jsonl", ".jsonl.zst", ".csv", ".tar.zst")


def read_trace(path: Path, member: str | None = None) -> list[TraceRequest]:
    """Requests of a file, in order of arrival.

    `.jsonl`, `.jsonl.zst`: Mooncake's format (`request.parse_trace`). `.csv`, `.tar.zst` with CSV files in it: Azure's
    arrivals and lengths (`request.parse_lengths`), which share no prefix; of a tar the file whose name contains
    `member`, or the first. Raises TraceError, one line that names the file and its mistake.
    """
    if not path.name.endswith(FORMATS):
        raise TraceError(f"trace {path}: a name that ends in {', '.join(FORMATS)} says how to read it")
    try:
        if path.name.endswith(".tar.zst"):
            return _from_tar(path, member)
        with _open_lines(path) as lines:
            return parse_lengths(lines) if path.suffix == ".csv" else parse_trace(lines)
    except FileNotFoundError:
        raise TraceError(f"trace {path}: no such file") from None
    except (OSError, tarfile.TarError, UnicodeDecodeError, csv.Error, TraceError) as error:
        raise TraceError(f"trace {path}: {error}") from error


@contextmanager
def _open_lines(path: Path) -> Iterator[Iterable[str]]:
    with path.open("rb") as file:
        if path.suffix == ".zst":
            with _decompressed(file) as plain:
                yield io.TextIOWrapper(plain, encoding="utf-8")
        else:
            yield io.TextIOWrapper(file, encoding="utf-8")


@contextmanager
def _decompressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Raises TraceError for bytes that are not zstd."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(file) as plain:
            yield plain
    except zstandard.ZstdError as error:
        raise TraceError(str(error)) from error


def _from_tar(path: Path, member: str | None) -> list[TraceRequest]:
    with (
        path.open("rb") as file,
        _decompressed(file) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        for entry in archive:
            if entry.name.endswith(".csv") and (member is None or member in entry.name):
                content = archive.extractfile(entry)
                if content is not None:
                    return parse_lengths(content.read().decode().splitlines(keepends=True))
    wanted = "CSV file" if member is None else f"CSV file with {member!r} in its name"
    raise TraceError(f"no {wanted} in it")
