"""What a trace's lines say, in the file's own units: JSON objects, and rows of CSV. Nothing is interpreted here.

The formats, as their authors describe them (the reference page on trace files has a table): Mooncake, which AIPerf and
GuideLLM read too, and Alibaba's Bailian as JSON lines; Azure and BurstGPT as CSV.
"""

from __future__ import annotations

import csv
import json
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeAlias

REQUEST_TOKENS_MAX: Final = 100_000_000
"""Of one request; the longest contexts of today's models take ten million."""
REQUESTS_MAX: Final = 1_000_000
BLOCKS_MAX: Final = 10_000_000
"""Of all requests together. A small compressed file can hold any number of either."""

BlockId: TypeAlias = int | str


class TraceError(ValueError):
    """A trace cannot be read as what it says it is; the message names the line, where one is to blame."""


class TimeUnit(Enum):
    """Of timestamps. The values are what people write."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"

    @property
    def ms(self) -> float:
        return {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}[self.value]


@dataclass(frozen=True, slots=True)
class Record:
    """One request as its line has it. `blocks` is None where the format or the line names none."""

    line: int
    time: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[BlockId, ...] | None = None


@dataclass(slots=True)
class Recorded:
    """A whole file as it says it. `unit` is None where the format leaves the unit of its timestamps open."""

    form: str
    unit: TimeUnit | None
    block_tokens: int
    """What the format's authors put into a block."""
    records: list[Record] = field(default_factory=list)
    blocks: int = 0

    def add(self, record: Record) -> None:
        """Raises TraceError beyond what can be replayed."""
        self.blocks += -(-record.input_tokens // 512) if record.blocks is None else len(record.blocks)
        if len(self.records) >= REQUESTS_MAX or self.blocks > BLOCKS_MAX:
            raise TraceError(
                f"more than {REQUESTS_MAX:,} requests or {BLOCKS_MAX:,} blocks at line {record.line}: plan a part of it"
            )
        self.records.append(record)


# JSON lines

_FIELDS: Final = ("timestamp", "input_length", "output_length")
_TEXTS: Final = ("text_input", "messages", "payload", "prompt")


def json_records(lines: Iterable[str]) -> Recorded:
    """Read Mooncake's or Bailian's JSON lines. Raises TraceError on the first bad line."""
    found: Recorded | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            _check_fields(fields)
            if found is None:
                found = _json_form(fields)
            record = _json_record(number, fields)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            if not line.endswith("\n"):
                raise TraceError(f"ends in the middle of line {number}: is the file complete?") from error
            raise _not_a_request(number, error) from error
        found.add(record)
    found = found or Recorded("JSON lines", TimeUnit.MS, 512)
    _check_blocks_are_all_or_none(found)
    return found


def _check_fields(fields: Any) -> None:
    if not isinstance(fields, dict):
        raise TypeError("it is no JSON object")
    missing = [name for name in _FIELDS if name not in fields]
    if not missing:
        return
    if any(name in fields for name in _TEXTS):
        raise ValueError(f"it has texts and no {', '.join(missing)}: count their tokens first")
    raise ValueError(f"no {', '.join(missing)} among its fields {reprlib.repr(list(fields))}")


def _json_form(fields: dict[str, Any]) -> Recorded:
    if "chat_id" in fields and "parent_chat_id" in fields:
        return Recorded("Bailian's JSON lines", TimeUnit.S, 16)
    return Recorded("JSON lines as Mooncake's", None, 512)


def _json_record(number: int, fields: dict[str, Any]) -> Record:
    blocks = fields.get("hash_ids")
    if blocks is not None and not isinstance(blocks, list):
        raise TypeError("hash_ids is not a list")
    return Record(
        number,
        _time(fields["timestamp"]),
        _tokens(fields["input_length"]),
        _tokens(fields["output_length"]),
        None if blocks is None else tuple(_block(one) for one in blocks),
    )


def _block(value: object) -> BlockId:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{reprlib.repr(value)} in hash_ids is no whole number and no text")
    return value


def _check_blocks_are_all_or_none(found: Recorded) -> None:
    without = next((one.line for one in found.records if one.blocks is None), None)
    if without is not None and any(one.blocks is not None for one in found.records):
        raise TraceError(f"line {without} has no hash_ids and others have: with some it says nothing about sharing")


# Rows of CSV


@dataclass(frozen=True, slots=True)
class _Table:
    """A format in CSV: its columns by their headers."""

    form: str
    time: str
    input_tokens: str
    output_tokens: str
    unit: TimeUnit | None
    """None: times are dates."""

    @property
    def headers(self) -> tuple[str, str, str]:
        return self.time, self.input_tokens, self.output_tokens


_TABLES: Final = (
    _Table("Azure's CSV", "TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    _Table("BurstGPT's CSV", "Timestamp", "Request tokens", "Response tokens", TimeUnit.S),
)


def csv_records(lines: Iterable[str]) -> Recorded:
    """Read Azure's or BurstGPT's CSV; neither says anything of prefixes. Raises TraceError on the first bad line."""
    rows = csv.DictReader(lines)
    table = _table(rows.fieldnames)
    found = Recorded(table.form, table.unit or TimeUnit.MS, 512)
    for record in _rows(rows, table):
        found.add(record)
    return found


def _table(headers: Iterable[str] | None) -> _Table:
    """Raises TraceError for headers of no format that is known."""
    have = list(headers or ())
    for table in _TABLES:
        if all(name in have for name in table.headers):
            return table
    known = "; ".join(f"{','.join(table.headers)} ({table.form})" for table in _TABLES)
    raise TraceError(f"its first line has the columns {reprlib.repr(have)}; known are {known}")


def _rows(rows: csv.DictReader[str], table: _Table) -> Iterator[Record]:
    first: datetime | None = None
    for row in rows:
        number = rows.line_num
        try:
            short = [name for name in table.headers if row[name] is None]
            if short:
                raise ValueError(f"no {', '.join(short)}")
            if table.unit is not None:
                time = _time(row[table.time])
            else:
                at = _date(row[table.time], first)
                first = first or at
                time = (at - first).total_seconds() * 1000
            record = Record(number, time, _tokens(row[table.input_tokens]), _tokens(row[table.output_tokens]))
        except (TypeError, ValueError, OverflowError) as error:
            raise _not_a_request(number, error) from error
        yield record


def _date(text: str, first: datetime | None) -> datetime:
    """A date and time, with or without fraction and time zone. Raises ValueError, also where the others name no zone
    and this does, or the other way round: they would be hours apart."""
    at = datetime.fromisoformat(text.strip())
    if first is not None and (at.tzinfo is None) != (first.tzinfo is None):
        raise ValueError(f"{text!r} {'names no' if at.tzinfo is None else 'names a'} time zone, unlike the rows before")
    return at.astimezone(UTC) if at.tzinfo is not None else at


# Values


def _time(value: object) -> float:
    """A point in time, small enough that sums and products of times stay finite. Raises TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{reprlib.repr(value)} is not a time")
    time = float(value)
    if not abs(time) < 1e19:
        raise ValueError(f"{reprlib.repr(value)} is not a time")
    return time


def _tokens(value: object) -> int:
    """A number of tokens, also as text. Raises TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{reprlib.repr(value)} is not a number of tokens")
    count = int(value) if not isinstance(value, float) or isfinite(value) else -1
    if not 0 <= count <= REQUEST_TOKENS_MAX:
        raise ValueError(f"{reprlib.repr(value)} tokens: a request has 0 to {REQUEST_TOKENS_MAX}")
    return count


def _not_a_request(line: int, error: Exception) -> TraceError:
    said = str(error)
    if isinstance(error, RecursionError | OverflowError):
        said = "it is nested too deeply" if isinstance(error, RecursionError) else "a number is beyond all measure"
    return TraceError(f"line {line} is not a request: {said if len(said) <= 200 else said[:200] + '...'}")
