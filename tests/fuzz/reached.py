"""Which lines of the product an input reaches: inputs that reach new ones are kept and mutated further."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PRODUCT = tuple(
    f"{ROOT / folder}/"
    for folder in (
        "client/src",
        "kvproto/src",
        "p4switch/src",
        "kvpolicy",
        "kvdaemon",
        "controlplane",
        "hostagent",
        "planner",
    )
)


class Reached:
    """While it is entered, lines of the product that this thread runs are counted once. Tracing slows Python several
    times over, so the runner looks at some inputs only."""

    def __init__(self) -> None:
        self._lines: set[tuple[CodeType, int]] = set()
        self._before: Any = None

    def __len__(self) -> int:
        return len(self._lines)

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        threading.settrace(self._called)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        sys.settrace(self._before)
        threading.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PRODUCT) else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._lines.add((frame.f_code, frame.f_lineno))
        return self._line
