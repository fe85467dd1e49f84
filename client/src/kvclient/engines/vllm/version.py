"""Which vLLM this connector is made for. Knows nothing of vLLM itself, so that the answer never depends on it."""

from __future__ import annotations

import re
from typing import Final

from kvclient.engines.settings import SettingsError

OLDEST: Final = (0, 32)
NEWEST: Final = (0, 33)
UNTESTED_VARIABLE: Final = "KVCAST_UNTESTED_VLLM"
"""Set to 1, it lets any version pass."""


def check_version(version: str, *, untested: bool = False) -> None:
    """Raises SettingsError, one line, for a vLLM whose connector interface is not known to be ours.

    `untested`: let it pass nevertheless.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    made_for = numbers is not None and OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST
    if not made_for and not untested:
        known = " and ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
        raise SettingsError(
            f"kvcast works with vLLM {known}, and this is {version}: install one of those, or set "
            f"{UNTESTED_VARIABLE}=1 to try it nevertheless"
        )
