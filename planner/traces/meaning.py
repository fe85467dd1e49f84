"""What a file's numbers mean: the unit of its times, the size of its blocks, which requests share a prefix. Pure.

Nobody writes units into traces, and a wrong guess gives a plan that looks right. So what is not known from the format
is worked out from the numbers, what contradicts them is refused, and what was found is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from planner.traces.records import BlockId, Record, Recorded, TimeUnit, TraceError
from planner.traces.request import BLOCK_TOKENS, TraceRequest

_EPOCHS: Final = {TimeUnit.S: 1.0, TimeUnit.MS: 1e3, TimeUnit.US: 1e6, TimeUnit.NS: 1e9}
_EPOCH_S: Final = (9e8, 5e9)
"""1998 to 2128: a first time between these, in one of the units, is a date since 1970. As offset in the next coarser
unit it would be a trace that begins after more than ten days."""
_UNIT_TRIED_FROM: Final = 10
"""Requests; the mean gap between fewer says nothing."""
_GAP_MS_MIN: Final = 5.0
_GAP_OF_FRACTIONS_MS_MIN: Final = 50.0
"""Between two requests, on average. Fractions are rare in milliseconds and the rule in seconds."""
_GAP_MS_MAX: Final = 60_000.0
_SIZES: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Of blocks, in tokens: what engines and traces have."""
_FITTING: Final = 0.99
"""Share of the lines whose hashes must agree with their lengths. Published traces have a line in a thousand that does
not."""
FRESH_BLOCKS_MAX: Final = 1 << 20
FRESH_BLOCKS_PER_REQUEST_MAX: Final = 64
"""Of a trace without hashes: half a billion tokens, or 32,768 of each request where that is more. A replay keeps 200
bytes of each block, and a short line may stand for 100 million tokens."""
_ID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was understood, and as what."""

    requests: list[TraceRequest]
    form: str
    unit: TimeUnit
    block_tokens: int | None
    """Of the file's blocks; None: it names none, and no two requests are known to share anything."""
    odd: int = 0
    """Lines whose hashes do not agree with their lengths."""

    def said(self) -> str:
        """What was read, in one line."""
        span_s = (self.requests[-1].arrival_ms - self.requests[0].arrival_ms) / 1000 if self.requests else 0.0
        said = f"{len(self.requests):,} requests over {span_s:,.0f} s, read as {self.form}, times in {self.unit.value}"
        if self.block_tokens is None:
            return f"{said}, no hashes: nothing is known of what requests share"
        odd = f" ({self.odd:,} lines have more or fewer hashes than their tokens need)" if self.odd else ""
        return f"{said}, blocks of {self.block_tokens} tokens{odd}"


def understood(recorded: Recorded, unit: TimeUnit | None, block_tokens: int | None) -> Trace:
    """What a file says, in the planner's terms; requests in order of arrival. `unit` and `block_tokens` are what the
    user knows better. Raises TraceError for what contradicts itself."""
    records = recorded.records
    unit = unit or recorded.unit or _unit_of([one.time for one in records])
    times = [one.time * unit.ms for one in records]
    if any(abs(time) > 1e16 for time in times):
        raise TraceError(f"times up to {max(times, key=abs):g} ms: they are not in {unit.value}")
    if not records or records[0].blocks is None:
        blocks, size, odd = _fresh(records), None, 0
    else:
        size, odd = _block_size(records, block_tokens, recorded.block_tokens)
        blocks = _chunks(records, size)
    requests = [
        TraceRequest(time, one.input_tokens, one.output_tokens, chunks)
        for one, time, chunks in zip(records, times, blocks, strict=True)
    ]
    return Trace(sorted(requests, key=lambda one: one.arrival_ms), recorded.form, unit, size, odd)


# Times


def _unit_of(times: Sequence[float]) -> TimeUnit:
    """The unit of times whose format calls them milliseconds and whose writers often do not. Raises TraceError."""
    if not times:
        return TimeUnit.MS
    first = min(times)
    for unit, a_second in _EPOCHS.items():
        if _EPOCH_S[0] <= first / a_second <= _EPOCH_S[1]:
            return unit
    if len(times) < _UNIT_TRIED_FROM:
        return TimeUnit.MS
    span = max(times) - first
    gap = span / (len(times) - 1)
    fractions = any(not time.is_integer() for time in times)
    if 0 < gap < (_GAP_OF_FRACTIONS_MS_MIN if fractions else _GAP_MS_MIN):
        raise TraceError(
            f"in milliseconds, {len(times):,} requests come in {span / 1000:,.3g} s: with seconds say --time-unit s,"
            " else --time-unit ms"
        )
    if gap > _GAP_MS_MAX:
        raise TraceError(
            f"in milliseconds, a request comes every {gap / 1000:,.0f} s: with microseconds or nanoseconds say"
            " --time-unit us or ns, else --time-unit ms"
        )
    return TimeUnit.MS


# Blocks


def _block_size(records: Sequence[Record], given: int | None, usual: int) -> tuple[int, int]:
    """(tokens of a block, lines that do not agree). Raises TraceError where too many lines do not."""
    sizes = (given,) if given else (usual, *_SIZES)
    size = max(sizes, key=lambda size: sum(_fits(one, size) for one in records))
    if all(_fits(one, usual) for one in records) and not given:
        size = usual
    misfits = [one for one in records if not _fits(one, size)]
    if len(misfits) > (1 - _FITTING) * len(records):
        bad = misfits[0]
        what = f"blocks of {given} tokens" if given else "blocks of any size from 16 to 4096 tokens"
        raise TraceError(
            f"line {bad.line} has {len(bad.blocks or ())} hashes for {bad.input_tokens} tokens, and"
            f" {len(misfits):,} of {len(records):,} lines do not agree with {what}: say --block-tokens"
        )
    if max(size, BLOCK_TOKENS) % min(size, BLOCK_TOKENS):
        raise TraceError(f"blocks of {size} tokens do not fill chunks of {BLOCK_TOKENS}")
    return size, len(misfits)


def _fits(one: Record, size: int) -> bool:
    """Whether a line has one hash a block, be it for the last, short block too or not."""
    return one.input_tokens // size <= len(one.blocks or ()) <= -(-one.input_tokens // size)


def _fresh(records: Sequence[Record]) -> list[tuple[int, ...]]:
    """Chunks of requests that share nothing. Raises TraceError for too many."""
    chunks, begin = [], 0
    for count, one in enumerate(records, 1):
        end = begin - (-one.input_tokens // BLOCK_TOKENS)
        if end > max(FRESH_BLOCKS_MAX, FRESH_BLOCKS_PER_REQUEST_MAX * count):
            raise TraceError(
                f"line {one.line}: {end * BLOCK_TOKENS:,} tokens of input so far, more than"
                f" {FRESH_BLOCKS_MAX * BLOCK_TOKENS:,} in all or {FRESH_BLOCKS_PER_REQUEST_MAX * BLOCK_TOKENS:,} a"
                " request: plan with a part of the trace"
            )
        chunks.append(tuple(range(begin, end)))
        begin = end
    return chunks


def _chunks(records: Sequence[Record], size: int) -> list[tuple[int, ...]]:
    """Each request's blocks as chunks of BLOCK_TOKENS, with a number for each prefix."""
    if size == BLOCK_TOKENS and _chained(records):
        return [tuple(block for block in one.blocks or () if isinstance(block, int)) for one in records]
    numbers: dict[tuple[int, tuple[BlockId, ...], int], int] = {}
    chunks = []
    for one in records:
        ids, chain, parent = one.blocks or (), [], -1
        for group, part in _groups(ids, size, -(-one.input_tokens // BLOCK_TOKENS)):
            parent = numbers.setdefault((parent, group, part), len(numbers))
            chain.append(parent)
        chunks.append(tuple(chain))
    return chunks


def _groups(ids: tuple[BlockId, ...], size: int, chunks: int) -> list[tuple[tuple[BlockId, ...], int]]:
    """(blocks, part of them) that make up each chunk: several small blocks, or a part of a large one."""
    if size <= BLOCK_TOKENS:
        each = BLOCK_TOKENS // size
        return [(ids[at : at + each], 0) for at in range(0, len(ids), each)]
    parts = size // BLOCK_TOKENS
    return [(ids[at : at + 1], part) for at in range(len(ids)) for part in range(parts)][:chunks]


def _chained(records: Sequence[Record]) -> bool:
    """Whether each id stands for a whole prefix and can be a chunk's number as it is."""
    before: dict[BlockId, BlockId] = {}
    for one in records:
        previous: BlockId = -1
        for block in one.blocks or ():
            if (
                not isinstance(block, int)
                or not 0 <= block <= _ID_MAX
                or before.setdefault(block, previous) != previous
            ):
                return False
            previous = block
    return True
