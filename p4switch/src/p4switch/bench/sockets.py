"""Ways to send frames through a packet socket, side by side (sockets.c): why the switch sends by plain sendmmsg."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

from p4switch.bench.packets import Measurement, ethernet, mac
from p4switch.bench.wire import SIZES, namespace
from p4switch.build import build_shared_object
from p4switch.errors import SwitchError

_BYPASS, _RING = 1, 2
_WAYS = {
    "sendmmsg": 0,
    "sendmmsg, PACKET_QDISC_BYPASS": _BYPASS,
    "PACKET_TX_RING": _RING,
    "PACKET_TX_RING, PACKET_QDISC_BYPASS": _RING | _BYPASS,
}
FRAMES = 200_000
"""Sent in each round and each way."""
_ROUNDS = 3


def sending() -> Iterator[Measurement]:
    """Each way for each size of frame, the least of some rounds; includes the work of the far end of the veth pair.

    Raises:
        SwitchError: there are no rights to make a namespace.
    """
    library = ctypes.CDLL(str(build_shared_object("sockets", [Path(__file__).parent / "sockets.c"])))
    send = library.bench_send
    send.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
    send.restype = ctypes.c_double
    with namespace():
        for size in SIZES:
            frame = ethernet(mac(2), size)
            rounds = [[send(b"sw1", way, frame, size, FRAMES) for way in _WAYS.values()] for _ in range(_ROUNDS)]
            first: Measurement | None = None
            for name, ns in zip(_WAYS, map(min, zip(*rounds, strict=True)), strict=True):
                if not ns:
                    raise SwitchError(f"this kernel cannot send by {name}")
                ratio = ("", 0.0) if first is None else (first.name, first.ns_per_packet / ns)
                figure = Measurement(f"veth, sending {size} B, {name}", 1e9 / ns, ns, *ratio)
                yield figure
                first = first or figure
