"""Fingerprint of a model's weights from its files: quick, and different whenever a tensor is another one.

Of a safetensors file it takes the header (names, types, shapes and places of all tensors) and samples of every tensor;
of any other file its size and samples over its length. Reads a few KiB a tensor, so a model of 100 GB takes a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

SAMPLE_BYTES = 4096
SAMPLES_PER_TENSOR = 3
SAMPLES_PER_FILE = 256
HEADER_BYTES_MAX = 256 * 1024 * 1024
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


class WeightsError(ValueError):
    """There is nothing to take a fingerprint of; one line that names the remedy."""


def fingerprint(model: str | os.PathLike[str]) -> str:
    """32 hex digits for a model directory, or a single file. Raises WeightsError."""
    path = Path(model)
    files = [path] if path.is_file() else sorted(_weight_files(path))
    if not files:
        raise WeightsError(
            f"no weight files found in {path}: set weights_digest to any text that changes whenever the weights do"
        )
    state = hashlib.blake2b(digest_size=16, person=b"kvcast-weights")
    try:
        for file in files:
            state.update(f"{file.name} {file.stat().st_size}\n".encode())
            with open(file, "rb") as content:
                for sample in _samples(file, content):
                    state.update(sample)
    except (OSError, ValueError, struct.error) as error:
        raise WeightsError(f"cannot read the weights in {path}: {error}; set weights_digest instead") from error
    return state.hexdigest()


def _weight_files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix in WEIGHT_SUFFIXES and file.is_file()]
        # Where a model comes in several formats, engines prefer safetensors.
        safe = [file for file in files if file.suffix == ".safetensors"]
        yield from safe or files


def _samples(file: Path, content: BinaryIO) -> Iterator[bytes]:
    size_bytes = file.stat().st_size
    if file.suffix != ".safetensors":
        yield from _spread(content, 0, size_bytes, SAMPLES_PER_FILE)
        return
    (header_bytes,) = struct.unpack("<Q", content.read(8))
    if header_bytes > min(HEADER_BYTES_MAX, size_bytes):
        raise ValueError(f"{file.name} is no safetensors file")
    header = content.read(header_bytes)
    yield header
    base = 8 + header_bytes
    for name, tensor in sorted(json.loads(header).items()):
        if name != "__metadata__":
            start, end = tensor["data_offsets"]
            yield from _spread(content, base + start, base + end, SAMPLES_PER_TENSOR)


def _spread(content: BinaryIO, start: int, end: int, count: int) -> Iterator[bytes]:
    """Samples at the beginning, at the end, and evenly between."""
    room = max(0, end - start - SAMPLE_BYTES)
    places = sorted({start + room * at // max(1, count - 1) for at in range(count)})
    for place in places:
        content.seek(place)
        yield content.read(min(SAMPLE_BYTES, end - place))
