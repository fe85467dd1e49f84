"""An input that broke something, as a file that replays it."""

from __future__ import annotations

import hashlib
import json
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.reached import PRODUCT
from tests.fuzz.target import Case


class HungError(BaseException):
    """An input took longer than its target allows; no product code catches this."""


@dataclass(frozen=True, slots=True)
class Crash:
    """What was done, and what came of it."""

    target: str
    seed: int
    number: int
    """Of the input in its run."""
    error: str
    steps: Case

    def save(self, folder: Path) -> Path:
        """Write it; the file's name is made of the target's and of what went wrong."""
        folder.mkdir(parents=True, exist_ok=True)
        last = self.error.strip().splitlines()[-1]
        path = folder / f"{self.target}-{hashlib.blake2b(last.encode(), digest_size=4).hexdigest()}.json"
        fields = {
            "target": self.target,
            "seed": self.seed,
            "number": self.number,
            "error": self.error.splitlines(),
            "steps": [step.hex() for step in self.steps],
        }
        path.write_text(json.dumps(fields, indent=1) + "\n")
        return path


def load(path: Path) -> tuple[str, Case]:
    """(target's name, steps) of a file that `Crash.save` wrote."""
    fields = json.loads(path.read_text())
    return fields["target"], [bytes.fromhex(step) for step in fields["steps"]]


def what(error: BaseException) -> str:
    """The whole story of an error, its kind and text last."""
    return "".join(traceback.format_exception(error))


def place_of(error: BaseException) -> tuple[str, str]:
    """(kind of error, where in the product it was raised): two crashes with the same are one defect."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(PRODUCT):
            place = f"{frame.filename}:{frame.lineno}"
    text = str(error) if isinstance(error, AssertionError) else ""
    return f"{type(error).__name__} {text[:60]}", place
