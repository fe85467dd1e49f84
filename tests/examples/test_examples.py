"""The examples run as a reader runs them, and say what their pages promise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmv2_testbed import client
from bmv2_testbed.processes import child_environment, python_module
from bmv2_testbed.spec import TestbedSpec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def sockets() -> Iterator[list[str]]:
    """Of the agents of two nodes on loopback."""
    with client.running(TestbedSpec(hosts=2, pool_bytes=32 << 20)) as testbed:
        yield [str(testbed.directory / f"h{host}.sock") for host in range(2)]


def said(*argv: str) -> list[str]:
    """The lines of a command that must succeed."""
    done = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_two_nodes_share_a_prefix(sockets: list[str]) -> None:
    lines = said(sys.executable, str(EXAMPLES / "share_a_prefix.py"), *sockets)
    assert [line.rpartition(" ")[2] for line in lines[:4]] == ["STORED"] * 4
    assert all(line.endswith("every byte right") for line in lines[4:8])
    assert lines[8:] == ["outcome: OK, 4 of 4 chunks"]


def test_an_engine_finds_what_it_stored(sockets: list[str]) -> None:
    assert said(sys.executable, str(EXAMPLES / "engine_loop.py"), sockets[0]) == [
        "a first question: 0 chunks from the pool, 6 computed",
        "another user's question: 4 chunks from the pool, 1 computed",
        "the first user goes on: 6 chunks from the pool, 2 computed",
    ]


def test_a_program_of_ones_own(tmp_path: Path) -> None:
    program, case = EXAMPLES / "own_program" / "reflector.p4", EXAMPLES / "own_program" / "reflector.stf"
    said(*python_module("p4switch.cli", str(program), "--stf", str(case)))
    wrong = tmp_path / "wrong.stf"
    wrong.write_text(case.read_text().replace("expect 3", "expect 2"))
    argv = python_module("p4switch.cli", str(program), "--stf", str(wrong))
    assert subprocess.run(argv, env=child_environment(), capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("name", ["share_a_prefix.py", "engine_loop.py"])
def test_without_a_socket_an_example_says_how_to_run_it(name: str) -> None:
    argv = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"python examples/{name}" in done.stderr


def test_every_example_is_on_the_page() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"} == {
        name
        for name in ("share_a_prefix.py", "engine_loop.py", "route_in_time.py", "go_on_elsewhere.py", "own_program")
        if f"]({name})" in page
    }
