"""A node's relay: what it gathers of chunks, and what it passes on meanwhile. Pure; see `gathering` and `passing`.

want, unwant, heard_parent, heard_child, ..., handle_timer -> commands; `wake_ns`: when the timer is due
"""

from collections.abc import Callable, Iterable, Sequence

from kvchunk.ids import ChunkKey
from kvproto.ids import ReadId
from kvproto.session.choice import Chooser
from kvproto.session.relay.gathering import Gathering
from kvproto.session.relay.passing import Passing
from kvproto.session.relay.relay_commands import EndChild, RelayCommand
from kvproto.wire.relay_messages import Message


class Relay:
    """One per node. Deterministic: the same events at the same times give the same commands."""

    def __init__(
        self,
        endpoint: str,
        piece_bytes: int,
        *,
        share: float = 1.0,
        rails: int = 1,
        whole_pieces: Callable[[ChunkKey], int],
        leaves: Callable[[ChunkKey], bytes],
        accepts: Callable[[ChunkKey, bytes], bool],
        may_give: Callable[[str], bool],
        rack_of: Callable[[str], str] = lambda _endpoint: "",
        choice: Callable[[], Chooser] = lambda: Chooser(is_free=False),
        reads: Callable[[], int] = lambda: 0,
    ) -> None:
        """`share`: of what it gathers, so much it passes on as owner; 0: it passes on nothing. See `Passing` and
        `Gathering`."""
        self._out: list[RelayCommand] = []
        self.is_held = False
        """More events follow at once: nothing is decided before."""
        self.passing = Passing(whole_pieces, leaves, self.proven_pieces, piece_bytes, self._out, endpoint, rack_of)
        self.gathering = Gathering(
            endpoint, piece_bytes, accepts, may_give, self.passing, self._out, share, rails, rack_of, choice, reads
        )

    @property
    def wake_ns(self) -> int | None:
        """When handle_timer should be called; None: not before another event."""
        due = [one for one in (self.passing.wake_ns, self.gathering.wake_ns) if one is not None]
        return min(due, default=None)

    def proven_pieces(self, key: ChunkKey) -> tuple[int, int] | None:
        """How many pieces an arriving chunk has, and which may be read; None: it is not arriving."""
        arriving = self.gathering.chunks.get(key)
        return None if arriving is None else (arriving.pieces, arriving.proven)

    def want(self, wanted: Sequence[tuple[ChunkKey, int, Sequence[str]]], now_ns: int) -> list[RelayCommand]:
        """Chunks (key, pieces, endpoints of those who have it whole), the first one first."""
        for key, pieces, keepers in wanted:
            self.gathering.want(key, pieces, keepers, now_ns)
        return self.handle_timer(now_ns)

    def offer(self, key: ChunkKey, keepers: Sequence[str], now_ns: int) -> list[RelayCommand]:
        """A chunk that is wanted is at these endpoints whole."""
        self.gathering.offer(key, keepers, now_ns)
        return self.handle_timer(now_ns)

    def unwant(self, keys: Sequence[ChunkKey], now_ns: int) -> list[RelayCommand]:
        """These are wanted no more; nothing writes to their memory once the commands are carried out."""
        for key in keys:
            self.gathering.unwant(key, now_ns)
        return self.handle_timer(now_ns)

    def heard_parent(self, endpoint: str, messages: Sequence[Message], now_ns: int) -> list[RelayCommand]:
        """Over a link that this node made."""
        for message in messages:
            if not self.gathering.heard(endpoint, message, now_ns):
                self.gathering.leave(endpoint, now_ns)
                break
        return self.handle_timer(now_ns)

    def leave_parents(self, endpoints: Iterable[str], now_ns: int) -> list[RelayCommand]:
        """Their nodes are gone, whatever becomes of the links."""
        for endpoint in endpoints:
            self.gathering.leave(endpoint, now_ns)
        return self.handle_timer(now_ns)

    def leave_all(self, now_ns: int) -> list[RelayCommand]:
        """This node answers elsewhere from now on: every link that it made ends, and nothing is gathered any more."""
        return self.leave_parents(self.gathering.endpoints, now_ns)

    def parent_lost(self, endpoint: str, now_ns: int) -> list[RelayCommand]:
        """A link that this node made, or wanted to, has ended."""
        self.gathering.lost(endpoint, now_ns)
        return self.handle_timer(now_ns)

    def heard_child(self, link: int, messages: Sequence[Message], now_ns: int) -> list[RelayCommand]:
        """Over a link that another node made."""
        if not all(self.passing.heard(link, message, now_ns) for message in messages):
            self.passing.lost(link, now_ns)
            self._out.append(EndChild(link))
        return self.handle_timer(now_ns)

    def child_lost(self, link: int, now_ns: int) -> list[RelayCommand]:
        """A link that another node made has ended."""
        self.passing.lost(link, now_ns)
        return self.handle_timer(now_ns)

    def read_ended(self, read: ReadId, is_right: bool | None, now_ns: int) -> list[RelayCommand]:
        """A `ReadRun` is over; None: it failed."""
        if is_right is None:
            self.gathering.failed(read, now_ns)
        elif is_right:
            self.gathering.proven(read, now_ns)
        else:
            self.gathering.wrong(read, now_ns)
        return self.handle_timer(now_ns)

    def handle_timer(self, now_ns: int) -> list[RelayCommand]:
        """What is due. Calling it early or late is safe."""
        if self.is_held:
            return []
        self.gathering.run(now_ns)
        self.passing.run(now_ns)
        out = self._out.copy()
        self._out.clear()
        return out
