"""What operators see of a soak: `kvcast ls`, `kvcast top` and the live page's stream. Prints what was wrong with it, as
a list in JSON: a command that fails, a character that a terminal obeys, no namespace of the load in sight."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

from kvproto.printable import printable
from tests.soak.labels import LABELS, obeyed
from tests.soak.load import DEADLINE_S
from tests.terminals import on_a_terminal

HANGS_S: Final = 180.0
"""A busy machine takes a minute to start a command."""
_NAMED: Final = [label for label in LABELS if label]


def command_problems(words: list[str], controller: str) -> list[str]:
    """Of a command on a terminal without colours: whatever such a terminal obeys, a name has brought."""
    what = f"kvcast {' '.join(words)}"
    try:
        status, said = on_a_terminal([*words, "--controller", controller], kind="dumb", hangs_s=HANGS_S)
    except subprocess.TimeoutExpired:
        return [f"{what} did not end in {HANGS_S:.0f} s"]
    return [*status_problems(what, status, said), *text_problems(what, said)]


def status_problems(what: str, status: int, said: str) -> list[str]:
    """Whether a command broke."""
    if status == 0 and "Traceback" not in said:
        return []
    return [f"{what} ended with status {status}: {printable(said[-300:])}"]


def text_problems(what: str, said: str) -> list[str]:
    """Whether something got out."""
    return [f"{what} lets {printable(one)} out" for one in sorted(obeyed(said))]


def live_problems(pages: str) -> list[str]:
    """Of the first look of the live page's stream."""
    request = urllib.request.Request(f"http://{pages}/live", headers={"Accept": "text/event-stream"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as stream:
        for line in stream:
            if line.startswith(b"data:"):
                text = line.decode().removeprefix("data:").strip()
                names = {one for one in _strings(json.loads(text)) if one in _NAMED}
                return text_problems("/live", text) + ([] if names else ["/live names no namespace of the load"])
    return ["/live ended before it said anything"]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def main() -> int:
    """Entry point: the controller's address, and that of its pages."""
    controller, pages = sys.argv[1:]
    found = command_problems(["ls", "--limit", "0"], controller)
    found += command_problems(["top", "--once"], controller)
    found += live_problems(pages)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
