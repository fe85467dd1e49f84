"""A model of one TCP connection's sending side: in-order reads, a window clocked by acknowledgements, retransmission.

It shares the links with everything else and backs off on loss; it stands for what a kernel does, roughly.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvproto.ids import ReadId
from kvproto.limits import MS
from kvsim.bodies import StreamBody

_WINDOW_START = 10
_WINDOW_MAX = 64
_PROBE_NS = 40 * MS
_GAP = 3


@dataclass(slots=True)
class _Flight:
    """One packet that is not acknowledged."""

    body: StreamBody
    sent_ns: int


class Stream:
    """Sends the segments of reads in the order of the requests. `emit` puts a packet on the link."""

    __slots__ = (
        "_emit",
        "_flight",
        "_newest",
        "_packets",
        "_per_packet",
        "_reads",
        "_sequence",
        "_window",
        "on_read_end",
        "on_sent",
    )

    def __init__(self, segments_per_packet: int, emit: Callable[[StreamBody], None]) -> None:
        self._emit = emit
        self._per_packet = segments_per_packet
        self._packets: deque[StreamBody] = deque()
        self._flight: dict[int, _Flight] = {}
        self._window = float(_WINDOW_START)
        self._sequence = 0
        self._newest = 0
        self._reads: dict[ReadId, int] = {}
        """Packets of each read that are not acknowledged."""
        self.on_read_end: Callable[[ChunkKey], None] = lambda _: None
        self.on_sent: Callable[[int], None] = lambda _: None
        """Called with the number of segments that were sent, or will not be."""

    def add(self, read: ReadId, key: ChunkKey, first: int, contents: list[int]) -> None:
        """A read was requested and can be served."""
        for start in range(0, len(contents), self._per_packet):
            self._sequence += 1
            part = tuple(contents[start : start + self._per_packet])
            self._packets.append(StreamBody(read, key, self._sequence, first + start, part, begins=not start))
        self._reads[read] = -(-len(contents) // self._per_packet)

    def abort(self, read: ReadId) -> None:
        """The reader wants no more of it."""
        if read in self._reads:
            body = next((body for body in self._packets if body.read == read), None)
            flying = [sequence for sequence, flight in self._flight.items() if flight.body.read == read]
            key = body.key if body is not None else self._flight[flying[0]].body.key
            unsent = sum(len(body.contents) for body in self._packets if body.read == read)
            self._packets = deque(body for body in self._packets if body.read != read)
            self.on_sent(unsent)
            for sequence in flying:
                del self._flight[sequence]
            del self._reads[read]
            self.on_read_end(key)

    def acknowledged(self, sequence: int, now_ns: int) -> None:
        """One packet arrived at the reader. What was sent well before it is sent again."""
        flight = self._flight.pop(sequence, None)
        if flight is not None:
            self._window = min(_WINDOW_MAX, self._window + 1)
            read = flight.body.read
            self._reads[read] -= 1
            if not self._reads[read]:
                del self._reads[read]
                self.on_read_end(flight.body.key)
        self._newest = max(self._newest, sequence)
        for early, late in list(self._flight.items()):
            if early + _GAP <= self._newest and now_ns - late.sent_ns > 2 * MS:
                self._again(late, now_ns)

    def probe(self, now_ns: int) -> None:
        """Called now and then: a packet that has been on its way for very long is sent again."""
        for late in list(self._flight.values()):
            if now_ns - late.sent_ns >= 3 * _PROBE_NS:
                self._again(late, now_ns)
                break

    @property
    def busy(self) -> bool:
        """Whether anything is queued or under way."""
        return bool(self._packets or self._flight)

    def _again(self, flight: _Flight, now_ns: int) -> None:
        self._window = max(4.0, self._window / 1.5)
        flight.sent_ns = now_ns
        self._emit(flight.body)

    def pump(self, now_ns: int) -> bool:
        """Send one packet if the window allows. Returns whether it did."""
        if not self._packets or len(self._flight) >= int(self._window):
            return False
        body = self._packets.popleft()
        self._flight[body.sequence] = _Flight(body, now_ns)
        self._emit(body)
        self.on_sent(len(body.contents))
        return True
