"""`kvcast plan` from the outside: what a small plan writes, and one clear line for whatever is wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from kvcast import cli
from kvlab.commands.plan import Shown
from planner.errors import PlanError
from planner.traces.catalog import CARRIED
from planner.units import format_seconds, link_rate, memory_bytes, switch_bytes

SMALL = [
    "plan",
    "--trace",
    str(CARRIED / "rollout_small.jsonl"),
    "--requests",
    "40",
    "--nodes",
    "4",
    "--switch",
    "4g",
    "--jobs",
    "1",
]
SHAPE = ["--layers", "4", "--kv-heads", "2", "--head-dim", "64", "--parameters", "0.5"]


def test_a_small_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--sweep-requests", "6", "--out", str(tmp_path / "out")]) == 0
    said, on_the_way = capsys.readouterr()
    assert "rollout_small.jsonl: 40 requests over " in on_the_way
    assert "read as JSON lines as Mooncake's, times in ms, blocks of 512 tokens" in on_the_way
    assert on_the_way.count("to the first token on average") == 6
    assert "Do not rely on it: 40 requests are too few." in " ".join(said.split())
    for title in (
        "1. Where tokens",
        "2. Time to first token",
        "2b. When several",
        "3. What managing",
        "4b. Where each",
    ):
        assert title in said
    assert max(map(len, said.splitlines())) <= 80
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"report.html", "plan.json", "hits.svg", "hits.png", "sweeps.svg", "bursts.png"} <= written
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "src=" not in page and 'href="http' not in page
    figures = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert set(figures["replays"]) == {"no pool", "unicast", "replicas", "relays", "casts", "casts+switch"}
    assert {point["axis"] for point in figures["sweeps"]} == {"nodes", "link", "rate", "model"}
    assert figures["bursts"][0]["readers"] == 1


def test_jobs_side_by_side_find_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for jobs in ("1", "2"):
        assert cli.main([*SMALL[:-2], "--no-sweep", "--jobs", jobs, "--json", str(tmp_path / jobs)]) == 0
        figures = json.loads((tmp_path / jobs).read_text())
        for one in figures["replays"].values():
            del one["core_cpu_s"]
        found.append(figures)
    assert found[0] == found[1]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--model", "gpt-5"], "unknown model 'gpt-5': "),
        (["--model", "mine", "--layers", "3"], "needs --kv-heads, --head-dim, --parameters too"),
        (["--link", "fast"], "link rate 'fast' is not a number with kbit, mbit or gbit behind it, as in 100mbit"),
        (["--link", "0g"], "link rate '0g' is not above zero"),
        (["--local-dram", "256"], "size '256' has no unit: write 256g, 256GiB, or none"),
        (["--local-dram", "none"], "does not hold one chunk"),
        (["--switch", "tofino"], "size 'tofino' is not"),
        (["--nodes", "1025"], "1025 nodes: a replay has 2 to 1,024, beyond 64 in cells; for more use --scale"),
        (["--trace", "no/such.jsonl"], "trace no/such.jsonl: no such file"),
        (["--trace", "trace.parquet"], "a file that ends in .jsonl"),
        (["--trace", "talk"], "no trace talk: there are conversation, toolmix"),
        (["--jobs", "0"], "--jobs: 0 is below 1"),
        (["--speed", "0"], "--speed: 0 is not above zero"),
        (["--speed", "nan"], "--speed: 'nan' is not a number"),
        (["--kv-bytes", "0"], "--kv-bytes: 0 is not above zero"),
        (["--prefill-rate", "inf"], "--prefill-rate: 'inf' is not a number"),
        (["--layers", "0"], "--layers: 0 is below 1"),
        (["--replicas", "17"], "--replicas 17: there are only 16 nodes to keep them"),
        (["--active-parameters", "3"], "belong to a model described by its shape"),
        ([*SHAPE, "--heads", "3"], "--heads 3 is not a multiple of --kv-heads 2"),
        ([*SHAPE, "--active-parameters", "9"], "--active-parameters 9 is more than --parameters 0.5"),
        (["--json", str(CARRIED)], "is a folder: name a file"),
        (["--out", str(CARRIED / "rollout_small.jsonl" / "plan")], "rollout_small.jsonl is not a folder"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--trace", str(CARRIED / "rollout_small.jsonl"), "--requests", "5", *words]
    try:
        status = cli.main(command)
    except SystemExit as end:
        status = end.code
    assert status == 2
    err = capsys.readouterr().err.strip()
    assert line in err
    assert err.startswith("kvcast plan: ")
    assert "\n" not in err


def test_a_model_by_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--no-sweep", "--model", "mine", *SHAPE]) == 0
    assert "mine, 2 KiB of KV a token" in capsys.readouterr().out


def test_names_of_models_and_traces_do_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "\x1b]0;owned\x07[bold].csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00+00:00,2162,5\n")
    words = ["plan", "--trace", str(trace), "--nodes", "2", "--no-sweep", "--jobs", "1", "--model", "[/x]\x1b[31m"]
    assert cli.main([*words, *SHAPE]) == 0
    shown, on_the_way = capsys.readouterr()
    assert "\x1b" not in shown + on_the_way
    assert r"\x1b]0;owned[bold].csv: 1 request" in on_the_way
    assert r"[/x]\x1b[31m, 2 KiB of KV a token" in shown


def test_units() -> None:
    assert link_rate("100g") == link_rate("100Gbit/s") == 12.5e9
    assert memory_bytes("256g") == memory_bytes("256GiB") == 256 * 2**30
    assert (memory_bytes("none"), switch_bytes("sram")) == (0, 15 * 2**20)
    assert format_seconds(0.0123) == "12.3 ms"
    with pytest.raises(PlanError, match="size '1q'"):
        memory_bytes("1q")


def test_where_no_bar_moves_a_line_says_now_and_then_how_far_the_plan_is() -> None:
    said, now_s = io.StringIO(), [0.0]
    shown = Shown(Progress(console=Console(file=said, width=100), get_time=lambda: now_s[0]))
    for at in range(1, 9):
        now_s[0] = 10.0 * at
        shown.moved("replaying casts", at / 10)
    lines = said.getvalue().splitlines()
    assert [line.partition(" s left")[0].rpartition(", ")[0] for line in lines] == [
        "replaying casts: 30% after 30 s",
        "replaying casts: 60% after 60 s",
    ]
