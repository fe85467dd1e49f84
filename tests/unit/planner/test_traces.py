"""Trace files: formats, quantised time, where they are found."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import pytest
import zstandard

from planner.traces import (
    TICK_MS,
    TraceError,
    TraceRequest,
    catalog,
    dequantise,
    is_quantised,
    parse_lengths,
    parse_trace,
    read_trace,
)
from planner.traces.request import BLOCKS_MAX, BLOCKS_PER_REQUEST_MAX, REQUEST_TOKENS_MAX

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,1025,10
2023-11-16 18:17:04.2299600,512,8
"""


def _request(arrival_s: float, *blocks: int) -> TraceRequest:
    return TraceRequest(arrival_s * 1000, len(blocks) * 512, 1, blocks)


def test_parse_sorts_by_arrival() -> None:
    lines = [json.dumps({"timestamp": t, "input_length": 5, "output_length": 1, "hash_ids": [t]}) for t in (3000, 0)]
    assert [request.arrival_ms for request in parse_trace([*lines, "\n"])] == [0, 3000]


def _line(timestamp: str = "1", input_length: str = "1", hash_ids: str = "[]") -> str:
    return f'{{"timestamp":{timestamp},"input_length":{input_length},"output_length":1,"hash_ids":{hash_ids}}}'


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"timestamp": 1}',
        _line(hash_ids="3"),
        _line(hash_ids="[1e999]"),
        _line(timestamp="1e999"),
        _line(timestamp="NaN"),
        _line(timestamp="9" * 400),
        _line(input_length="1e999"),
        _line(input_length="NaN"),
        _line(input_length="-1"),
        _line(input_length="9" * 400),
        _line(input_length="9" * 5000),
        _line(input_length="null"),
        "[" * 100_000,
    ],
)
def test_a_bad_line_is_named_and_not_repeated(line: str) -> None:
    with pytest.raises(TraceError, match="line 1") as caught:
        parse_trace([line])
    assert len(str(caught.value)) < 300


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
    assert len(found.requests()) > 100


def test_catalog_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match="no trace weather"):
        catalog.find_trace("weather")
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path / "gone"))
    with pytest.raises(TraceError, match="gone is not a directory"):
        catalog.find_trace("rollout8")
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path))
    (tmp_path / "synthetic_rollout8.jsonl.zst").write_bytes(random.Random(1).randbytes(100))
    with pytest.raises(TraceError, match="synthetic_rollout8"):
        catalog.find_trace("rollout8").requests()


def test_azure_has_lengths_and_no_shared_blocks() -> None:
    first, second = parse_lengths(AZURE.splitlines(keepends=True))
    assert (first.arrival_ms, first.input_tokens, first.output_tokens, first.blocks) == (0.0, 1025, 10, (0, 1, 2))
    assert (second.arrival_ms, second.blocks) == (pytest.approx(250), (3,))
    with pytest.raises(TraceError, match="line 2"):
        parse_lengths(["TIMESTAMP,ContextTokens,GeneratedTokens\n", "yesterday,1,2\n"])


def test_a_short_file_does_not_stand_for_billions_of_tokens() -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    row = f"2024-05-10 00:00:00.000000,{REQUEST_TOKENS_MAX},1"
    with pytest.raises(TraceError, match=r"line 7: 600,001,536 tokens of input so far, more than 536,870,912 in all"):
        parse_lengths([head, *[row] * 10_000])
    long_ones = parse_lengths([head, *["2024-05-10 00:00:00.000000,32768,1"] * 20_000])
    assert sum(len(one.blocks) for one in long_ones) == 20_000 * BLOCKS_PER_REQUEST_MAX > BLOCKS_MAX


def test_a_csv_that_no_one_wrote_is_refused(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    with pytest.raises(TraceError, match="line 3 is not a request: TypeError"):
        parse_lengths([head, "2023-11-16 18:15:46,1,2\n", "2023-11-16T18:15:47+00:00,1,2\n"])
    path = tmp_path / "long.csv"
    path.write_text(f"{head}2023-11-16 18:15:46,{'1' * 200_000},2\n")
    with pytest.raises(TraceError, match="field larger than field limit"):
        read_trace(path)


def test_the_name_says_how_to_read_a_file(tmp_path: Path) -> None:
    line = b'{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[7]}\n'
    (tmp_path / "a.jsonl").write_bytes(line)
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(line))
    (tmp_path / "a.csv").write_text(AZURE)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, text in (("azure/code.csv", AZURE), ("azure/conv.csv", AZURE.splitlines()[0])):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    (tmp_path / "a.tar.zst").write_bytes(zstandard.compress(archive.getvalue()))
    assert read_trace(tmp_path / "a.jsonl") == read_trace(tmp_path / "a.jsonl.zst") == [TraceRequest(0.0, 5, 1, (7,))]
    assert read_trace(tmp_path / "a.csv") == read_trace(tmp_path / "a.tar.zst")
    assert read_trace(tmp_path / "a.tar.zst", "conv") == []
    with pytest.raises(TraceError, match="no CSV file with 'tea' in its name"):
        read_trace(tmp_path / "a.tar.zst", "tea")
    with pytest.raises(TraceError, match="a name that ends in"):
        read_trace(tmp_path / "a.parquet")
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "b.jsonl")
