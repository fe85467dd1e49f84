"""`kvcast` and its words: help of every command, wrong words in one line with status 2, imports of one command only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import controlplane.daemon
import hostagent.daemon
import p4switch.cli
from bmv2_testbed.processes import child_environment
from kvcast.arguments import Parser
from kvcast.cli import COMMANDS, LAB, main
from kvcast.commands.switch import add_arguments, switch_arguments
from kvlab.commands.bench import BENCHMARKS
from kvproto import __version__

ROOT = Path(__file__).parents[3]
ACTIONS = ("up", "down", "status", "exec", "fault", "kill", "restart", "reboot", "log", "link")
EVERYTHING = [
    *((name,) for name in COMMANDS),
    *(("bench", name) for name in BENCHMARKS),
    *(("testbed", name) for name in ACTIONS),
]


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error of a command that ends with status 2."""
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert (status, said.out) == (2, ""), said
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith("kvcast")
    return said.err


@pytest.mark.parametrize("words", EVERYTHING, ids=" ".join)
def test_help_says_what_every_argument_is(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*words, "--help"])
    assert f"usage: kvcast {' '.join(words)}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [words for words in EVERYTHING if words != ("switch",)], ids=" ".join)
def test_unknown_arguments_are_named_by_the_command_they_were_for(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal([*words, "--colour", "red"], capsys).startswith(f"kvcast {' '.join(words)}: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "required: COMMAND"),
        ("frob", "invalid choice: 'frob'"),
        ("bench", "required: BENCHMARK"),
        ("ls --limit -3", "--limit: -3 is below 0"),
        ("ls --limit many", "--limit: 'many' is not a whole number"),
        ("ls --controller 127.0.0.1:1", "no controller answers at 127.0.0.1:1"),
        ("top --interval 0", "--interval: 0 is not above zero"),
        ("warm", "required: --prefix"),
        ("drain n1 --timeout -1", "--timeout: -1 is not a number from 0 to 86400"),
        ("drain n1 --timeout nan", "--timeout: 'nan' is not a number"),
        ("doctor plumbing", "no topic plumbing: choose among agent"),
        ("doctor --config none.yaml", "cannot read none.yaml: No such file or directory"),
        ("testbed up --nodes 1", "--nodes: 1 is below 2"),
        ("testbed up --nodes 1000", "between 2 and 64 are possible"),
        ("testbed up --rate fast", "rate 'fast' is not a number with kbit, mbit or gbit"),
        ("testbed up --slow 3", "'3' is not HOST=RATE, as in 3=50mbit"),
        ("testbed up --sockets-on 1", "--sockets-on goes with --roce"),
        ("testbed fault --loss 1", "--loss: 1 is not a probability from 0 to below 1"),
        ("testbed kill switch --name nonesuch", "testbed nonesuch is not up"),
        ("testbed link h0 sideways", "invalid choice: 'sideways'"),
        ("bench incast --nodes 0", "--nodes: 0 is below 1"),
        ("bench incast --size 16parsecs", "size '16parsecs' is not a number with B, KiB"),
        ("bench incast --json .", ". is a folder: name a file"),
        ("bench incast --json pyproject.toml/figures.json", "pyproject.toml is not a folder"),
        ("bench incast --slow 1mbit --slow-reader 8", "readers are numbered 0 to 7"),
        ("bench fetch --repeat 0", "--repeat: 0 is below 1"),
        ("bench protocol --rate fast", "rate 'fast' is not a number with kbit, mbit or gbit"),
        ("bench protocol --readers 64", "64 and a holder are more than the 64 members of a switch"),
        ("bench protocol --size 100B", "at least one segment of 4096 bytes"),
        ("bench protocol --hosts odd", "--hosts: invalid choice: 'odd'"),
        ("bench protocol --loss 1", "--loss: 1 is not a probability from 0 to below 1"),
        ("bench policy --trace nonesuch", "no trace nonesuch: there are conversation"),
        ("bench policy --trace nonesuch.jsonl", "nonesuch.jsonl: no such file"),
        ("bench policy --trace conversation --pool 0,1", "every share must lie above 0"),
        ("bench rdma --rounds 0", "--rounds: 0 is below 1"),
        ("bench rdma --slice 0.1", "0.1 is not a number from 0.25 to 10"),
        ("switch --grpc 127.0.0.1:0", "a switch needs ports: -i PORT@INTERFACE"),
        ("bench switch nonesuch", "no part 'nonesuch'"),
        ("plan --trace nonesuch", "no trace nonesuch: there are conversation"),
        ("plan --jobs 0", "--jobs: 0 is below 1"),
        ("plan --speed nan", "--speed: 'nan' is not a number"),
        ("plan --kv-bytes 0", "--kv-bytes: 0 is not above zero"),
        ("plan --scale --scale-sample 3", "--scale-sample: 3 is below 1000"),
        ("plan --link slow", "link rate 'slow' is not a number"),
        ("plan --model nonesuch", "unknown model 'nonesuch'"),
        ("demo --length 0", "--length: 0 is not above zero"),
    ],
)
def test_one_line_that_names_the_mistake(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refusal(words.split(), capsys)


def test_the_switch_gets_the_program_its_sizes_and_all_that_p4switch_knows() -> None:
    parser = Parser(prog="kvcast switch")
    add_arguments(parser)
    words = switch_arguments(
        parser.parse_args(["-i", "1@eth1", "--slots", "32", "--grpc", "127.0.0.1:0", "--arch", "tna"])
    )
    assert words == [
        str(ROOT / "p4" / "tna" / "kvcast.p4"),
        *("-DSLOTS=32", "--flood-group", "32768", "-i", "1@eth1", "--grpc", "127.0.0.1:0"),
    ]
    words = switch_arguments(parser.parse_args(["--flood-group", "7", "-i1@eth1"]))
    assert words == [str(ROOT / "p4" / "v1model" / "kvcast.p4"), "--flood-group", "7", "-i1@eth1"]


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("kvcast", main),
        ("kvcast-agent", hostagent.daemon.main),
        ("kvcast-controller", controlplane.daemon.main),
        ("p4switch", p4switch.cli.main),
    ],
)
def test_one_version(name: str, entry: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        entry(["--version"])
    assert not end.value.code
    assert capsys.readouterr().out == f"{name} {__version__}\n"


@pytest.mark.parametrize("command", [*COMMANDS, "bench incast"])
def test_each_command_has_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--version"])
    assert not end.value.code
    assert capsys.readouterr().out == f"kvcast {__version__}\n"


class NoLab:
    """The import system of an environment without kvcast-lab."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "kvlab":
            raise ModuleNotFoundError("No module named 'kvlab'", name="kvlab")


@pytest.mark.parametrize("command", sorted(LAB))
def test_a_command_of_the_lab_says_what_to_install(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "kvlab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoLab(), *sys.meta_path])
    assert refusal([command], capsys) == f"kvcast {command}: needs kvcast-lab: pip install kvcast-lab\n"


def test_a_configuration_can_be_looked_at_without_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("data: {address: 127.0.0.1}\n")
    assert hostagent.daemon.main(["--config", str(path), "--check"]) == 0
    assert controlplane.daemon.main(["--config", str(path), "--check"]) == 2
    path.write_text("nodes: {n1: {port: 1}}\n")
    assert controlplane.daemon.main(["--config", str(path), "--check"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{path}: good\n" * 2
    assert "data" in said.err


@pytest.mark.parametrize(
    ("words", "not_wanted"),
    [
        ("--help", {"numpy", "grpc", "rich", "finsy", "matplotlib"}),
        ("ls --help", {"numpy", "finsy", "matplotlib", "bmv2_testbed"}),
        ("bench --help", {"numpy", "grpc", "rich", "finsy", "matplotlib"}),
        ("bench incast --help", {"grpc", "finsy", "matplotlib", "p4switch", "controlplane"}),
        ("testbed --help", {"grpc", "finsy", "matplotlib", "p4switch", "controlplane"}),
        ("plan --help", {"matplotlib", "finsy", "bmv2_testbed"}),
        ("demo --help", {"matplotlib", "finsy"}),
    ],
)
def test_a_command_imports_what_it_needs(words: str, not_wanted: set[str]) -> None:
    """What a person waits for before the first word appears."""
    script = (
        "import contextlib, sys; from kvcast.cli import main\n"
        f"with contextlib.suppress(SystemExit): main({words.split()!r})\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=child_environment(), cwd=ROOT)
    assert not_wanted & set(done.stderr.split()) == set()
