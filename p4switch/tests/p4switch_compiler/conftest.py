"""Helpers of the compiler's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p4switch.compiler import CompiledProgram, compile_program
from p4switch.runtime import Pipeline, Program, Switch, SwitchConfig


class Bench:
    """A program on a switch with memory ports 0 to 9."""

    def __init__(self, compiled: CompiledProgram) -> None:
        self.compiled = compiled
        self.switch = Switch(SwitchConfig(virtual_clock=True))
        self.pipeline: Pipeline = self.switch.prepare(Program.load(compiled.shared_object_path))
        self.switch.commit(self.pipeline)
        for port in range(10):
            self.switch.add_memory(port)

    def send(self, frame: bytes, port: int = 0) -> list[tuple[int, bytes]]:
        """What comes out when a frame comes in."""
        self.switch.inject(port, frame)
        while self.switch.step():
            pass
        return self.switch.collect()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[[str], Bench]]:
    """Makes a Bench from the text of a program."""
    made: list[Bench] = []

    def make(text: str) -> Bench:
        path = tmp_path / "program.p4"
        path.write_text(text)
        made.append(Bench(compile_program(path)))
        return made[-1]

    yield make
    for b in made:
        b.switch.close()
