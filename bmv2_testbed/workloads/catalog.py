"""Where traces are found: KVCAST_TRACES, a checkout's ../shared/traces, else the small one carried along."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

import zstandard

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import REPOSITORY_ROOT
from bmv2_testbed.workloads.trace import TraceError, TraceRequest, parse_trace

CARRIED: Final = Path(__file__).resolve().parent.parent / "traces"
ENVIRONMENT_VARIABLE: Final = "KVCAST_TRACES"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and what to call it on a plot."""

    title: str
    path: Path
    synthetic: bool

    def requests(self) -> list[TraceRequest]:
        try:
            with _open_text(self.path) as lines:
                return parse_trace(lines)
        except (OSError, zstandard.ZstdError, TraceError) as error:
            raise TestbedError(f"trace {self.path}: {error}") from error


_KNOWN: Final = {
    "conversation": ("mooncake_conversation.jsonl.zst", "Mooncake conversation (real)", False),
    "rollout8": ("synthetic_rollout8.jsonl.zst", "rollout8 (agent sessions x 8 rollouts, reconstructed)", True),
}
_CARRIED: Final = {
    "conversation": ("chat_small.jsonl", "small chat trace (synthetic)", True),
    "rollout8": ("rollout_small.jsonl", "small rollout trace (synthetic)", True),
}


def find_trace(name: str) -> TraceFile:
    """The trace of that name from the best place that has it."""
    if name not in _KNOWN:
        raise TestbedError(f"no trace {name}: there are {', '.join(_KNOWN)}")
    file, title, synthetic = _KNOWN[name]
    for directory in _directories():
        if (directory / file).is_file():
            return TraceFile(title, directory / file, synthetic)
    file, title, synthetic = _CARRIED[name]
    return TraceFile(title, CARRIED / file, synthetic)


def _directories() -> Iterator[Path]:
    if given := os.environ.get(ENVIRONMENT_VARIABLE):
        if not Path(given).is_dir():
            raise TestbedError(f"{ENVIRONMENT_VARIABLE}={given} is not a directory")
        yield Path(given)
    yield REPOSITORY_ROOT.parent / "shared" / "traces"


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    with path.open("rb") as file:
        if path.suffix == ".zst":
            with zstandard.ZstdDecompressor().stream_reader(file) as plain:
                yield io.TextIOWrapper(plain, encoding="utf-8")
        else:
            yield io.TextIOWrapper(file, encoding="utf-8")
