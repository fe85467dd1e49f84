"""A newcomer's machines: an environment from the wheels, away from the checkout, and networks made of namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bmv2_testbed.network.namespaces import can_unshare
from tests.field.lab import Lab, Plan, lab_of
from tests.wheels.conftest import wheels  # noqa: F401  (a fixture)

TOOLS = ("nsenter", "setpriv", "unshare", "ip", "ethtool", "ping", "curl", "nft", "gcc")


@dataclass(frozen=True, slots=True)
class Office:
    """Where a newcomer works: a folder of its own outside the checkout, and packages to install without a network."""

    folder: Path
    wheelhouse: Path

    def environment(self, name: str) -> str:
        """A new virtual environment with nothing but pip; the PATH of who has it activated."""
        prefix = self.folder / name
        venv.create(prefix, with_pip=True)
        return f"{prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    def lab(self, name: str, path: str, plan: Plan | None = None) -> AbstractContextManager[Lab]:
        """Machines whose pip installs from the wheelhouse; compiled switch programs are kept between labs."""
        variables = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheelhouse),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        return lab_of(self.folder / name, path, variables, plan)


@pytest.fixture(scope="session")
def office(wheels: dict[str, Path]) -> Iterator[Office]:  # noqa: F811
    """Skips where machines cannot be made."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or not can_unshare() or missing:
        pytest.skip(f"needs root, namespaces and {' '.join(missing) or 'nothing else'}")
    # Not below /tmp: each machine has a /tmp of its own.
    with tempfile.TemporaryDirectory(prefix="kvcast-field-", dir="/var/tmp") as folder:
        wheelhouse = Path(folder) / "wheelhouse"
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        argv = [*download, "--dest", str(wheelhouse), "pytest", *map(str, wheels.values())]
        subprocess.run(argv, check=True)
        yield Office(Path(folder), wheelhouse)


@pytest.fixture(scope="session")
def installed(office: Office) -> str:
    """PATH of an environment that has kvcast."""
    path = office.environment("environment")
    pip = [path.split(":")[0] + "/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*pip, "--find-links", str(office.wheelhouse), "kvcast", "pytest"], check=True)
    return path


@pytest.fixture
def lab(office: Office, installed: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Lab]]:
    """Machines on which everything is installed: `lab()`, once per test."""
    name = request.node.name.replace("/", "_").replace("[", "-").replace("]", "")
    entered: list[AbstractContextManager[Lab]] = []

    def enter(plan: Plan | None = None) -> Lab:
        entered.append(office.lab(name, installed, plan))
        return entered[-1].__enter__()

    yield enter
    for context in entered:
        context.__exit__(None, None, None)
