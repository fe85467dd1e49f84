"""Where traces are found: KVCAST_TRACES, a checkout's ../shared/traces, else a small one carried along."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from planner.traces.files import FORMATS, read_trace
from planner.traces.in_the_wild import BUSINESSES, CONSUMERS, WILD
from planner.traces.meaning import Trace
from planner.traces.records import TimeUnit, TraceError
from planner.traces.request import BLOCK_TOKENS, dequantise, is_quantised

CARRIED: Final = Path(__file__).resolve().parent / "small"
CHECKOUT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENT_VARIABLE: Final = "KVCAST_TRACES"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and what to call it on a plot."""

    title: str
    path: Path
    synthetic: bool


_KNOWN: Final = {
    "conversation": ("mooncake_conversation.jsonl.zst", "Mooncake conversation (real)", False),
    "toolmix": ("synthetic_toolmix.jsonl.zst", "toolmix (Mooncake's tool and agent mix, reconstructed)", True),
    "tenant": ("synthetic_tenant.jsonl.zst", "tenant (bursty API tenants, synthetic)", True),
    "rollout8": ("synthetic_rollout8.jsonl.zst", "rollout8 (agent sessions x 8 rollouts, reconstructed)", True),
    "mooncake_synthetic": ("mooncake_synthetic.jsonl.zst", "Mooncake synthetic (by its authors)", True),
    "azure": ("azure2023.tar.zst", "Azure 2023, code (real arrivals and lengths, no prefixes)", False),
}
_CARRIED: Final = {
    "conversation": ("chat_small.jsonl", "small chat trace (synthetic)", True),
    "rollout8": ("rollout_small.jsonl", "small rollout trace (synthetic)", True),
}
_GENERATED: Final = {
    CONSUMERS: "chats with the published statistics of KVCache in the Wild's trace A (generated)",
    BUSINESSES: "API calls with the published statistics of KVCache in the Wild's trace B (generated)",
}
NAMES: Final = (*_KNOWN, *_GENERATED)


def find_trace(name: str) -> TraceFile:
    """The trace of that name from the best place that has it. Raises TraceError."""
    if name not in _KNOWN:
        raise TraceError(f"no trace {name}: there are {', '.join(NAMES)}, or a file that ends in {', '.join(FORMATS)}")
    file, title, synthetic = _KNOWN[name]
    for directory in _directories():
        if (directory / file).is_file():
            return TraceFile(title, directory / file, synthetic)
    if name not in _CARRIED:
        raise TraceError(f"no {file} here: set {ENVIRONMENT_VARIABLE} to the directory that has it")
    file, title, synthetic = _CARRIED[name]
    return TraceFile(title, CARRIED / file, synthetic)


def open_trace(
    given: str, seed: int, unit: TimeUnit | None = None, block_tokens: int | None = None
) -> tuple[str, Trace]:
    """What to call a trace given by name or as a file, and the trace; `seed` spreads arrivals within the ticks of a
    quantised one, or draws one that is generated; `unit` and `block_tokens` are what the user knows of the file. Raises
    TraceError."""
    if given in _GENERATED:
        return _GENERATED[given], Trace(WILD[given](seed), "generated requests", TimeUnit.MS, BLOCK_TOKENS)
    if given in NAMES or not given.endswith(FORMATS):
        found = find_trace(given)
        title, path = found.title, found.path
    else:
        title, path = Path(given).name, Path(given)
    trace = read_trace(path, None, unit, block_tokens)
    if is_quantised(trace.requests):
        trace = replace(trace, requests=dequantise(trace.requests, seed))
    return title, trace


def _directories() -> Iterator[Path]:
    if given := os.environ.get(ENVIRONMENT_VARIABLE):
        if not Path(given).is_dir():
            raise TraceError(f"{ENVIRONMENT_VARIABLE}={given} is not a directory")
        yield Path(given)
    yield CHECKOUT.parent / "shared" / "traces"
