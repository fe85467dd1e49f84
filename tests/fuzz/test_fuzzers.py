"""Every fuzzer for a moment, with a fixed seed; and the fuzzing itself: what breaks is found, made small, kept."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import runner
from tests.fuzz.child import Running
from tests.fuzz.crash import Crash, load, what
from tests.fuzz.target import Case, FoundError
from tests.fuzz.targets import NAMES, made_by

SEED = 20
INPUTS = {"agent": 12, "controller": 12, "p4-names": 6, "p4-sources": 6, "local-messages": 300}
"""For about half a second each; others 40."""
COMPILED = ("p4runtime", "packets")
"""They compile a program first: `make test-long` runs them."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMPILED])
def test_nothing_breaks_in_a_moment(name: str) -> None:
    figures = runner.run(made_by(name), SEED, inputs=INPUTS.get(name, 40))
    assert [crash.error for crash in figures.crashes] == []
    assert figures.lines > 0


@pytest.mark.long
def test_nothing_breaks_in_a_while(tmp_path: Path) -> None:
    assert command.main(["--seconds", "60", "--seed", str(SEED), "--folder", str(tmp_path)]) == 0
    assert not list(tmp_path.glob("*.sanitizer.*"))


class Fragile:
    """Breaks when it meets 'bad', as an error, by not returning, or by ending its process."""

    name: ClassVar[str] = "fragile"
    checks: ClassVar[str] = "nothing bad"
    limit_s: ClassVar[float] = 0.1
    words: ClassVar[tuple[bytes, ...]] = (b"bad",)
    seen: ClassVar[list[Case]] = []

    def fresh(self, random: Random) -> Case:
        return [random.randbytes(20) for _ in range(4)]

    def run(self, case: Case) -> None:
        self.seen.append(case)
        for step in case:
            if b"bad" in step:
                raise FoundError("it is bad")

    def close(self) -> None:
        pass


class Endless(Fragile):
    def run(self, case: Case) -> None:
        while any(b"bad" in step for step in case):
            pass


def test_what_breaks_is_found_and_made_small(tmp_path: Path) -> None:
    figures = runner.run(Fragile, SEED, inputs=3000)
    (crash,) = figures.crashes
    assert crash.steps == [b"bad"]
    assert "FoundError: it is bad" in crash.error
    path = crash.save(tmp_path)
    name, case = load(path)
    assert (name, case) == ("fragile", [b"bad"])
    assert isinstance(runner.broken_by(Fragile(), case), FoundError)


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SHRINK_S", 0.0)
    began_s = time.process_time()
    error = runner.broken_by(Endless(), [b"bad"])
    assert error is not None
    assert "HungError" in what(error)
    assert time.process_time() - began_s < 5


def test_the_same_seed_makes_the_same_inputs() -> None:
    runs = []
    for _ in range(2):
        Fragile.seen.clear()
        runner.run(Fragile, 3, inputs=50)
        runs.append(list(Fragile.seen))
    assert runs[0] == runs[1]
    assert len({tuple(case) for case in runs[0]}) > 40


def test_a_file_of_an_input_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Crash("traces", SEED, 0, "FoundError: a mistake that was mended", [b"\x00\x01{}\n"]).save(tmp_path)
    assert command.main(["--replay", str(path)]) == 0
    assert "takes this input" in capsys.readouterr().out


def test_a_process_that_dies_is_a_finding(tmp_path: Path) -> None:
    running = Running("local-messages", SEED, 600.0, None, tmp_path)
    deadline_s = time.monotonic() + 60
    try:
        while running.inputs == 0:
            assert running.outcome() is None
            assert time.monotonic() < deadline_s
    finally:
        running.kill()
    outcome = running.outcome()
    assert outcome is not None
    (path,) = outcome.files
    assert load(Path(path))[0] == "local-messages"
    assert "status -9" in Path(path).read_text()
