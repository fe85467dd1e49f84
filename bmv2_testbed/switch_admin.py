"""The admin socket of kvcast-switch: options of ports, statistics, loading a program. One line of JSON each way."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import shaper_burst_bytes, shaper_queue_bytes
from bmv2_testbed.spec import Faults

_TIMEOUT_S = 20.0


def port_options(faults: Faults, rate_bit_s: int | None, seed: int) -> dict[str, str]:
    """Options of one switch port, in kvcast-switch's words: what happens to the frames that leave it."""
    options: dict[str, str] = {}
    for name in ("loss", "duplicate", "reorder", "corrupt"):
        probability = getattr(faults, name)
        if probability:
            options[name] = str(probability)
    if faults.delay_ms:
        options["delay"] = f"{round(faults.delay_ms * 1000)}us"
    if options:
        options["seed"] = str(seed)
    if rate_bit_s is not None:
        options |= {
            "rate": f"{rate_bit_s}bit",
            "burst": f"{shaper_burst_bytes(rate_bit_s)}b",
            "queue": f"{shaper_queue_bytes(rate_bit_s)}b",
        }
    return options


class SwitchAdmin:
    """Asks a switch process on this machine; one connection per question, so that a restarted switch does no harm."""

    def __init__(self, path: str) -> None:
        self._path = path

    def set_port(self, port: int, options: Mapping[str, str]) -> None:
        """Give a port these options (see `port_options`) in place of all it had."""
        self._ask(op="set_port", port=port, options=dict(options))

    def port_statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """Counters by port number (as text)."""
        ports: Mapping[str, Mapping[str, Any]] = self._ask(op="stats")["ports"]
        return ports

    def load(self, program: str, defines: Mapping[str, str]) -> None:
        """Load a program; its tables and registers are empty, as after a reboot."""
        self._ask(op="load", path=program, defines=dict(defines))

    def _ask(self, **question: Any) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(self._path)
                connection.sendall(json.dumps(question).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    line = answers.readline()
        except OSError as error:
            raise TestbedError(f"the switch does not answer: {error}") from error
        if not line:
            raise TestbedError(f"the switch closed the connection at {question['op']}")
        answer: dict[str, Any] = json.loads(line)
        if not answer.get("ok"):
            raise TestbedError(f"the switch: {answer['error']}")
        return answer
