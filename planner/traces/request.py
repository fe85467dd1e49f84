"""Request traces: parsing and dequantising. Deterministic: arrivals are spread by a seed.

Mooncake's format (FAST'25, `FAST25-release/traces`): one JSON object per line: `timestamp` in ms, `input_length` and
`output_length` in tokens, `hash_ids`: one id per block of 512 tokens, chained over the prefix (equal ids: equal prefix
up to there). Azure's (AzurePublicDataset, `AzureLLMInferenceTrace`): CSV of arrival and lengths, without prefixes.
"""

from __future__ import annotations

import csv
import json
import random
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite
from typing import Final

BLOCK_TOKENS: Final = 512
TICK_MS: Final = 3000
"""Mooncake's published traces have their timestamps rounded to this."""

_TICK_SLACK_MS: Final = 5
"""The published ones are off by up to 3."""


REQUEST_TOKENS_MAX: Final = 100_000_000
"""Of one request; the longest contexts of today's models take ten million."""
BLOCKS_MAX: Final = 1 << 20
BLOCKS_PER_REQUEST_MAX: Final = 64
"""Blocks of a trace of lengths, or so many a request where that is more: half a billion tokens, or 32,768 of each
request. A replay keeps 200 bytes of each block, so a short file must not stand for billions."""


class TraceError(ValueError):
    """A line is not a request; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: arrival in ms since the trace began, lengths in tokens, prefix-chained block ids."""

    arrival_ms: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def parse_trace(lines: Iterable[str]) -> list[TraceRequest]:
    """Parse a trace; requests in order of arrival. Raises TraceError on the first bad line."""
    requests = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            request = TraceRequest(
                arrival_ms=_milliseconds(float(fields["timestamp"])),
                input_tokens=_tokens(fields["input_length"]),
                output_tokens=_tokens(fields["output_length"]),
                blocks=tuple(int(block) for block in fields["hash_ids"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _not_a_request(number, error) from error
        requests.append(request)
    return sorted(requests, key=lambda request: request.arrival_ms)


def parse_lengths(lines: Iterable[str]) -> list[TraceRequest]:
    """Parse Azure's CSV (`TIMESTAMP,ContextTokens,GeneratedTokens`). Nothing is known of prefixes, so every block is a
    block of its own. Raises TraceError on the first bad line."""
    requests: list[TraceRequest] = []
    first: datetime | None = None
    fresh = 0
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            input_tokens, output_tokens = _tokens(row["ContextTokens"]), _tokens(row["GeneratedTokens"])
            first = first or at
            arrival_ms = (at - first).total_seconds() * 1000  # TypeError: only one of them names its time zone
        except (KeyError, TypeError, ValueError) as error:
            raise _not_a_request(number, error) from error
        blocks = range(fresh, fresh + -(-input_tokens // BLOCK_TOKENS))
        fresh = blocks.stop
        if fresh > max(BLOCKS_MAX, BLOCKS_PER_REQUEST_MAX * (len(requests) + 1)):
            raise TraceError(
                f"line {number}: {fresh * BLOCK_TOKENS:,} tokens of input so far, more than"
                f" {BLOCKS_MAX * BLOCK_TOKENS:,} in all or {BLOCKS_PER_REQUEST_MAX * BLOCK_TOKENS:,} a request:"
                " plan with a part of the trace"
            )
        requests.append(TraceRequest(arrival_ms, input_tokens, output_tokens, tuple(blocks)))
    return sorted(requests, key=lambda request: request.arrival_ms)


def _milliseconds(value: float) -> float:
    """A point in time, small enough that sums and products of times stay finite. Raises ValueError."""
    if not abs(value) < 1e15:
        raise ValueError(f"{value} is not a time in milliseconds")
    return value


def _tokens(value: object) -> int:
    """A number of tokens, also as text. Raises TypeError, ValueError."""
    if not isinstance(value, str | int | float):
        raise TypeError(f"{reprlib.repr(value)} is not a number of tokens")
    count = int(value) if not isinstance(value, float) or isfinite(value) else -1
    if not 0 <= count <= REQUEST_TOKENS_MAX:
        raise ValueError(f"{reprlib.repr(value)} tokens: a request has 0 to {REQUEST_TOKENS_MAX}")
    return count


def _not_a_request(line: int, error: Exception) -> TraceError:
    said = f"{type(error).__name__}: {error}"
    return TraceError(f"line {line} is not a request: {said if len(said) <= 200 else said[:200] + '...'}")


def is_quantised(requests: Sequence[TraceRequest]) -> bool:
    """Whether all arrivals sit on ticks of TICK_MS (within rounding)."""
    return len(requests) > 1 and all(
        min(request.arrival_ms % TICK_MS, -request.arrival_ms % TICK_MS) <= _TICK_SLACK_MS for request in requests
    )


def dequantise(requests: Sequence[TraceRequest], seed: int) -> list[TraceRequest]:
    """Spread the arrivals of each tick over the tick, at random but in order, as a Poisson process would have them.

    Without this, bursts of one tick would look like simultaneous readers that never were.
    """
    rng = random.Random(seed)
    ticks: dict[int, list[TraceRequest]] = {}
    for request in requests:
        ticks.setdefault(round(request.arrival_ms / TICK_MS), []).append(request)
    spread: list[TraceRequest] = []
    for tick, group in sorted(ticks.items()):
        offsets = sorted(rng.random() * TICK_MS for _ in group)
        spread += [
            replace(request, arrival_ms=tick * TICK_MS + offset) for request, offset in zip(group, offsets, strict=True)
        ]
    return spread
