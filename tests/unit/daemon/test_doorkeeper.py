"""The doorkeeper of gRPC's ports. p4switch stands alone, so that it brings the same file; its tests are there."""

from __future__ import annotations

from pathlib import Path

import kvdaemon.doorkeeper
import p4switch.server.doorkeeper


def test_both_have_the_same() -> None:
    ours, theirs = (Path(module.__file__ or "") for module in (kvdaemon.doorkeeper, p4switch.server.doorkeeper))
    assert ours.read_text() == theirs.read_text()
