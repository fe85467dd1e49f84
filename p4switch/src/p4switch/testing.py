"""A running switch for a test, in one line.

    from p4switch.testing import memory_switch

    def test_my_program():
        with memory_switch("l2.p4", ports=4) as switch:
            switch.send(1, frame)
            assert switch.expect(2) == frame
            connect_my_controller(switch.address)       # P4Runtime, 127.0.0.1, a port of its own

Ports are memory: no interfaces, no privileges. With pytest, `pytest_plugins = ["p4switch.testing"]` in conftest.py
gives the fixture `p4switch_factory`, which takes the same arguments and stops what it started.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from p4switch.device_config import ProgramSource
from p4switch.ports import Memory, PortOptions, PortSpec
from p4switch.recirculation import Recirculation
from p4switch.switch import Switch, SwitchOptions

EXPECT_TIMEOUT_S = 5.0
"""How long `expect` waits: generous, because a loaded machine is slow; it returns as soon as the frame is there."""

POLL_S = 0.001


class TestSwitch:
    """A switch with memory ports, and helpers to send and to expect."""

    __test__ = False

    def __init__(self, switch: Switch, ports: Sequence[int]) -> None:
        self.switch = switch
        self.ports = tuple(ports)
        self._arrived: dict[int, deque[bytes]] = defaultdict(deque)

    @property
    def address(self) -> str:
        """HOST:PORT of the P4Runtime server."""
        return self.switch.address

    @property
    def device_id(self) -> int:
        """The P4Runtime device id."""
        return self.switch.options.device_id

    def send(self, port: int, frame: bytes) -> None:
        """A frame arrives on a port."""
        self.switch.runtime.inject(port, frame)

    def expect(self, port: int, timeout_s: float = EXPECT_TIMEOUT_S) -> bytes:
        """The next frame that leaves through a port. Raises AssertionError when none does in time."""
        deadline = time.monotonic() + timeout_s
        while not self._arrived[port]:
            self._collect()
            if not self._arrived[port]:
                if time.monotonic() > deadline:
                    others = {p: len(frames) for p, frames in self._arrived.items() if frames}
                    raise AssertionError(f"no frame left port {port} within {timeout_s} s; waiting elsewhere: {others}")
                time.sleep(POLL_S)
        return self._arrived[port].popleft()

    def take_all(self, *, settled_after: int) -> dict[int, list[bytes]]:
        """Everything that left, by port, once the switch has processed `settled_after` frames in its life.

        Raises AssertionError when that takes too long. Counting what went in makes "nothing came out" certain
        without waiting for it.
        """
        deadline = time.monotonic() + EXPECT_TIMEOUT_S
        while (processed := self.switch.runtime.stats().processed) < settled_after:
            if time.monotonic() > deadline:
                raise AssertionError(f"the switch has processed {processed} of {settled_after} frames")
            time.sleep(POLL_S)
        self._collect()
        taken = {port: list(frames) for port, frames in self._arrived.items() if frames}
        self._arrived.clear()
        return taken

    def command(self, *lines: str) -> str:
        """Commands of simple_switch_CLI, as `table_add dmac forward 0x020000000002 => 2`; what they print.

        Raises AssertionError when the switch refuses one.
        """
        from p4switch.bmv2.client import Client, RefusedError
        from p4switch.bmv2.commands import Commands

        said: list[str] = []
        with Client(self.address, self.device_id) as client:
            commands = Commands(client, said.append)
            for line in lines:
                try:
                    commands.run(line.split())
                except RefusedError as refused:
                    raise AssertionError(f"{line}: {refused}") from refused
        return "\n".join(said)

    def _collect(self) -> None:
        for port, frame in self.switch.runtime.collect():
            self._arrived[port].append(frame)


@contextlib.contextmanager
def memory_switch(
    program: str | Path | None = None,
    *,
    ports: int | Sequence[int] = 4,
    defines: Mapping[str, str] | None = None,
    include_dirs: Sequence[Path] = (),
    device_id: int = 1,
    cpu_port: int | None = 255,
    flood_group: int | None = None,
    port_options: Mapping[int, PortOptions] | None = None,
    trace: bool = False,
    recirculation: Recirculation | None = None,
) -> Iterator[TestSwitch]:
    """A running switch with memory ports 1..n (or those listed) and a P4Runtime server.

    `recirculation` is for TNA programs: which ports lead back to ingress, how fast, and how much may wait there.
    `trace` prints what happens to each packet; pytest shows that when a test fails.
    `program` is a path, P4 source text (anything with a newline), or None when a controller brings it. Raises
    SwitchError with the compiler's diagnostics.
    """
    source = None
    if program is not None and "\n" in str(program):
        source = ProgramSource(main="program.p4", files={"program.p4": str(program)}, defines=dict(defines or {}))
    elif program is not None:
        source = ProgramSource(Path(program), defines=dict(defines or {}), include_dirs=tuple(include_dirs))
    numbers = range(1, ports + 1) if isinstance(ports, int) else ports
    options = SwitchOptions(
        program=source,
        ports=tuple(PortSpec(number, Memory()) for number in numbers),
        port_options=dict(port_options or {}),
        device_id=device_id,
        cpu_port=cpu_port,
        flood_group=flood_group,
        trace=trace,
        recirculation=recirculation or Recirculation(),
    )
    with Switch(options) as switch:
        yield TestSwitch(switch, list(numbers))


try:
    import pytest
except ImportError:  # only the fixture needs it
    pass
else:

    @pytest.fixture
    def p4switch_factory() -> Iterator[Callable[..., TestSwitch]]:
        """Starts switches: `p4switch_factory("l2.p4", ports=4)`; arguments as for memory_switch."""
        with contextlib.ExitStack() as started:
            yield lambda *args, **kwargs: started.enter_context(memory_switch(*args, **kwargs))
