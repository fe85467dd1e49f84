"""The local protocol, shared by agent and client. Pure; standard library only, because engines import it.

A stream of frames in both directions over a UNIX stream socket, integers big-endian. A frame is a header of 12 bytes
and a body:

| offset | field | bits | meaning |
|---|---|---|---|
| 0 | length | 32 | bytes of the body |
| 4 | kind | 8 | `Kind` |
| 5 | status | 8 | in answers: `Status`; in FETCH: bytes of the trace context behind the keys; in other requests 0 |
| 6 | count | 16 | items in the body (keys, chunks) |
| 8 | request | 32 | chosen by the client, echoed in the answer |

The agent speaks first: WELCOME, with files as SCM_RIGHTS ancillary content: the pool's memory, to be read, and the
connection's own write region; then, where `count` has OFFERS_LOCAL, the catalog of what is in the pool, to be read, and
the connection's own table of leases (`kvclient.catalog`); and then, where it has OFFERS_LONE, a socket for lone gets
and the connection's own landing, to be read (`kvclient.lone`). What is put is written to the region; the agent copies
it into the pool. Bodies, with as many keys as `count` says:

    WELCOME      answer: version u32, pool bytes u64, incarnation u64
    RESERVE      key, parent (zeros: none), size u64, position u32 (2^32-1: derive it), namespace in UTF-8
                 answer: lease u64
    COMMIT       lease u64, offset of the chunk in the write region u64
                 answer: the digest (`kvproto.integrity`), 9 or 33 bytes
    ABORT        lease u64; not answered
    FETCH        deadline us u64, recompute us u64 (2^64-1: none), engine's queue us u64, share of recompute that grows
                 with the position f32 (0 to 1), requests behind this one u32, expected within us u64, keys, trace
                 context (`traceparent` of W3C Trace Context, ASCII) or none
                 answer: lease u64, then per chunk offset u64, size u64, source u8; status says why it stopped
    RELEASE      lease u64; not answered
    CONTAINS     keys
                 answer: a byte `Where` for each
    PIN, UNPIN, DROP    keys
                 answer: a byte for each, 1 done, 0 not
    STATS        nothing, or bytes that this client has registered with a device u64
                 answer: a JSON object of numbers
    HINT         hint u8, within ms u32, keys; not answered
    CANCEL       request u32 to give up; not answered, but the request given up answers CANCELLED
    FETCH_EACH   deadline us u64, keys in any order, trace context or none (as in FETCH)
                 answer: lease u64, then per chunk that is here: index of its key u32, offset u64, size u64, source u8;
                 indexes rise; status says why the first one missing is missing
    LOCK         hold us u64, keys: keep what is in the pool, so long at most
    UNLOCK       keys: take one lock of each back, the one that ends first
                 answer to both: a byte for each, 1 done, 0 not
    FETCH_STREAM as FETCH
                 answers: any number of FETCH_PART, each lease u64 and the chunks that follow on those before, as in
                 FETCH; at last FETCH, as the answer to that, with the chunks that no part had
    CLAIM        bytes of each chunk u64, keys, then for each key the us from now on until it is there u64
                 answer, only where some may not be claimed: a byte for each, 1 claimed, 0 not
    DISCLAIM     keys, or none for all claims of this connection; not answered
    WARM         bytes u64, nodes u32, wait ms u32, namespace in UTF-8; not answered
    FETCH_PARTS  deadline us u64, ranges u32, keys in any order, then the ranges of each chunk: offset u64, size u64
                 answer: lease u64, then per chunk that is here: index of its key u32, source u8, and for each range
                 its offset in the pool u64; indexes rise; status says why the first one missing is missing. With
                 OUT_OF_CHUNK instead: index of a key u32, bytes of its chunk u64

A key is 16 bytes. Leases, pins, locks and claims belong to the connection and end with it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kvchunk.parts import ByteRange, check_ranges
from kvchunk.sources import ChunkSource
from kvclient.terms import SECONDS_MAX, FetchTerms, check_terms

VERSION = 7
"""7: with lone gets."""
OFFERS_LOCAL = 1
OFFERS_LONE = 2
KEY_BYTES = 16
NO_KEY = bytes(KEY_BYTES)
NO_POSITION = 0xFFFF_FFFF
NO_RECOMPUTE = 0xFFFF_FFFF_FFFF_FFFF
FRAME_BYTES_MAX = 256 * 1024
KEYS_MAX = 4096
"""Keys in one request: a million tokens in chunks of 256."""
RANGES_MAX = 4096
"""Of each chunk in one request."""
PARTS_MAX = 16384
"""Ranges of all chunks in one request."""
NAMESPACE_BYTES_MAX = 256
TRACEPARENT_BYTES_MAX = 128
"""Version 00 of W3C Trace Context takes 55; later versions may append to it."""

assert KEYS_MAX * (KEY_BYTES + 8) + TRACEPARENT_BYTES_MAX + 64 <= FRAME_BYTES_MAX, (
    "a full fetch or claim fits in one frame, and so does the answer to a fetch"
)
assert (KEYS_MAX + RANGES_MAX) * KEY_BYTES + 64 <= FRAME_BYTES_MAX, "so does a full request for parts"
assert KEYS_MAX * 5 + PARTS_MAX * 8 + 64 <= FRAME_BYTES_MAX, "and so does its answer"

HEADER = struct.Struct("!IBBHI")
WELCOME = struct.Struct("!IQQ")
RESERVE = struct.Struct("!16s16sQI")
COMMIT = struct.Struct("!QQ")
LEASE = struct.Struct("!Q")
FETCH = struct.Struct("!QQQfIQ")
FETCHED_CHUNK = struct.Struct("!QQB")
FETCH_EACH = struct.Struct("!Q")
FOUND_CHUNK = struct.Struct("!IQQB")
LOCK = struct.Struct("!Q")
HINT = struct.Struct("!BI")
STATS = struct.Struct("!Q")
CANCEL = struct.Struct("!I")
CLAIM = struct.Struct("!Q")
WARM = struct.Struct("!QII")
FETCH_PARTS = struct.Struct("!QI")
RANGE = struct.Struct("!QQ")
OUT_OF_CHUNK = struct.Struct("!IQ")
_PART_HEAD = struct.Struct("!IB")


class Kind(enum.IntEnum):
    WELCOME = 1
    RESERVE = 2
    COMMIT = 3
    ABORT = 4
    FETCH = 5
    RELEASE = 6
    CONTAINS = 7
    PIN = 8
    UNPIN = 9
    DROP = 10
    STATS = 11
    HINT = 12
    CANCEL = 13
    CLAIM = 14
    DISCLAIM = 15
    FETCH_EACH = 16
    LOCK = 17
    UNLOCK = 18
    FETCH_STREAM = 19
    FETCH_PART = 20
    WARM = 21
    FETCH_PARTS = 22


ONE_WAY = frozenset({Kind.ABORT, Kind.RELEASE, Kind.HINT, Kind.CANCEL, Kind.CLAIM, Kind.DISCLAIM, Kind.WARM})
"""Kinds whose answer nobody waits for: all but CLAIM have none."""


class Named(enum.IntEnum):
    """A number of the protocol that prints as its name: `DEADLINE`."""

    def __str__(self) -> str:
        return self.name


class Status(Named):
    """Of an answer. The first group are ordinary outcomes, the second the caller's mistakes."""

    OK = 0
    EXISTS = 1
    FILLING = 2
    POOL_FULL = 3
    TOO_LARGE = 4
    NOT_FOUND = 5
    DEADLINE = 6
    GATE = 7
    UNAVAILABLE = 8
    """Holders known, but none of them delivered."""
    CANCELLED = 9
    ABANDONED = 10
    """Somebody computed it, and then gave it up, fell behind or went away."""
    BUSY = 11
    """Greeting of an agent that has all the connections it takes, of all engines or of this process."""
    FORBIDDEN = 12
    """Greeting of an agent whose `api.users` or `api.group` does not let this process's user in."""

    MALFORMED = 32
    UNKNOWN_LEASE = 33
    TOO_MANY_KEYS = 35
    OUT_OF_CHUNK = 36
    """A range does not lie inside of a chunk."""


class Where(Named):
    NOWHERE = 0
    LOCAL = 1
    """In this node's pool, or on its disk."""
    REMOTE = 2
    """Some other node holds it, or the cold store."""
    SWITCH = 3
    """The switch serves it, whoever else holds it."""
    COMPUTING = 4
    """Nobody holds it, and somebody computes it at this moment."""


class Hint(enum.IntEnum):
    SESSION_ENDED = 1
    EXPECTED = 2


class MalformedFrameError(Exception):
    """The other side does not speak this protocol; the connection is of no further use."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    status: int
    count: int
    request: int
    body: bytes


@dataclass(frozen=True, slots=True)
class FetchedChunk:
    offset: int
    size_bytes: int
    source: ChunkSource


@dataclass(frozen=True, slots=True)
class FetchedParts:
    """Of one chunk."""

    place: int
    """Index of its key."""
    source: ChunkSource
    offsets: tuple[int, ...]
    """Where each range begins in the pool."""


def pack(kind: Kind, request: int, body: bytes = b"", *, status: int = 0, count: int = 0) -> bytes:
    """One frame."""
    return HEADER.pack(len(body), kind, status, count, request) + body


class FrameReader:
    """Cuts a stream into frames."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, received: bytes) -> list[Frame]:
        """Whole frames so far. Raises MalformedFrameError when one claims to be larger than any may be."""
        stream = self._pending + received if self._pending else received
        frames: list[Frame] = []
        start = 0
        while len(stream) - start >= HEADER.size:
            length, kind, status, count, request = HEADER.unpack_from(stream, start)
            if length > FRAME_BYTES_MAX:
                raise MalformedFrameError(f"frame of {length} bytes, at most {FRAME_BYTES_MAX} allowed")
            end = start + HEADER.size + length
            if len(stream) < end:
                break
            frames.append(Frame(kind, status, count, request, stream[start + HEADER.size : end]))
            start = end
        self._pending = stream[start:]
        return frames


def pack_keys(keys: Sequence[bytes]) -> bytes:
    """Keys of 16 bytes each; raises ValueError for any other length."""
    lengths = set(map(len, keys)) - {KEY_BYTES}
    if lengths:
        raise ValueError(f"a chunk key has {KEY_BYTES} bytes, not {min(lengths)}")
    return b"".join(keys)


def unpack_keys(body: bytes, count: int, start: int = 0) -> list[bytes]:
    """`count` keys that fill the body from `start` on; raises MalformedFrameError otherwise."""
    if len(body) - start != count * KEY_BYTES:
        raise MalformedFrameError(f"{count} keys announced, {len(body) - start} bytes sent")
    return [body[at : at + KEY_BYTES] for at in range(start, len(body), KEY_BYTES)]


def pack_namespace(namespace: str) -> bytes:
    """Behind the body of RESERVE and WARM; raises ValueError for one that is too long."""
    try:
        encoded = namespace.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"namespace {namespace!a} is no text: {error.reason}, as in odd file names") from None
    if len(encoded) > NAMESPACE_BYTES_MAX:
        raise ValueError(f"namespace has {len(encoded)} bytes, at most {NAMESPACE_BYTES_MAX} are allowed")
    return encoded


def pack_fetch(keys: Sequence[bytes], deadline_s: float, terms: FetchTerms) -> bytes:
    """Body of FETCH; raises ValueError as `pack_keys`, TypeError as `check_terms`. A trace context (`pack_traceparent`)
    may follow it."""
    if terms:
        check_terms(terms)
    recompute_s = terms.get("recompute_s")
    recompute_us = NO_RECOMPUTE if recompute_s is None else int(recompute_s * 1e6)
    queue_us, expected_us = int(terms.get("queue_s", 0.0) * 1e6), int(terms.get("expected_s", 0.0) * 1e6)
    share, behind = terms.get("attention_share", 0.0), terms.get("behind", 0)
    return FETCH.pack(int(deadline_s * 1e6), recompute_us, queue_us, share, behind, expected_us) + pack_keys(keys)


def pack_claim(keys: Sequence[bytes], size_bytes: int, etas_s: Sequence[float]) -> bytes:
    """Body of CLAIM; raises ValueError as `pack_keys`, and where keys and times differ in number."""
    if len(keys) != len(etas_s):
        raise ValueError(f"{len(keys)} keys and {len(etas_s)} times")
    if not all(eta_s <= SECONDS_MAX for eta_s in etas_s):  # below 0: it is late
        raise ValueError(f"etas_s has {max(etas_s)}, not at most {SECONDS_MAX:.0f} seconds")
    times_us = [int(max(0.0, eta_s) * 1e6) for eta_s in etas_s]
    return CLAIM.pack(size_bytes) + pack_keys(keys) + struct.pack(f"!{len(times_us)}Q", *times_us)


def unpack_claim(frame: Frame) -> tuple[int, list[bytes], list[float]]:
    """(bytes of each chunk, keys, seconds until each is there); raises MalformedFrameError."""
    if len(frame.body) != CLAIM.size + frame.count * (KEY_BYTES + 8):
        raise MalformedFrameError(f"a claim of {frame.count} keys in {len(frame.body)} bytes")
    (size_bytes,) = CLAIM.unpack_from(frame.body)
    split = CLAIM.size + frame.count * KEY_BYTES
    times_us = struct.unpack_from(f"!{frame.count}Q", frame.body, split)
    return size_bytes, unpack_keys(frame.body[:split], frame.count, CLAIM.size), [time / 1e6 for time in times_us]


def pack_traceparent(traceparent: str | None) -> bytes:
    """What follows the body of FETCH; its length goes into the frame's status. Tracing never makes a fetch fail: what
    is no `traceparent` at all is left out."""
    if not traceparent or len(traceparent) > TRACEPARENT_BYTES_MAX or not traceparent.isascii():
        return b""
    return traceparent.encode("ascii")


def split_traceparent(frame: Frame) -> tuple[bytes, str]:
    """(body without it, trace context or "") of a FETCH; raises MalformedFrameError."""
    size = frame.status
    if not size:
        return frame.body, ""
    if size > min(TRACEPARENT_BYTES_MAX, len(frame.body)):
        raise MalformedFrameError(f"a trace context of {size} bytes, at most {TRACEPARENT_BYTES_MAX} allowed")
    try:
        return frame.body[:-size], frame.body[-size:].decode("ascii")
    except UnicodeDecodeError:
        raise MalformedFrameError("a trace context is not ASCII") from None


def pack_hint(keys: Sequence[bytes], hint: Hint, within_ms: int = 0) -> bytes:
    """Body of HINT; raises ValueError as `pack_keys`."""
    return HINT.pack(hint, within_ms) + pack_keys(keys)


_PLACES = {place.value: place for place in Where}
_SOURCES = {source.value: source for source in ChunkSource}
"""Looked up ten times as fast as the enums make their members from numbers; engines wait for these answers."""


def unpack_places(frame: Frame) -> list[Where]:
    """Body of the answer to CONTAINS; raises MalformedFrameError."""
    try:
        return [_PLACES[value] for value in frame.body]
    except KeyError as error:
        raise MalformedFrameError(f"answer to CONTAINS names place {error}") from None


def pack_fetched(lease: int, chunks: Sequence[FetchedChunk]) -> bytes:
    """Body of the answer to FETCH."""
    pack = FETCHED_CHUNK.pack
    return LEASE.pack(lease) + b"".join([pack(chunk.offset, chunk.size_bytes, chunk.source) for chunk in chunks])


def unpack_fetched(frame: Frame) -> tuple[int, list[FetchedChunk]]:
    """(lease, chunks) of the answer to FETCH; raises MalformedFrameError."""
    lease, sources = unpack_sources(frame)
    places = FETCHED_CHUNK.iter_unpack(frame.body[LEASE.size :])
    return lease, [
        FetchedChunk(offset, size_bytes, source)
        for (offset, size_bytes, _), source in zip(places, sources, strict=True)
    ]


def pack_found(lease: int, places: Sequence[int], chunks: Sequence[FetchedChunk]) -> bytes:
    """Body of the answer to FETCH_EACH; `places`: index of each chunk's key."""
    return LEASE.pack(lease) + b"".join(
        FOUND_CHUNK.pack(place, chunk.offset, chunk.size_bytes, chunk.source)
        for place, chunk in zip(places, chunks, strict=True)
    )


def unpack_found(frame: Frame, keys_count: int) -> tuple[int, dict[int, FetchedChunk]]:
    """(lease, chunks by index of their key) of the answer to FETCH_EACH; raises MalformedFrameError."""
    if len(frame.body) != LEASE.size + frame.count * FOUND_CHUNK.size:
        raise MalformedFrameError("answer to FETCH_EACH has the wrong length")
    (lease,) = LEASE.unpack_from(frame.body)
    chunks: dict[int, FetchedChunk] = {}
    for place, offset, size_bytes, source in FOUND_CHUNK.iter_unpack(frame.body[LEASE.size :]):
        if place >= keys_count or place in chunks or source not in _SOURCES:
            raise MalformedFrameError(f"answer to FETCH_EACH names chunk {place} of {keys_count}, source {source}")
        chunks[place] = FetchedChunk(offset, size_bytes, _SOURCES[source])
    return lease, chunks


def check_parts(keys: Sequence[bytes], ranges: Sequence[ByteRange]) -> None:
    """Raises ValueError for what is no request for parts."""
    check_ranges(ranges)
    if not keys or len(set(keys)) != len(keys):
        raise ValueError("keys of parts: at least one, and each once")
    if len(ranges) > RANGES_MAX or len(keys) * len(ranges) > PARTS_MAX:
        raise ValueError(
            f"{len(ranges)} ranges of {len(keys)} chunks: at most {RANGES_MAX} of a chunk and {PARTS_MAX} of all;"
            " ask for fewer chunks at once, or fetch whole ones"
        )


def pack_fetch_parts(keys: Sequence[bytes], ranges: Sequence[ByteRange], deadline_s: float) -> bytes:
    """Body of FETCH_PARTS; raises ValueError as `pack_keys`."""
    head = FETCH_PARTS.pack(int(deadline_s * 1e6), len(ranges))
    return head + pack_keys(keys) + b"".join(RANGE.pack(*one) for one in ranges)


def unpack_fetch_parts(frame: Frame) -> tuple[float, list[bytes], tuple[ByteRange, ...]]:
    """(deadline in seconds, keys, ranges) of FETCH_PARTS; raises MalformedFrameError."""
    if len(frame.body) < FETCH_PARTS.size:
        raise MalformedFrameError("a request for parts without a head")
    deadline_us, ranges_count = FETCH_PARTS.unpack_from(frame.body)
    split = FETCH_PARTS.size + frame.count * KEY_BYTES
    if len(frame.body) != split + ranges_count * RANGE.size:
        raise MalformedFrameError(f"{ranges_count} ranges of {frame.count} chunks in {len(frame.body)} bytes")
    keys = unpack_keys(frame.body[:split], frame.count, FETCH_PARTS.size)
    return deadline_us / 1e6, keys, tuple(ByteRange(*one) for one in RANGE.iter_unpack(frame.body[split:]))


def pack_parts(lease: int, chunks: Sequence[FetchedParts]) -> bytes:
    """Body of the answer to FETCH_PARTS."""
    return LEASE.pack(lease) + b"".join(
        _PART_HEAD.pack(one.place, one.source) + struct.pack(f"!{len(one.offsets)}Q", *one.offsets) for one in chunks
    )


def unpack_parts(frame: Frame, keys_count: int, ranges_count: int) -> tuple[int, list[FetchedParts]]:
    """(lease, parts of the chunks that are here) of the answer to FETCH_PARTS; raises MalformedFrameError."""
    layout = struct.Struct(f"!IB{ranges_count}Q")
    if len(frame.body) != LEASE.size + frame.count * layout.size:
        raise MalformedFrameError("answer to FETCH_PARTS has the wrong length")
    (lease,) = LEASE.unpack_from(frame.body)
    chunks: list[FetchedParts] = []
    for place, source, *offsets in layout.iter_unpack(frame.body[LEASE.size :]):
        if place >= keys_count or (chunks and place <= chunks[-1].place) or source not in _SOURCES:
            raise MalformedFrameError(f"answer to FETCH_PARTS names chunk {place} of {keys_count}, source {source}")
        chunks.append(FetchedParts(place, _SOURCES[source], tuple(offsets)))
    return lease, chunks


def unpack_sources(frame: Frame) -> tuple[int, list[ChunkSource]]:
    """`unpack_fetched`, of the chunks only where they came from: for who does not read them."""
    if len(frame.body) != LEASE.size + frame.count * FETCHED_CHUNK.size:
        raise MalformedFrameError("answer to FETCH has the wrong length")
    (lease,) = LEASE.unpack_from(frame.body)
    try:
        return lease, [
            _SOURCES[value] for value in frame.body[LEASE.size + FETCHED_CHUNK.size - 1 :: FETCHED_CHUNK.size]
        ]
    except KeyError as error:
        raise MalformedFrameError(f"answer to FETCH names source {error}") from None
