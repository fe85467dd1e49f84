"""The digest of a model's weights: SHA-256 over every byte of every weight file that the engine read.

Two models that differ in one value must never share KV, so the digest covers all bytes. Three things keep that cheap:

* A file in a Hugging Face hub cache is a link to a blob whose name is its SHA-256 (huggingface_hub, "Understand
  caching"). That name is used, and the file is not read.
* A digest, once computed, is kept in the user's cache folder, under the file's path, inode, size and times.
* `WeightsDigest` reads in a thread of its own, while the engine loads the same files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
ADAPTER_SUFFIXES: Final = (*WEIGHT_SUFFIXES, ".json")
"""An adapter's configuration scales its weights, so it counts like them."""
READERS_MAX: Final = 4
"""Files read at the same time; hashing leaves the interpreter's lock."""
KEPT_FILES_MAX: Final = 4096
"""Digests in the cache file; beyond that it begins again."""
VERSION_CHARACTERS_MAX: Final = 256
_PIECE_BYTES: Final = 8 * 1024 * 1024
_SHA256_DIGITS: Final = 64

Signature = tuple[tuple[str, int, int, int, int], ...]
"""Name, inode, size, times of modification and change (ns) of each file: differ when one was written."""


class WeightsError(ValueError):
    """No digest can be had; one line that names the remedy."""


def digest_of(model: str | os.PathLike[str], suffixes: tuple[str, ...] = WEIGHT_SUFFIXES) -> str:
    """64 hex digits for the weights in a folder, or of a single file. Reads all of them. Raises WeightsError."""
    return digest_of_files(_files(model, suffixes))


def digest_of_files(files: Sequence[Path]) -> str:
    """64 hex digits for files, by their names and all their bytes, in the order given. Raises WeightsError."""
    kept = _KeptDigests()
    try:
        with ThreadPoolExecutor(READERS_MAX, thread_name_prefix="kvcast-weights") as readers:
            digests = list(readers.map(kept.digest_of, files))
    except OSError as error:
        raise WeightsError(f"cannot read the weights: {error}; set weights_digest instead") from error
    kept.save()
    state = hashlib.sha256()
    for file, digest in zip(files, digests, strict=True):
        state.update(f"{file.name} {digest}\n".encode())
    return state.hexdigest()


def files_read(folder: str | os.PathLike[str], patterns: Sequence[str]) -> list[Path]:
    """The files of a folder that the first pattern with any matches, as engines choose what they load. Raises
    WeightsError for none."""
    for pattern in patterns:
        if files := sorted(file for file in Path(folder).glob(pattern) if file.is_file()):
            return files
    raise WeightsError(
        f"no weight files {' or '.join(patterns)} found in {folder}: set weights_digest to any text that changes "
        "whenever the weights do"
    )


def version_in(path: str) -> str:
    """The caller's own name of the weights, in a file (`weights_version_file`); empty: no file, none in it, or one
    that is too long: names that differ beyond its end would be one."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(VERSION_CHARACTERS_MAX + 1)
    except (OSError, UnicodeDecodeError):
        return ""
    return text.strip() if len(text) <= VERSION_CHARACTERS_MAX else ""


def signature_of(model: str | os.PathLike[str], suffixes: tuple[str, ...] = WEIGHT_SUFFIXES) -> Signature:
    """What shows without reading whether `digest_of` may have another answer by now. Raises WeightsError."""
    try:
        found = [(file.name, file.stat()) for file in _files(model, suffixes)]
    except OSError as error:
        raise WeightsError(f"cannot read the weights in {model}: {error}; set weights_digest instead") from error
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in found)


class WeightsDigest:
    """A digest that is being computed in the background."""

    def __init__(self, compute: Callable[[], str]) -> None:
        """`compute` may raise WeightsError, which `get` then raises."""
        self._compute = compute
        self._digest: str | None = None
        self._error: WeightsError | None = None
        self._thread = threading.Thread(target=self._run, name="kvcast-weights", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._digest = self._compute()
        except WeightsError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - it is raised by `get`, on the thread that can tell it
            self._error = WeightsError(
                f"cannot compute the digest of the weights: {error!r}; set weights_digest instead"
            )

    def get(self, wait_s: float = 0.0) -> str | None:
        """The digest, after waiting at most `wait_s`; None: it is not known yet. Raises WeightsError."""
        if self._digest is None and self._error is None and wait_s > 0:
            self._thread.join(wait_s)
        if self._error is not None:
            raise self._error
        return self._digest


def _files(model: str | os.PathLike[str], suffixes: tuple[str, ...]) -> list[Path]:
    path = Path(model)
    files = [path] if path.is_file() else sorted(_weight_files(path, suffixes))
    if not any(file.suffix in WEIGHT_SUFFIXES for file in files):
        raise WeightsError(
            f"no weight files found in {path}: set weights_digest to any text that changes whenever the weights do"
        )
    return files


def _weight_files(path: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix in suffixes and file.is_file()]
        # Where a model comes in several formats, engines prefer safetensors.
        safe = any(file.suffix == ".safetensors" for file in files)
        others = set(WEIGHT_SUFFIXES) - {".safetensors"}
        yield from (file for file in files if not (safe and file.suffix in others))


class _KeptDigests:
    """SHA-256 of files, as computed before: a JSON object in the user's cache folder. Without one it keeps nothing."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self._path = Path(base, "kvcast", "weights.json")
        self._new = False
        try:
            with self._path.open() as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():  # of a folder that others write to, too
                    raise PermissionError
                kept = json.load(file)
        except (OSError, ValueError):
            kept = {}
        self._kept: dict[str, str] = kept if isinstance(kept, dict) and len(kept) < KEPT_FILES_MAX else {}

    def digest_of(self, file: Path) -> str:
        """Of one file's content. Raises OSError."""
        blob = _hub_blob(file)
        if blob is not None:
            return blob
        place = _place(file)
        digest = self._kept.get(place)
        if digest is None:
            digest = sha256_of(file)
            if _place(file) != place:
                raise OSError(f"{file} changed while it was read")
            self._kept[place] = digest
            self._new = True
        return digest

    def save(self) -> None:
        """Keep what is new. A cache that cannot be written costs reading again, nothing else."""
        if not self._new:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            written = self._path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
            written.write_text(json.dumps(self._kept))
            written.replace(self._path)


def _hub_blob(file: Path) -> str | None:
    """The SHA-256 by which a hub's cache names the blob behind a file; None: no such blob, or a small file's."""
    if not file.is_symlink():
        return None
    blob = Path(os.readlink(file))
    if blob.parent.name != "blobs" or len(blob.name) != _SHA256_DIGITS or set(blob.name) - set("0123456789abcdef"):
        return None
    return blob.name


def _place(file: Path) -> str:
    stat = file.stat()
    return f"{file.resolve()}:{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def sha256_of(file: Path) -> str:
    """The file's digest in hexadecimal digits. Raises OSError."""
    state = hashlib.sha256()
    with open(file, "rb", buffering=0) as content:
        while piece := content.read(_PIECE_BYTES):
            state.update(piece)
    return state.hexdigest()
