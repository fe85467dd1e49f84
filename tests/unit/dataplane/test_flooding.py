"""What the data plane does before a controller comes: it is a switch, without a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.core.switch.bitmap_groups import FLOOD_GROUP as TOFINO_FLOOD_GROUP
from controlplane.core.switch.entries import FLOOD_GROUP
from p4switch.compiler import compile_to_ir
from p4switch.native_target import flood_group_of
from p4switch.testing import memory_switch

P4 = Path(__file__).parents[3] / "p4"
SMALL = {"SLOTS": "64", "SEGMENT_BYTES": "256"}
PROGRAMS = {"v1model": FLOOD_GROUP, "tna": TOFINO_FLOOD_GROUP}


@pytest.mark.parametrize("architecture", PROGRAMS)
def test_unknown_addresses_reach_every_other_port(architecture: str) -> None:
    frame = bytes.fromhex("ffffffffffff 020000000001 88b5") + bytes(46)
    with memory_switch(P4 / architecture / "kvcast.p4", ports=4, defines=SMALL) as switch:
        switch.send(1, frame)
        assert switch.take_all(settled_after=1) == {port: [frame] for port in (2, 3, 4)}


@pytest.mark.parametrize("architecture", PROGRAMS)
def test_program_and_controller_mean_the_same_group(architecture: str) -> None:
    program, _ = compile_to_ir(P4 / architecture / "kvcast.p4", SMALL)
    assert flood_group_of(program) == PROGRAMS[architecture]
