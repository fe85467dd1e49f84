"""What a cold store says that claims to be Redis: read at once and in pieces."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from hostagent.cold.resp import LINE_BYTES_MAX, ReplyKind, ReplyReader, RespError
from tests.fuzz.target import Case, check

_AROUND = 64
"""Bytes before and behind the buffers that nobody may write."""
Seen = tuple[str, ReplyKind | None, int, str, int]
"""Of a reply: how it ended, what it is, its number, its text, the bytes that it took."""


class RedisReplies:
    """Steps: sizes of the buffers, a byte each; sizes of the pieces, a byte each; what the store says."""

    name: ClassVar[str] = "redis"
    checks: ClassVar[str] = "a reply or a refusal, the same in pieces and at once; no byte beside the buffers"
    limit_s: ClassVar[float] = 1.0
    words: ClassVar[tuple[bytes, ...]] = (
        b"\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"+OK",
        b"-OOM ",
        b":1",
        b"*2\r\n",
        b"9" * 19,
    )

    def fresh(self, random: Random) -> Case:
        sizes = bytes(random.choice((0, 1, 7, 255)) for _ in range(random.randrange(4)))
        body = random.randbytes(random.choice((0, 1, sum(sizes), sum(sizes), sum(sizes) + 1)))
        stated = random.choice((len(body), len(body), len(body), len(body) + 1, -1, 1 << 62))
        line = b"x" * random.choice((0, 5, LINE_BYTES_MAX - 3, LINE_BYTES_MAX))
        said = random.choice(
            (b"$%d\r\n%b\r\n" % (stated, body), b"+%b\r\n" % line, b"-%b\r\n" % line, b":%d\r\n" % stated)
        )
        return [sizes, random.randbytes(random.randrange(1, 9)), said]

    def run(self, case: Case) -> None:
        sizes, pieces, said = (*case, b"", b"", b"")[:3]
        at_once, bytes_at_once = _read(sizes, [len(said)], said)
        in_pieces, bytes_in_pieces = _read(sizes, [piece for piece in pieces if piece] or [1], said)
        check(at_once[4] <= len(said), "more was taken than came")
        if at_once[0] == in_pieces[0] == "ended":
            check(at_once == in_pieces, f"at once {at_once}, in pieces {in_pieces}")
            check(bytes_at_once == bytes_in_pieces, "other bytes come in pieces than at once")
        elif at_once[0] != in_pieces[0]:
            # A reply that has ended takes nothing more: what lies behind it shows only when it comes along.
            check((at_once[0], in_pieces[0]) == ("refused", "ended"), f"at once {at_once}, in pieces {in_pieces}")
            check(in_pieces[4] < len(said), "refused at once, whole in pieces")

    def close(self) -> None:
        pass


def _read(sizes: bytes, pieces: list[int], said: bytes) -> tuple[Seen, bytes]:
    """What a reader makes of it, and all its buffers' bytes."""
    memory = bytearray(b"\xee" * (sum(sizes) + 2 * _AROUND))
    whole, at = memoryview(memory), _AROUND
    buffers = []
    for size in sizes:
        buffers.append(whole[at : at + size])
        at += size
    reader, taken, ended, turn = ReplyReader(buffers), 0, "unfinished", 0
    try:
        while taken < len(said):
            room = reader.room()
            check(room, "no room, and the reply has not ended")
            count = min(len(room), len(said) - taken, pieces[turn % len(pieces)])
            room[:count] = said[taken : taken + count]
            taken += count
            turn += 1
            if reader.came(count):
                ended = "ended"
                break
    except RespError as error:
        check(0 < len(str(error)) < 200, "a refusal is one short line")
        ended = "refused"
    check(memory[:_AROUND] == memory[at:] == b"\xee" * _AROUND, "bytes beside the buffers were written")
    if ended == "ended" and reader.kind is ReplyKind.BODY:
        body = bytes(memory[_AROUND : _AROUND + max(0, reader.number)])
        check(body in said, "a body that nobody said")
    return (ended, reader.kind, reader.number, reader.text, taken), bytes(memory)
