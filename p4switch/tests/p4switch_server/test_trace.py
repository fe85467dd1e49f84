"""`--trace` when nobody reads it any more."""

from __future__ import annotations

from pathlib import Path

from p4switch import runtime
from p4switch.device_config import ProgramSource
from p4switch.native_target import NativeTarget

PROGRAM = Path(__file__).parent / "learning.p4"
FRAME = bytes.fromhex("ffffffffffff020000000001") + b"\x88\xb5" + bytes(46)


def test_the_switch_goes_on_without_a_reader(monkeypatch):
    lines: list[str] = []

    def broken(line: str, *, flush: bool) -> None:
        lines.append(line)
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("builtins.print", broken)
    with runtime.Switch(runtime.SwitchConfig(virtual_clock=True, trace=True)) as switch:
        switch.add_memory(1)
        target = NativeTarget(switch, has_cpu_port=False, traces=True)
        target.commit(target.prepare(target.compile(ProgramSource(PROGRAM).envelope(), pushed=False)))
        for _ in range(2):
            switch.inject(1, FRAME)
            target.events(0)
    assert lines == [f"port 1: received, {len(FRAME)} bytes"]
