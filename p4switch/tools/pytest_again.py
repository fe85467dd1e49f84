"""pytest for CI: what fails is run once more, alone and one after the other; what passes only then is named.

A test that depends on chance or on a machine's speed must not stop what is otherwise right, and must not stay unseen:
each such test is printed as FLAKY, at the end, to be mended. A test that fails twice fails. Takes pytest's arguments
and ends as pytest does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

AGAIN_MAX = 20
"""Of more failures at once none is chance."""


def run(*arguments: str) -> int:
    """pytest's exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def main(arguments: list[str]) -> int:
    """The exit code of the run, or of the second one of what failed."""
    with tempfile.TemporaryDirectory(prefix="pytest-again-") as cache:
        code = run("-o", f"cache_dir={cache}", *arguments)
        failed = Path(cache) / "v/cache/lastfailed"
        if code != 1 or not failed.exists():
            return code
        names = sorted(json.loads(failed.read_text()))
        if len(names) > AGAIN_MAX:
            return code
        print(f"\n{len(names)} failed; once more, alone:", flush=True)
        code = run("-p", "no:cacheprovider", "-m", "", *names)
    if code == 0:
        print("\n".join(f"FLAKY {name}" for name in names), flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
