"""Helpers of the simulation suite: every failure says how to run it again."""

import subprocess
from collections.abc import Callable

import pytest

from kvsim.world import Report, World
from tests.sim.checks import violations


def _commit() -> str:
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


@pytest.fixture(scope="session")
def checked() -> Callable[..., Report]:
    """Runs a world and asserts that nothing is violated."""

    def run(world: World) -> Report:
        report = world.run()
        found = violations(world)
        if found:
            shown = "\n  ".join(found[:20])
            pytest.fail(f"at commit {_commit()}, World({world.setting!r}):\n  {shown}", pytrace=False)
        return report

    return run
