"""Waiting for what the interfaces of a testbed count."""

from __future__ import annotations

import time

from bmv2_testbed.client import Testbed

POLL_S = 0.005


def await_traffic(
    testbed: Testbed, host: str, *, received_bytes: int = 0, sent_bytes: int = 0, timeout_s: float
) -> None:
    """Wait until a host's data interface has received and sent that many bytes since the run began.

    No event announces that counters changed, so this polls.
    """
    give_up_s = time.monotonic() + timeout_s
    while True:
        counters = testbed.counters()[host]
        if counters.rx_bytes >= received_bytes and counters.tx_bytes >= sent_bytes:
            return
        assert time.monotonic() < give_up_s, f"{host}: {counters}, not {received_bytes} received, {sent_bytes} sent"
        time.sleep(POLL_S)
