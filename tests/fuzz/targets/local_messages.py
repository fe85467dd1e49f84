"""The local protocol's codec at both ends: frames of an engine at the agent, frames of an agent at an engine."""

from __future__ import annotations

import struct
from random import Random
from typing import ClassVar

from kvchunk.parts import ByteRange
from kvchunk.sources import ChunkSource
from kvclient import messages
from kvclient.messages import FetchedChunk, FetchedParts, Frame, FrameReader, Kind, MalformedFrameError, Status
from kvclient.terms import FetchTerms
from tests.fuzz.target import Case, check

KEYS = [bytes((number,)) * messages.KEY_BYTES for number in range(8)]
WORDS = (*KEYS, bytes(16), b"\xff" * 8, b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"\x00\x04\x00\x00")


def request_frame(random: Random) -> bytes:
    """A request as an engine sends it, sometimes with numbers that no engine sends."""
    keys = random.choices(KEYS, k=random.choice((0, 1, 2, 5)))
    lease, request = random.choice((0, 1, 2, 3, 4, 1 << 63)), random.randrange(1 << 32)
    status, count = 0, len(keys)
    kind = random.choice([kind for kind in Kind if kind is not Kind.WELCOME])
    match kind:
        case Kind.RESERVE:
            size_bytes = random.choice((0, 1, 4096, 65536, 1 << 20, 1 << 40))
            parent, position = random.choice((*KEYS, messages.NO_KEY)), random.choice((0, 1, 7, messages.NO_POSITION))
            label = random.choice((b"", b"llama", b"\xff", b"x" * 300))
            count, body = 0, messages.RESERVE.pack(random.choice(KEYS), parent, size_bytes, position) + label
        case Kind.COMMIT:
            count, body = 0, messages.COMMIT.pack(lease, random.choice((0, 0, 4096, 1 << 20, 1 << 63, (1 << 64) - 1)))
        case Kind.FETCH_EACH:
            body = messages.FETCH_EACH.pack(random.choice((0, 1000, 50_000, 1 << 63))) + messages.pack_keys(keys)
        case Kind.FETCH_PARTS:
            sizes = (0, 1, 4096, 1 << 40)
            ranges = [ByteRange(4096 * at, random.choice(sizes)) for at in range(random.randrange(4))]
            body = messages.pack_fetch_parts(keys, ranges, random.choice((0.0, 0.001, 0.05)))
        case Kind.LOCK:
            body = messages.LOCK.pack(random.choice((0, 1000, 1 << 63))) + messages.pack_keys(keys)
        case Kind.ABORT | Kind.RELEASE:
            count, body = 0, messages.LEASE.pack(lease)
        case Kind.FETCH | Kind.FETCH_STREAM:
            deadline_s = random.choice((0.0, 0.001, 0.05, 1e6))
            share = random.choice((0.0, 0.5, 1.0, -1.0, float("nan"), float("inf")))
            recompute_s = random.choice((None, 0.0, 0.01, 1e6))
            terms = FetchTerms(recompute_s=recompute_s, queue_s=0.1, attention_share=share, behind=1)
            terms["expected_s"] = random.choice((0.0, 0.01, 1e6))
            body = messages.pack_fetch(keys, deadline_s, terms)
            trace = messages.pack_traceparent(random.choice((None, WORDS[-2].decode(), "é", "x" * 100)))
            body, status = body + trace, len(trace)
        case Kind.HINT:
            body = messages.HINT.pack(random.randrange(4), random.randrange(1 << 32)) + messages.pack_keys(keys)
        case Kind.WARM:
            sizes = random.choice((0, 4096, (1 << 64) - 1)), random.randrange(1 << 32), random.randrange(1 << 32)
            count, body = 0, messages.WARM.pack(*sizes) + random.choice((b"m@1", bytes(300), b"\xff"))
        case Kind.CANCEL:
            count, body = 0, messages.CANCEL.pack(request)
        case Kind.CLAIM:
            etas_s = [random.choice((0.0, 0.01, 1e6)) for _ in keys]
            body = messages.pack_claim(keys, random.choice((0, 1, 4096, 1 << 50)), etas_s)
        case Kind.STATS:
            count, body = 0, b""
        case _:
            body = messages.pack_keys(keys)
    return messages.pack(kind, request, body, status=status, count=random.choice((count, count, count, count, 65535)))


def answer_frame(random: Random) -> bytes:
    """An answer as an agent sends it."""
    status = random.choice(list(Status))
    match random.randrange(7):
        case 6:
            parts = [FetchedParts(place, random.choice(list(ChunkSource)), (4096, 8192)) for place in (0, 2)]
            return messages.pack(Kind.FETCH_PARTS, 1, messages.pack_parts(1, parts), status=status, count=2)
        case 5:
            chunk = FetchedChunk(4096, 4096, random.choice(list(ChunkSource)))
            return messages.pack(Kind.FETCH_EACH, 1, messages.pack_found(1, [0, 2], [chunk, chunk]), count=2)
        case 0:
            chunks = [
                FetchedChunk(4096 * at, 4096, random.choice(list(ChunkSource))) for at in range(random.randrange(4))
            ]
            body = messages.pack_fetched(random.randrange(9), chunks)
            return messages.pack(Kind.FETCH, 1, body, status=status, count=len(chunks))
        case 1:
            return messages.pack(Kind.CONTAINS, 1, bytes(random.randrange(6) for _ in range(4)), count=4)
        case 2:
            return messages.pack(Kind.WELCOME, 0, messages.WELCOME.pack(messages.VERSION, 1 << 20, 7))
        case 3:
            return messages.pack(Kind.RESERVE, 1, messages.LEASE.pack(1), status=status)
        case _:
            return messages.pack(Kind.STATS, 1, b'{"a":1}')


class LocalMessages:
    """A step: bytes of the stream, as they come."""

    name: ClassVar[str] = "local-messages"
    checks: ClassVar[str] = "frames or MalformedFrameError, the same however the stream is cut"
    limit_s: ClassVar[float] = 5.0
    words: ClassVar[tuple[bytes, ...]] = WORDS

    def fresh(self, random: Random) -> Case:
        make = random.choice((request_frame, answer_frame))
        return [make(random) for _ in range(random.choice((1, 2, 5)))]

    def run(self, case: Case) -> None:
        by_step, at_once = _frames(case), _frames([b"".join(case)])
        check(by_step == at_once, "a stream means something else when it is cut elsewhere")
        for frame in by_step:
            for unpack in (
                messages.unpack_claim,
                messages.split_traceparent,
                messages.unpack_places,
                messages.unpack_fetched,
                messages.unpack_sources,
                lambda one: messages.unpack_keys(one.body, one.count),
                lambda one: messages.unpack_found(one, 3),
                messages.unpack_fetch_parts,
                lambda one: messages.unpack_parts(one, 3, 2),
            ):
                try:
                    unpack(frame)
                except (MalformedFrameError, struct.error):
                    continue

    def close(self) -> None:
        """Nothing to let go of."""


def _frames(pieces: Case) -> list[Frame]:
    """What comes before the stream turns out to be malformed, if it does."""
    reader, frames = FrameReader(), list[Frame]()
    try:
        for piece in pieces:
            frames += reader.feed(piece)
    except MalformedFrameError:
        # Whole frames before it may or may not have been handed over; a connection ends with it either way.
        return []
    return frames
