"""RESP, the protocol of Redis: requests packed, one reply read. Pure: no socket, no clock.

A `ReplyReader` says where the next bytes of the connection go and is told how many came. The body of a reply goes
straight to the buffers it was made with; only what came together with the reply's first line is copied.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import Final

LINE_BYTES_MAX: Final = 512
"""Of a reply's first line. Redis's own are shorter; a longer one is none of Redis."""
_END: Final = b"\r\n"
_NUMBER: Final = re.compile(rb"-?[0-9]{1,19}")


class RespError(Exception):
    """What came is no reply to what was asked."""


class ReplyKind(enum.Enum):
    """What a reply is; the value is its first byte."""

    TEXT = b"+"
    ERROR = b"-"
    NUMBER = b":"
    BODY = b"$"


def packed_head(*words: bytes, body_bytes: int | None = None) -> bytes:
    """A request of these words; with `body_bytes` all of it that stands before a last word of that size.

    Behind such a word comes another line end, "\\r\\n".
    """
    count = len(words) + (body_bytes is not None)
    parts = [b"*%d\r\n" % count, *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
    if body_bytes is not None:
        parts.append(b"$%d\r\n" % body_bytes)
    return b"".join(parts)


class ReplyReader:
    """Reads one reply. Its body fills the buffers one after the other, and may not be longer than they are."""

    __slots__ = ("_buffers", "_came", "_left", "_line", "_tail", "_tail_came", "kind", "number", "text")

    def __init__(self, buffers: Sequence[memoryview] = ()) -> None:
        """`buffers`: of bytes, writable."""
        self.kind: ReplyKind | None = None
        """None: the first line has not ended yet."""
        self.number = 0
        """Of a NUMBER; the size in bytes of a BODY, -1 when there is none."""
        self.text = ""
        """Of a TEXT or an ERROR."""
        self._buffers = [buffer for buffer in buffers if len(buffer)]
        self._line = bytearray(LINE_BYTES_MAX)
        self._came = 0
        self._left = 0
        """Bytes of the body that are still to come."""
        self._tail = bytearray(len(_END))
        self._tail_came = len(_END)

    def room(self) -> memoryview:
        """Where the next bytes go; empty: the reply has ended."""
        if self.kind is None:
            return memoryview(self._line)[self._came :]
        if self._left:
            return self._buffers[0][: self._left]
        return memoryview(self._tail)[self._tail_came :]

    def came(self, count: int) -> bool:
        """So many bytes, one or more, were written to `room()`. Whether the reply has ended. Raises RespError."""
        if self.kind is None:
            self._line_came(count)
        elif self._left:
            self._body_came(count)
        else:
            self._tail_came += count
            if self._tail_came == len(_END) and self._tail != _END:
                raise RespError("a body does not end where it should")
        return self.kind is not None and not self._left and self._tail_came == len(_END)

    def _line_came(self, count: int) -> None:
        self._came += count
        end = self._line.find(_END, 0, self._came)
        if end < 0:
            if self._came == LINE_BYTES_MAX:
                raise RespError("the first line does not end")
            return
        rest = bytes(self._line[end + len(_END) : self._came])
        self._begin(bytes(self._line[:end]))
        while rest:
            room = self.room()
            if not room:
                raise RespError("more came than was asked for")
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            rest = rest[size:]
            self.came(size)

    def _begin(self, line: bytes) -> None:
        try:
            self.kind = ReplyKind(line[:1])
        except ValueError:
            raise RespError(f"a reply begins with {line[:1]!r}") from None
        if self.kind in (ReplyKind.TEXT, ReplyKind.ERROR):
            self.text = line[1:].decode(errors="replace")
            return
        if not _NUMBER.fullmatch(line[1:]):
            raise RespError("not a number where one should be")
        self.number = int(line[1:])
        if self.kind is ReplyKind.BODY and self.number != -1:
            if not 0 <= self.number <= sum(map(len, self._buffers)):
                raise RespError(f"a body of {self.number} bytes is not what was asked for")
            self._left = self.number
            self._tail_came = 0

    def _body_came(self, count: int) -> None:
        self._left -= count
        if count == len(self._buffers[0]):
            del self._buffers[0]
        else:
            self._buffers[0] = self._buffers[0][count:]
