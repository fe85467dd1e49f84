"""`make test-security`: all of tests/security, and every test that the table of attacks names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.security.table import ROOT, named_tests

P4SWITCH = "p4switch/"
"""Its tests have a configuration of their own, so they run in a process of their own."""


def main() -> int:
    """pytest's exit status."""
    elsewhere = [test for test in named_tests() if not test.startswith("tests/security/")]
    of_the_switch = [test.removeprefix(P4SWITCH) for test in elsewhere if test.startswith(P4SWITCH)]
    ours = [test for test in elsewhere if not test.startswith(P4SWITCH)]
    words = sys.argv[1:]
    status = int(pytest.main(["-m", "not wheels", *words, "tests/security", *ours]))
    switch = subprocess.run([sys.executable, "-m", "pytest", *words, *of_the_switch], cwd=ROOT / P4SWITCH, check=False)
    return status or switch.returncode


if __name__ == "__main__":
    raise SystemExit(main())
