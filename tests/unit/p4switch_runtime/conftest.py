"""Programs written by hand against the ABI: the runtime is tested apart from the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from p4switch.runtime import Pipeline, Program, Switch, SwitchConfig, build_shared_object

_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def exerciser() -> Program:
    return Program.load(build_shared_object("exerciser", [_HERE / "exerciser.c"]))


@pytest.fixture(scope="session")
def l2_program() -> Program:
    return Program.load(build_shared_object("l2", [_HERE / "l2_program.c"]))


@pytest.fixture
def switch() -> Iterator[Switch]:
    """Virtual clock, memory ports 1 to 8, CPU port 255."""
    with Switch(SwitchConfig(cpu_port=255, virtual_clock=True, seed=7)) as made:
        for port in range(1, 9):
            made.add_memory(port)
        made.events(0)
        yield made


@pytest.fixture
def pipeline(switch: Switch, exerciser: Program) -> Pipeline:
    """The exerciser on the packets' path."""
    made = switch.prepare(exerciser)
    switch.commit(made)
    return made
