"""The admin socket of kvcast-switch: faults, shaping, port statistics, reload. One line of JSON each way."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.spec import Faults

_TIMEOUT_S = 20.0


class SwitchAdmin:
    """Asks a switch process on this machine; a connection per question, so that a switch that restarted is no issue."""

    def __init__(self, path: str) -> None:
        self._path = path

    def set_faults(self, port: int | None, faults: Faults, seed: int) -> None:
        """Hurt the frames that leave a port (None: every port)."""
        self._ask(
            op="faults",
            port=port,
            direction="tx",
            loss=faults.loss,
            duplicate=faults.duplicate,
            reorder=faults.reorder,
            corrupt=faults.corrupt,
            delay_us=round(faults.delay_ms * 1000),
            seed=seed,
        )

    def set_shape(self, port: int, rate_bit_s: int, burst_bytes: int, queue_bytes: int) -> None:
        """Shape what leaves a port."""
        self._ask(op="shape", port=port, rate_bits=rate_bit_s, burst_bytes=burst_bytes, queue_bytes=queue_bytes)

    def port_statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """Counters by port number (as text)."""
        ports: Mapping[str, Mapping[str, Any]] = self._ask(op="stats")["ports"]
        return ports

    def reload(self) -> None:
        """Start the same program with empty tables and registers."""
        self._ask(op="reload")

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
        if "error" in answer:
            raise TestbedError(f"the switch: {answer['error']}")
        return answer
