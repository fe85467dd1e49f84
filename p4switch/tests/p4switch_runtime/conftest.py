"""Programs written by hand against the ABI: the runtime is tested apart from the compiler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from p4switch.build import build_shared_object
from p4switch.runtime import INCLUDE_DIR, Pipeline, Program, Switch, SwitchConfig

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Tests that enter network namespaces run on a thread of their own: a namespace belongs to a thread and to the
    threads that it starts, and no thread that another library starts meanwhile (gRPC does) must be caught in it."""
    if item.path.parent != _HERE or item.get_closest_marker("root") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runner = threading.Thread(target=runtestprotocol, args=(item,), kwargs={"nextitem": nextitem})
    runner.start()
    runner.join()
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def exerciser() -> Program:
    return Program.load(build_shared_object("exerciser", [_HERE / "exerciser.c"], include_dirs=(INCLUDE_DIR,)))


@pytest.fixture(scope="session")
def l2_program() -> Program:
    return Program.load(build_shared_object("l2", [_HERE / "l2_program.c"], include_dirs=(INCLUDE_DIR,)))


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
