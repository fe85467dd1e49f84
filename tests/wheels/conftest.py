"""The distributions as a user gets them: built, then installed into empty environments outside the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment, and a folder to work in that has nothing of the checkout."""

    prefix: Path
    folder: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")

    def command(self, name: str) -> str:
        return str(self.prefix / "bin" / name)

    @property
    def environment(self) -> dict[str, str]:
        """Of a login that knows nothing but this environment and the system."""
        return {
            "PATH": f"{self.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "LANG": "C.UTF-8",
        }

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end, whatever that is."""
        return subprocess.run(
            argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=300
        )

    def say(self, *argv: str) -> str:
        """What a command prints that must succeed."""
        done = self.run(*argv)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def install(folder: Path, wheels: list[Path]) -> Installed:
    """A new environment with these wheels and what they depend on."""
    prefix = folder / "environment"
    venv.create(prefix, with_pip=True)
    pip = [str(prefix / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *map(str, wheels)], check=True)
    return Installed(prefix, folder)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels by distribution, each built from its sdist."""
    out = tmp_path_factory.mktemp("dist")
    builder = ROOT / "tools" / "build_distributions.sh"
    subprocess.run([str(builder), str(out)], check=True, env={**os.environ, "PYTHON": sys.executable})
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


@pytest.fixture(scope="session")
def everything(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """All distributions."""
    return install(tmp_path_factory.mktemp("everything"), list(wheels.values()))


@pytest.fixture(scope="session")
def no_lab(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What a node of a cluster has."""
    return install(tmp_path_factory.mktemp("node"), [wheel for name, wheel in wheels.items() if name != "kvcast_lab"])


@pytest.fixture(scope="session")
def client_only(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What an engine's environment has."""
    return install(tmp_path_factory.mktemp("client"), [wheels["kvcast_client"]])
