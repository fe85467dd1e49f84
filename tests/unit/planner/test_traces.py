"""Trace files: formats, units, blocks, ends of files, quantised time, where they are found."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from planner.traces import (
    TICK_MS,
    TimeUnit,
    Trace,
    TraceError,
    TraceRequest,
    catalog,
    csv_records,
    dequantise,
    is_quantised,
    json_records,
    open_trace,
    read_trace,
    records,
    understood,
)
from planner.traces.meaning import FRESH_BLOCKS_MAX, FRESH_BLOCKS_PER_REQUEST_MAX
from planner.traces.records import REQUEST_TOKENS_MAX

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,1025,10
2023-11-16 18:17:04.2299600,512,8
"""


def _request(arrival_s: float, *blocks: int) -> TraceRequest:
    return TraceRequest(arrival_s * 1000, len(blocks) * 512, 1, blocks)


def _lines(count: int, gap: float, size: int = 512, **fields: Any) -> list[str]:
    """Requests `gap` apart, of eight chunks of 512 tokens and a bit; the first four chunks are everybody's."""
    lines = []
    for at in range(count):
        tokens = 8 * 512 + 7
        shared, own = 4 * 512 // size, -(-tokens // size)
        blocks = [*range(shared), *range(10_000 * (at + 1), 10_000 * (at + 1) + own - shared)]
        line = {"timestamp": at * gap, "input_length": tokens, "output_length": 9, "hash_ids": blocks} | fields
        lines.append(json.dumps({name: value for name, value in line.items() if value is not None}) + "\n")
    return lines


def _json(lines: Iterable[str], unit: TimeUnit | None = None, block_tokens: int | None = None) -> Trace:
    return understood(json_records(lines), unit, block_tokens)


def _csv(text: str) -> Trace:
    return understood(csv_records(text.splitlines(keepends=True)), None, None)


# Lines


def test_requests_are_sorted_by_arrival() -> None:
    lines = [json.dumps({"timestamp": t, "input_length": 5, "output_length": 1, "hash_ids": [t]}) for t in (3000, 0)]
    assert [request.arrival_ms for request in _json([*lines, "\n"]).requests] == [0, 3000]


def _line(timestamp: str = "1", input_length: str = "1", hash_ids: str = "[]") -> str:
    return f'{{"timestamp":{timestamp},"input_length":{input_length},"output_length":1,"hash_ids":{hash_ids}}}\n'


@pytest.mark.parametrize(
    "line",
    [
        "{\n",
        "[]\n",
        '{"timestamp": 1}\n',
        _line(hash_ids="3"),
        _line(hash_ids="[1e999]"),
        _line(hash_ids="[1.5]"),
        _line(hash_ids="[true]"),
        _line(timestamp="1e999"),
        _line(timestamp="NaN"),
        _line(timestamp="null"),
        _line(timestamp="9" * 400),
        _line(input_length="1e999"),
        _line(input_length="NaN"),
        _line(input_length="-1"),
        _line(input_length="9" * 400),
        _line(input_length="9" * 5000),
        _line(input_length="null"),
        "[" * 100_000 + "\n",
    ],
)
def test_a_bad_line_is_named_and_not_repeated(line: str) -> None:
    with pytest.raises(TraceError, match="line 1 is not a request: ") as caught:
        json_records([line])
    assert len(str(caught.value)) < 300
    assert "Error" not in str(caught.value)


def test_what_a_line_lacks_is_said() -> None:
    with pytest.raises(TraceError, match=r"line 1 .*: no timestamp, input_length among its fields \['time', 'out"):
        json_records(['{"time": 1, "output_length": 3}\n'])
    with pytest.raises(TraceError, match=r"line 1 .*: it has texts and no input_length: count their tokens first"):
        json_records(['{"timestamp": 1, "text_input": "hello", "output_length": 3}\n'])
    with pytest.raises(TraceError, match="line 2 has no hash_ids and others have"):
        json_records([*_lines(1, 1), *_lines(1, 1, hash_ids=None)])


def test_more_than_can_be_replayed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("REQUESTS_MAX", 4), ("BLOCKS_MAX", 40)):
        with monkeypatch.context() as limits:
            limits.setattr(records, name, most)
            assert len(json_records(_lines(4, 1)).records) == 4
            with pytest.raises(TraceError, match="at line 5: plan a part of it"):
                json_records(_lines(5, 1))


# Units


@pytest.mark.parametrize(
    ("unit", "begin"),
    [(TimeUnit.S, 1.753e9), (TimeUnit.MS, 1.753e12), (TimeUnit.US, 1.753e15), (TimeUnit.NS, 1.753e18)],
)
def test_dates_since_1970_tell_their_unit(unit: TimeUnit, begin: float) -> None:
    lines = [_lines(1, 0, timestamp=str(int(begin + at / unit.ms * 1000)))[0] for at in range(3)]
    trace = _json(lines)
    assert trace.unit is unit
    first, *rest = (request.arrival_ms for request in trace.requests)
    assert [round(one - first) for one in rest] == [1000, 2000]


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (0.5, "in milliseconds, 40 requests come in 0.0195 s: with seconds say --time-unit s, else --time-unit ms"),
        (2, "in milliseconds, 40 requests come in 0.078 s: with seconds"),
        (10.25, "in milliseconds, 40 requests come in 0.4 s: with seconds"),
        (300_000, "a request comes every 300 s: with microseconds or nanoseconds say --time-unit us or ns"),
    ],
)
def test_times_that_cannot_be_milliseconds_are_not_taken_for_them(gap: float, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        _json(_lines(40, gap))
    for unit in TimeUnit:
        trace = _json(_lines(40, gap), unit)
        assert trace.requests[-1].arrival_ms == pytest.approx(39 * gap * unit.ms)
        assert f"times in {unit.value}" in trace.said()


@pytest.mark.parametrize("gap", [0, 5, 294, 60.25, 60_000])
def test_times_that_can_be_milliseconds_are_taken_for_them(gap: float) -> None:
    assert _json(_lines(40, gap)).unit is TimeUnit.MS


def test_times_beyond_all_measure_are_refused() -> None:
    with pytest.raises(TraceError, match="they are not in s"):
        _json(_lines(3, 1.7e18), TimeUnit.S)


# Blocks


@pytest.mark.parametrize("size", [16, 32, 128, 256, 512])
def test_blocks_of_any_size_make_the_same_chunks(size: int) -> None:
    trace = _json(_lines(40, 100, size))
    assert trace.block_tokens == size
    assert (
        f"40 requests over 4 s, read as JSON lines as Mooncake's, times in ms, blocks of {size} tokens" in trace.said()
    )
    chunks = [one.blocks for one in trace.requests]
    assert {len(one) for one in chunks} == {9}
    assert len({one[:4] for one in chunks}) == 1
    assert len({block for one in chunks for block in one[4:]}) == 40 * 5


def test_blocks_above_a_chunk_are_cut_into_chunks() -> None:
    lines = [
        json.dumps({"timestamp": at * 100, "input_length": 5000, "output_length": 1, "hash_ids": [7, 8 + at, at]})
        for at in range(3)
    ]
    chunks = [one.blocks for one in _json(lines).requests]
    assert {len(one) for one in chunks} == {10}
    assert len({one[:4] for one in chunks}) == 1
    assert len({one[4] for one in chunks}) == 3


def test_hashes_are_compared_with_lengths() -> None:
    lines = _lines(40, 100, 24)
    with pytest.raises(TraceError, match="line 1 has 171 hashes for 4103 tokens, and 40 of 40 lines do not agree with"):
        _json(lines)
    with pytest.raises(TraceError, match="blocks of 24 tokens do not fill chunks of 512"):
        _json(lines, block_tokens=24)
    with pytest.raises(TraceError, match="do not agree with blocks of 16 tokens: say --block-tokens"):
        _json(_lines(40, 100), block_tokens=16)


def test_a_line_in_a_hundred_may_be_odd_and_is_counted() -> None:
    trace = _json([*_lines(199, 100), *_lines(1, 1, input_length=3000)])
    assert (trace.block_tokens, trace.odd) == (512, 1)
    assert "1 lines have more or fewer hashes" in trace.said()


def test_numbers_that_stand_for_prefixes_stay_and_others_are_numbered_by_prefix() -> None:
    def blocks(*ids: list[Any]) -> list[tuple[int, ...]]:
        return [
            one.blocks
            for one in _json(
                json.dumps({"timestamp": at, "input_length": len(one) * 512, "output_length": 1, "hash_ids": one})
                for at, one in enumerate(ids)
            ).requests
        ]

    assert blocks([5, 6], [5, 9]) == [(5, 6), (5, 9)]
    first, second = blocks([5, 6], [9, 6])
    assert first[1] != second[1], "block 6 behind another block is another prefix"
    first, second = blocks(["ab", "cd"], ["ab", "ef"])
    assert (first[0] == second[0], first[1] == second[1]) == (True, False)
    assert all(0 <= block < 2**63 for block in (*blocks([-5, 2**64])[0],))


# Formats


def test_bailians_lines_are_in_seconds_and_blocks_of_16() -> None:
    trace = _json(_lines(40, 0.5, 16, chat_id=1, parent_chat_id=-1, type="text", turn=1))
    assert (trace.form, trace.unit, trace.block_tokens) == ("Bailian's JSON lines", TimeUnit.S, 16)
    assert trace.requests[-1].arrival_ms == 39 * 500


def test_lines_without_hashes_share_nothing() -> None:
    trace = _json(_lines(3, 100, hash_ids=None))
    assert trace.block_tokens is None
    assert trace.said().endswith("times in ms, no hashes: nothing is known of what requests share")
    assert [len(one.blocks) for one in trace.requests] == [9, 9, 9]
    assert len({block for one in trace.requests for block in one.blocks}) == 27


def test_azure_has_lengths_and_no_shared_blocks() -> None:
    trace = _csv(AZURE)
    first, second = trace.requests
    assert (first.arrival_ms, first.input_tokens, first.output_tokens, first.blocks) == (0.0, 1025, 10, (0, 1, 2))
    assert (second.arrival_ms, second.blocks) == (pytest.approx(250), (3,))
    assert (trace.form, trace.block_tokens) == ("Azure's CSV", None)


def test_azures_times_have_zones_and_fractions_or_not() -> None:
    trace = _csv(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00.250000+00:00,0,2162,5\n"
        "2024-05-12 00:00:01+00:00,1,76,15\n"
        "2024-05-12T02:00:01.5+02:00,0,1207,11\n"
    )
    assert [one.arrival_ms for one in trace.requests] == [0, 750, 1250]


def test_burstgpt_is_in_seconds() -> None:
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    trace = _csv(f"{head}5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n")
    assert (trace.form, trace.unit) == ("BurstGPT's CSV", TimeUnit.S)
    assert [one.arrival_ms for one in trace.requests] == [5000, 45500]
    assert [one.output_tokens for one in trace.requests] == [18, 230]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "",
            r"columns \[\]; known are TIMESTAMP,ContextTokens,GeneratedTokens \(Azure's CSV\); Timestamp,Req",
        ),
        ("arrived_at,num_prefill_tokens\n1,2\n", r"columns \['arrived_at', 'num_prefill_tokens'\]; known are"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2 is not a request: Invalid isoformat"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n", "line 2 .*: no GeneratedTokens"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n2023-11-16T18:15:47+00:00,1,2\n",
            "line 3 is not a request: '2023-11-16T18:15:47.00:00' names a time zone, unlike the rows before",
        ),
    ],
)
def test_a_csv_that_no_one_wrote_is_refused(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        _csv(text)


def test_a_field_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,{'1' * 200_000},2\n")
    with pytest.raises(TraceError, match="field larger than field limit"):
        read_trace(path)


# Files

PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl.zst": zstandard.compress,
    ".jsonl.gz": gzip.compress,
    ".tar.zst": zstandard.compress,
}


def _tar(*files: tuple[str, str]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, text in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return archive.getvalue()


def test_the_name_says_how_to_read_a_file(tmp_path: Path) -> None:
    line = b'{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[7]}\n'
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + line)
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(line))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line))
    (tmp_path / "a.csv").write_text(AZURE)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(AZURE.replace("\n", "\r\n").encode()))
    archive = _tar(("azure/code.csv", AZURE), ("azure/conv.csv", AZURE.splitlines()[0]))
    (tmp_path / "a.tar.zst").write_bytes(zstandard.compress(archive))
    for form in (".jsonl", ".jsonl.zst", ".jsonl.gz"):
        assert read_trace(tmp_path / f"a{form}").requests == [TraceRequest(0.0, 5, 1, (7,))]
    assert read_trace(tmp_path / "a.csv") == read_trace(tmp_path / "a.tar.zst") == read_trace(tmp_path / "a.csv.gz")
    assert read_trace(tmp_path / "a.tar.zst", "conv").requests == []
    with pytest.raises(TraceError, match="no CSV file with 'tea' in its name"):
        read_trace(tmp_path / "a.tar.zst", "tea")
    with pytest.raises(TraceError, match="a name that ends in"):
        read_trace(tmp_path / "a.parquet")
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "b.jsonl")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.55, 0.9, 0.999])
@pytest.mark.parametrize("form", PACKED)
def test_a_packed_file_that_was_cut_is_refused(form: str, share: float, tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:15:46.{at:04},{at * 7},2\n" for at in range(4000))
    table = _tar(("azure/code.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows))
    content = PACKED[form](table if form == ".tar.zst" else "".join(_lines(1000, 100)).encode())
    (tmp_path / f"cut{form}").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(TraceError, match="ends in the middle"):
        read_trace(tmp_path / f"cut{form}")


def test_all_frames_are_read_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    lines = _lines(1000, 100)
    frames = [zstandard.compress("".join(lines[at : at + 50]).encode()) for at in range(0, 1000, 50)]
    path = tmp_path / "frames.jsonl.zst"
    path.write_bytes(b"".join(frames))
    assert len(read_trace(path).requests) == 1000
    path.write_bytes(b"".join(frames[:7]) + frames[7][:100])
    with pytest.raises(TraceError, match="ends in the middle of its compressed data: was it copied whole"):
        read_trace(path)


def test_lines_that_end_in_the_middle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    text = "".join(_lines(20, 100))
    path.write_text(text[:-1])
    assert len(read_trace(path).requests) == 20, "the last line break is nobody's request"
    path.write_text(text[:-30])
    with pytest.raises(TraceError, match="ends in the middle of line 20: is the file complete"):
        read_trace(path)


# Rounded times, places


def test_dequantising_keeps_order_and_tick() -> None:
    requests = [_request(tick * 3, tick * 10 + i) for tick in range(4) for i in range(6)]
    assert is_quantised(requests)
    spread = dequantise(requests, seed=5)
    assert spread == dequantise(requests, seed=5)
    assert not is_quantised(spread)
    assert [request.blocks for request in spread] == [request.blocks for request in requests]
    assert [request.arrival_ms for request in spread] == sorted(request.arrival_ms for request in spread)
    for before, after in zip(requests, spread, strict=True):
        assert before.arrival_ms <= after.arrival_ms < before.arrival_ms + TICK_MS


def test_rounding_of_ticks_is_seen_through() -> None:
    assert is_quantised([_request(0, 1), _request(2.999, 2), _request(6.003, 3)])
    assert not is_quantised([_request(0, 1), _request(1.2, 2)])


def test_catalog_falls_back_to_the_carried_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path))
    monkeypatch.setattr(catalog, "CHECKOUT", tmp_path / "nowhere" / "repository")
    found = catalog.find_trace("conversation")
    assert found.synthetic
    assert found.path.parent == catalog.CARRIED
    title, trace = open_trace("conversation", 1)
    assert title == found.title
    assert (len(trace.requests) > 100, trace.odd) == (True, 0)


def test_catalog_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match="no trace weather"):
        catalog.find_trace("weather")
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path / "gone"))
    with pytest.raises(TraceError, match="gone is not a directory"):
        catalog.find_trace("rollout8")
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path))
    (tmp_path / "synthetic_rollout8.jsonl.zst").write_bytes(random.Random(1).randbytes(100))
    with pytest.raises(TraceError, match="synthetic_rollout8"):
        open_trace("rollout8", 1)


def test_a_short_file_does_not_stand_for_billions_of_tokens() -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    row = f"2024-05-10 00:00:00.000000,{REQUEST_TOKENS_MAX},1"
    with pytest.raises(TraceError, match=r"line 7: 600,001,536 tokens of input so far, more than 536,870,912 in all"):
        understood(csv_records([head, *[row] * 20]), None, None)
    rows = ["2024-05-10 00:00:00.000000,32768,1"] * 20_000
    long_ones = understood(csv_records([head, *rows]), None, None).requests
    blocks_count = sum(len(one.blocks) for one in long_ones)
    assert blocks_count == 20_000 * FRESH_BLOCKS_PER_REQUEST_MAX > FRESH_BLOCKS_MAX
