"""Trace files for the planner, of anybody's making: JSON lines and CSV, plain and compressed."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import tarfile
import tempfile
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import zstandard

from planner.traces.files import FORMATS, read_trace
from planner.traces.records import REQUEST_TOKENS_MAX, TraceError
from planner.traces.request import dequantise, is_quantised
from tests.fuzz.target import Case, check

_ODD = (0, -1, 1, 2.5, 1e18, "1e999", "1" * 400, None, True, [], {}, "x", 1 << 70, "NaN")
_DATES = ("2023-11-16 18:15:46.6805900", "2023-11-16", "9999-12-31 23:59:59", "0001-01-01T00:00:00+23:59", "x", "")


class Traces:
    """One step: a file. Its first byte names the format, the second whether it is packed as that format says."""

    name: ClassVar[str] = "traces"
    checks: ClassVar[str] = "finite requests in order or TraceError of one line"
    limit_s: ClassVar[float] = 5.0
    words: ClassVar[tuple[bytes, ...]] = (
        b"1e999",
        b"1" * 5000,
        b"NaN",
        b"-Infinity",
        b"[" * 3000,
        b'"\\ud800"',
        b"null",
        b"\x00",
        b"\xff\xfe",
        b"\r",
        b'"',
        b"-0.0",
        b"1e308",
        b"9" * 30,
    )

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvcast-fuzz-")

    def fresh(self, random: Random) -> Case:
        form = random.randrange(len(FORMATS))
        size = random.choice((16, 128, 512, 1024, 24))
        lines = "".join(
            _json_line(random, size) if FORMATS[form].startswith(".json") else _csv_line(random)
            for _ in range(random.choice((0, 1, 5, 20)))
        )
        if not FORMATS[form].startswith(".json") and random.random() < 0.9:
            lines = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines
        packed = random.random() < 0.7
        # What is packed here is mutated packed: damage to zstd's and tar's own bytes.
        content = _packed(FORMATS[form], lines.encode()) if packed and random.random() < 0.4 else lines.encode()
        return [bytes((form, packed and content == lines.encode())) + content]

    def run(self, case: Case) -> None:
        for step in case:
            if len(step) < 2:
                continue
            form = FORMATS[step[0] % len(FORMATS)]
            path = Path(self._folder.name) / f"trace{form}"
            path.write_bytes(_packed(form, step[2:]) if step[1] % 2 else step[2:])
            try:
                requests = read_trace(path).requests
            except TraceError as error:
                check("\n" not in str(error), "a TraceError of several lines")
                check(len(str(error)) < 1000, f"a TraceError of {len(str(error))} characters")
                continue
            if is_quantised(requests):
                requests = dequantise(requests, 1)
            for request in requests:
                check(math.isfinite(request.arrival_ms), "a request at no time")
                check(0 <= request.input_tokens <= REQUEST_TOKENS_MAX, "a request of no length")
                check(0 <= request.output_tokens <= REQUEST_TOKENS_MAX, "an answer of no length")
            check(requests == sorted(requests, key=lambda one: one.arrival_ms), "requests out of order")

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._folder.cleanup()


def _json_line(random: Random, size: int) -> str:
    """A request whose hashes agree with its length, in blocks of `size` tokens; sometimes one of them is odd."""
    tokens = random.randrange(5000)
    request: dict[str, Any] = {
        "timestamp": random.choice((0, 3000, 2.5, random.randrange(10**7))),
        "input_length": tokens,
        "output_length": random.randrange(500),
        "hash_ids": [random.choice((at, random.randrange(50))) for at in range(-(-tokens // size))],
    }
    if random.random() < 0.3:
        request[random.choice(list(request))] = random.choice(_ODD)
    if random.random() < 0.1:
        del request[random.choice(list(request))]
    return json.dumps(request) + "\n"


def _csv_line(random: Random) -> str:
    fields = [random.choice(_DATES[:2]), random.randrange(5000), random.randrange(500)]
    if random.random() < 0.3:
        fields[random.randrange(3)] = random.choice((*_ODD, *_DATES))
    return ",".join(map(str, fields)) + "\n"


def _packed(form: str, content: bytes) -> bytes:
    if form == ".tar.zst":
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo("trace.csv")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        content = packed.getvalue()
    if form.endswith(".gz"):
        return gzip.compress(content, mtime=0)
    return zstandard.ZstdCompressor().compress(content) if form.endswith(".zst") else content
