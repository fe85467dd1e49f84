"""What a controller may send as `p4_device_config`: P4 source, the path of one, or an envelope with files. Pure.

* P4 source text, self-contained but for core.p4 and the architecture's include;
* one line: a path on the switch's machine (`/srv/program.p4` or `file:/srv/program.p4`);
* a JSON object: `{"main": "a.p4", "files": {"a.p4": "...", "b.p4": "..."}, "defines": {"SIZE": "64"}}`, or
  `{"path": "/srv/program.p4", "defines": {...}, "include_dirs": ["/srv/include"]}`; with `"architecture": "tna"` only a
  program for that one is taken;
* one of these as `device_data` of a p4.tmp.P4DeviceConfig, in which controllers of bmv2 wrap their JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from p4switch.arch import ARCHITECTURES
from p4switch.server.target import ConfigError

ARCHITECTURE_NAMES = tuple(a.name for a in ARCHITECTURES.values())
"""What programs may be written for."""


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """A program to compile: `path` on this machine, or `main` among `files` (relative names, contents)."""

    path: Path | None = None
    main: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    defines: Mapping[str, str] = field(default_factory=dict)
    include_dirs: tuple[Path, ...] = ()
    architecture: str | None = None
    """What it must be written for; None: whatever it is."""

    def envelope(self) -> bytes:
        """The device configuration that means this program."""
        named: dict[str, Any] = (
            {"path": str(self.path)} if self.path else {"main": self.main, "files": dict(self.files)}
        )
        named |= {"defines": dict(self.defines), "include_dirs": [str(d) for d in self.include_dirs]}
        named["architecture"] = self.architecture
        return json.dumps({k: v for k, v in named.items() if v}).encode()


def parse_device_config(device_config: bytes) -> ProgramSource:
    """What to compile. Raises ConfigError with the remedy."""
    if device_config[:1] in _FIRST_OF_P4DEVICECONFIG:
        device_config = _device_data(device_config)
    if not device_config.strip():
        raise ConfigError("p4_device_config is empty: send P4 source, the path of a P4 file, or a JSON envelope")
    try:
        text = device_config.decode()
    except UnicodeDecodeError:
        raise ConfigError(
            "p4_device_config is binary: send P4 source, the path of a P4 file, or a JSON envelope"
        ) from None
    if text.lstrip().startswith("{"):
        return _parse_envelope(text)
    line = text.strip()
    if "\n" not in line and not any(c in line for c in ";{#"):
        return ProgramSource(path=Path(line.removeprefix("file:")))
    return ProgramSource(main="program.p4", files={"program.p4": text})


_REASSIGN, _EXTRAS, _DEVICE_DATA = b"\x08", b"\x12", b"\x1a"
_FIRST_OF_P4DEVICECONFIG = (_REASSIGN, _EXTRAS, _DEVICE_DATA)
"""Keys of the fields of p4.tmp.P4DeviceConfig in protobuf's wire format: a bool, a message and bytes. No text begins
with such a character."""


def _device_data(message: bytes) -> bytes:
    """The field device_data of a P4DeviceConfig. Raises ConfigError."""
    found = b""
    at = 0
    while at < len(message):
        key = message[at : at + 1]
        number, at = _varint(message, at + 1)
        if key == _REASSIGN:
            continue
        if key not in _FIRST_OF_P4DEVICECONFIG or at + number > len(message):
            raise ConfigError("p4_device_config is binary, and no P4DeviceConfig")
        if key == _DEVICE_DATA:
            found = message[at : at + number]
        at += number
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, seven bits a byte, and the place behind it."""
    number = 0
    for shift in range(0, 64, 7):
        byte = message[at] if at < len(message) else 0
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
    return number, at


def _parse_envelope(text: str) -> ProgramSource:
    try:
        envelope = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"p4_device_config is no JSON: {error}") from error
    if "pipelines" in envelope and "parsers" in envelope:
        raise ConfigError(
            "p4_device_config is p4c's output for bmv2; this switch compiles the P4 source itself: send that"
        )
    unknown = set(envelope) - {"path", "main", "files", "defines", "include_dirs", "architecture"}
    if unknown:
        known = "path, main, files, defines, include_dirs, architecture"
        raise ConfigError(f"p4_device_config: unknown key {min(unknown)!r}: known are {known}")
    architecture = envelope.get("architecture")
    if architecture not in (None, *ARCHITECTURE_NAMES):
        raise ConfigError(f"p4_device_config: architecture must be one of {', '.join(ARCHITECTURE_NAMES)}")
    defines = _strings(envelope.get("defines", {}), "defines")
    include_dirs = envelope.get("include_dirs", [])
    if not isinstance(include_dirs, list) or not all(isinstance(d, str) for d in include_dirs):
        raise ConfigError("p4_device_config: include_dirs must be a list of paths")
    dirs = tuple(Path(d) for d in include_dirs)
    if "path" in envelope:
        if not isinstance(envelope["path"], str):
            raise ConfigError("p4_device_config: path must be a string")
        return ProgramSource(path=Path(envelope["path"]), defines=defines, include_dirs=dirs, architecture=architecture)
    files = _strings(envelope.get("files", {}), "files")
    main = envelope.get("main", next(iter(files)) if len(files) == 1 else None)
    if not isinstance(main, str) or main not in files:
        raise ConfigError("p4_device_config: main must name one of files")
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or not name:
            raise ConfigError(f"p4_device_config: file name {name!r} must be relative, without '..'")
    return ProgramSource(main=main, files=files, defines=defines, include_dirs=dirs, architecture=architecture)


def _strings(value: object, what: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ConfigError(f"p4_device_config: {what} must map names to strings")
    return value
