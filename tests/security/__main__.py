"""`make test-security`: all of tests/security, and every test that the table of attacks names."""

from __future__ import annotations

import sys

import pytest

from tests.security.table import named_tests


def main() -> int:
    """pytest's exit status."""
    elsewhere = [test for test in named_tests() if not test.startswith("tests/security/")]
    return int(pytest.main(["-m", "not wheels", *sys.argv[1:], "tests/security", *elsewhere]))


if __name__ == "__main__":
    raise SystemExit(main())
