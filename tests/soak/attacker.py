"""A host that lies, with raw frames on its data interface: as the member that it is, or as the stranger that it is."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable, Iterator
from random import Random

from bmv2_testbed.configs import DATA_INTERFACE
from kvdaemon.notify import notify
from tests.dataplane.frames import Control, Flag, Host, Op, Segment, arp_request, control_frame, ethernet, here_frame
from tests.fuzz.mutation import mutated_bytes
from tests.soak.load import CHUNK_BYTES, SEGMENT_BYTES, Clock

_SEGMENTS = CHUNK_BYTES // SEGMENT_BYTES
_LEADS = 0x8000
ETHERNET_BYTES = 14
LOCAL_EXPERIMENT = 0x88B5
"""IEEE 802, clause 9.2.4: a type for trials."""
Frames = Callable[[Random, Host, Host, bytes], bytes]


def _garbage(random: Random, sender: Host, _victim: Host, key: bytes) -> bytes:
    return Segment(sender, key, random.randrange(_SEGMENTS), _SEGMENTS, random.randbytes(SEGMENT_BYTES)).frame()


def _spoofed_garbage(random: Random, _sender: Host, victim: Host, key: bytes) -> bytes:
    return _garbage(random, victim, victim, key)


def _fill(random: Random, sender: Host, _victim: Host, key: bytes) -> bytes:
    segment = Segment(sender, key, random.randrange(_SEGMENTS), _SEGMENTS, random.randbytes(SEGMENT_BYTES))
    return segment.fill_frame(sender=sender)


def _said(op: Op, *, spoofed: bool = False, **fields: int) -> Frames:
    def frame(random: Random, sender: Host, victim: Host, key: bytes) -> bytes:
        control = Control(op, key, segments=_SEGMENTS, **fields)
        other = Host(1 + random.randrange(6))
        return control_frame(victim if spoofed else sender, control, other)

    return frame


def _noise(random: Random, sender: Host, victim: Host, key: bytes) -> bytes:
    make = random.choice((_garbage, _said(Op.JOIN), _said(Op.GET, count=1), _here))
    frame = make(random, sender, victim, key)
    for _ in range(random.randrange(1, 4)):
        frame = mutated_bytes(random, frame)
    return frame[:9000].ljust(60, b"\0")


def _here(_random: Random, sender: Host, _victim: Host, key: bytes) -> bytes:
    return here_frame(sender, key)


def _arp(_random: Random, sender: Host, victim: Host, _key: bytes) -> bytes:
    return arp_request(Host(sender.port), victim.ip)[:22] + sender.mac + victim.ip + arp_request(sender, victim.ip)[32:]


KINDS: dict[str, Frames] = {
    "garbage segments": _garbage,
    "garbage segments in the holder's name": _spoofed_garbage,
    "forged FILLs": _fill,
    "forged NOTICEs": _said(Op.NOTICE, spoofed=True, flags=Flag.JOINED, members=0xFF),
    "forged NAKs": _said(Op.NAK, spoofed=True),
    "JOINs that lead": _said(Op.JOIN, tag=_LEADS),
    "GETs of whole chunks": _said(Op.GET, count=_SEGMENTS, flags=Flag.ONLY_ME),
    "LEAVEs in others' names": _said(Op.LEAVE, spoofed=True),
    "ARP in others' names": _arp,
    "noise": _noise,
}


def harmless(frames: Iterator[bytes], port: int) -> Iterator[bytes]:
    """Frames as large as those, of a type that nobody takes, to a host whose place the switch knows."""
    sender, receiver = Host(port), Host(1 + port % 2)
    for frame in frames:
        yield ethernet(sender.mac, receiver.mac, bytes(len(frame) - ETHERNET_BYTES), LOCAL_EXPERIMENT)


def frames(kind: str, clock: Clock, port: int, seed: int, now_s: Callable[[], float]) -> Iterator[bytes]:
    """Frames of a kind without end, about chunks that are fetched at this moment."""
    random, make = Random(seed), KINDS[kind]
    while True:
        key = random.choice(random.choice(clock.window(now_s())).chunk_keys())
        yield make(random, Host(port), Host(1 + random.randrange(clock.hosts)), key)


def main() -> int:
    """Entry point: send for a while, and say how much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    for name in ("--began", "--seconds", "--rate"):
        parser.add_argument(name, type=float, required=True)
    for name in ("--seed", "--hosts", "--port"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--harmless", action="store_true", help="as many frames, as large, that mean nothing")
    args = parser.parse_args()
    clock = Clock(args.began, args.seed, args.hosts)
    sent, began_s = 0, time.monotonic()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind((DATA_INTERFACE, 0))
        made = frames(args.kind, clock, args.port, args.seed, time.monotonic)
        for frame in harmless(made, args.port) if args.harmless else made:
            ahead_s = began_s + sent / args.rate - time.monotonic()
            if time.monotonic() - began_s >= args.seconds:
                break
            if ahead_s > 0:
                time.sleep(ahead_s)
            link.send(frame)
            sent += 1
            if sent == 1:
                notify("READY=1")
    print(sent)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
