"""vLLM's NIXL connector on a machine that plays several hosts.

A NIXL agent has a thread that polls without pause, and vLLM's connector binds the thread that makes it to one core, as
if only transfers ran there. A host with cores to spare does not mind. Here such threads would take the cores from
engines that compute, so they run when nothing else does.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector


class YieldingNixlConnector(NixlConnector):  # type: ignore[misc]
    """NixlConnector, whose own threads yield."""

    def __init__(self, *args: Any, **more: Any) -> None:
        """As NixlConnector's."""
        cores, before = os.sched_getaffinity(0), _threads()
        super().__init__(*args, **more)
        os.sched_setaffinity(0, cores)
        for thread in _threads() - before:
            os.sched_setaffinity(thread, cores)
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def _threads() -> set[int]:
    """Of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")}
