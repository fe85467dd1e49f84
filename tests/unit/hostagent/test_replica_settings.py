"""How much of the directory an agent keeps, as its file says it."""

from __future__ import annotations

from typing import Any

import pytest

from hostagent import limits
from hostagent.config import parse
from hostagent.configured import core_options
from kvdaemon.errors import ConfigError


def options(**controller: Any) -> tuple[int, bool]:
    made = core_options(parse({"data": {"address": "10.0.0.1"}, "controller": controller}))
    return made.replica_bytes, made.follows_at_once


def test_the_whole_directory_while_it_is_small_a_part_or_all_of_it() -> None:
    assert options() == options(replica_bytes="auto") == (limits.REPLICA_BYTES_MAX, False)
    assert options(replica_bytes="16 MiB") == (16 << 20, True)
    assert options(replica_bytes=0) == (0, True)


def test_anything_else_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"controller\.replica_bytes"):
        options(replica_bytes="some")
