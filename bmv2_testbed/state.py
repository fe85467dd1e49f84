"""Which testbeds run in the background: one small file each, under the user's runtime directory."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bmv2_testbed.errors import TestbedError

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


@dataclass(frozen=True, slots=True)
class Background:
    """A testbed that `up` left running."""

    name: str
    supervisor_pid: int
    supervisor_start_ticks: int
    pid: int
    directory: str

    @property
    def alive(self) -> bool:
        """Whether that very process still runs (a process id alone may have been given away again)."""
        return start_ticks(self.supervisor_pid) == self.supervisor_start_ticks


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none. Source: /proc/PID/stat field 22."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _directory() -> Path:
    """Raises TestbedError where it is somebody else's: a file written or believed there would be theirs."""
    from p4switch.errors import SwitchError  # only where a testbed is asked for: `--help` needs no switch
    from p4switch.own_folder import own_folder

    shared = "/run" if os.geteuid() == 0 else tempfile.gettempdir()
    try:
        return own_folder(Path(os.environ.get("XDG_RUNTIME_DIR") or shared) / f"kvcast-testbeds-{os.geteuid()}")
    except SwitchError as error:
        raise TestbedError(f"{error}; remove it, or name a folder of your own as XDG_RUNTIME_DIR") from error


def _file(name: str) -> Path:
    if _NAME.fullmatch(name) is None:
        raise TestbedError(f"testbed name {name!r} is not 1 to 32 of a-z, 0-9 and -")
    return _directory() / f"{name}.json"


def save(testbed: Background) -> None:
    """Remember a testbed."""
    _file(testbed.name).write_text(json.dumps(asdict(testbed)))


def load(name: str) -> Background | None:
    """The testbed of that name if it runs; forgets it if it does not."""
    path = _file(name)
    try:
        found = Background(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError):
        forget(name)
        return None
    if not found.alive:
        forget(name)
        return None
    return found


def forget(name: str) -> None:
    """Forget a testbed."""
    _file(name).unlink(missing_ok=True)


def names() -> list[str]:
    """Names of the testbeds that run."""
    known = sorted(path.stem for path in _directory().glob("*.json"))
    return [name for name in known if load(name) is not None]
