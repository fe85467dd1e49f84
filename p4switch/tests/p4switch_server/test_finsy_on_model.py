"""finsy, unchanged, against the server over the model pipeline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import finsy as fy
import pytest


@pytest.fixture
def options(tmp_path: Path, model_p4info_text: str) -> fy.SwitchOptions:
    path = tmp_path / "model.p4info.txtpb"
    path.write_text(model_p4info_text)
    return fy.SwitchOptions(p4info=path, p4blob=path)


def _entry(table: str, match: dict[str, object], port: int, **more: object) -> fy.P4TableEntry:
    action = fy.P4TableAction("forward", port=port, mac="02:00:00:00:00:01")
    return fy.P4TableEntry(table, match=fy.P4TableMatch(match), action=action, **more)  # type: ignore[arg-type]


def test_finsy_sets_a_pipeline_and_writes_what_it_reads(model_switch, options):
    async def scenario() -> list[fy.P4TableEntry]:
        async with fy.Switch("s", model_switch.address, options) as switch:
            await switch.insert([_entry("ipv4", {"dst": "10.0.0.0/8"}, 1), _entry("ipv4", {"dst": "10.1.0.0/16"}, 2)])
            await switch.modify([_entry("ipv4", {"dst": "10.0.0.0/8"}, 3)])
            return [e async for e in switch.read([fy.P4TableEntry("ipv4")])]

    entries = asyncio.run(asyncio.wait_for(scenario(), 20))
    assert {e.match["dst"]: e.action.args["port"] for e in entries} == {(0x0A000000, 8): 3, (0x0A010000, 16): 2}
