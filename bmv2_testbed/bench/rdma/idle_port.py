"""A port of a NIC that does at once, and at no cost, whatever it is asked to send or to read (idle_nic.c)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import PortFacts, RdmaPort, gid_of
from p4switch.build import build_shared_object

IDLE_NUMBER = 7
"""Of all its queue pairs."""
_ENTRIES = 4096
ADDRESS = "10.75.0.2"


def idle_nic() -> ctypes.CDLL:
    """Its functions. Raises BuildError."""
    return ctypes.CDLL(str(build_shared_object("idle_nic", [Path(__file__).with_name("idle_nic.c")])))


class IdlePort(RdmaPort):
    """One is in use at a time; it has one completion queue that tells of sends and READs, `batch` at once."""

    def __init__(self, batch: int) -> None:
        """Raises BuildError."""
        self._nic = nic = idle_nic()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)
        nic.idle_sends_begin(self._fd, IDLE_NUMBER, batch)
        names = {"poll_cq": "idle_poll_sends", "req_notify_cq": "idle_arm_sends", "post_send": "idle_post_send"}
        pointers = {field: ctypes.cast(getattr(nic, name), ctypes.c_void_p) for field, name in names.items()}
        pointers["post_recv"] = ctypes.cast(nic.idle_post_receive, ctypes.c_void_p)
        self._context = abi.Context(**pointers)
        facts = PortFacts("idle0", 1, 0, gid_of(ADDRESS), 4096, 16, _ENTRIES, _ENTRIES, True)
        super().__init__(self._calls(), ctypes.addressof(self._context), facts)

    def close(self) -> None:
        """Give it back."""
        super().close()
        os.close(self._fd)

    def _calls(self) -> Any:
        """What is left of libibverbs: things are made and ended, and nothing is behind them."""
        pair = abi.QueuePairStruct(qp_num=IDLE_NUMBER)
        channel = abi.CompChannelStruct(fd=self._fd)
        region = abi.MemoryRegionStruct(lkey=1, rkey=1)
        made = {
            "ibv_create_comp_channel": ctypes.pointer(channel),
            "ibv_create_qp": ctypes.pointer(pair),
            "ibv_reg_mr": ctypes.pointer(region),
            **dict.fromkeys(("ibv_alloc_pd", "ibv_create_cq", "ibv_create_ah"), 1),
        }
        done = (
            *("ibv_dealloc_pd", "ibv_close_device", "ibv_dereg_mr", "ibv_destroy_comp_channel", "ibv_destroy_cq"),
            *("ibv_modify_qp", "ibv_destroy_qp", "ibv_destroy_ah"),
        )
        calls = {name: (lambda *_, thing=thing: thing) for name, thing in made.items()}
        calls |= {name: (lambda *_: 0) for name in done}
        event = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 3, use_errno=True)
        calls["ibv_get_cq_event"] = ctypes.cast(self._nic.idle_get_event, event)
        calls["ibv_ack_cq_events"] = self._nic.idle_acknowledge
        return SimpleNamespace(**calls)
