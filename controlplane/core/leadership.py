"""Whether this controller leads, under which epoch, and what agents hear of that. Pure; part of the core.

An election (`controlplane.election`) says so by events. What a leader may do and others may not is asked here, by the
time of the event that is being handled: a process that slept finds its lease over before it does anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.core.cluster import Cluster
from controlplane.core.election import Standing
from controlplane.core.events import Deposed, Elected
from kvproto.rpc import control_pb2 as rpc

LAPSED_WORDS = "this controller's lease has run out, and it cannot tell whether another one leads: see its log"
_BEATS_PER_SILENCE = 3


class Leadership:
    """Owns the epoch, and until when it lasts. Leads until an election says otherwise."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._silence_ns = cluster.options.silence_ms * 1_000_000
        self.epoch = 0
        """0: none was given, and the leadership lasts."""
        self.until_ns: int | None = None
        """When the lease runs out; None: there is none."""
        self._deposed = ""
        """Why it does not lead; empty: it leads, or has led and knows of no other."""
        self._doubts = False
        """The election cannot tell at the moment."""
        self._told = Standing.LEADING
        self._beat_ns = 0
        self.lapses_count = 0
        """How often its lease has run out."""

    @property
    def standing(self) -> Standing:
        """Now, as time is for the core."""
        if self._deposed:
            return Standing.STANDBY
        is_over = self.until_ns is not None and self._cluster.now_ns >= self.until_ns
        return Standing.LAPSED if is_over else Standing.LEADING

    @property
    def leads(self) -> bool:
        """It may give tasks, write tables, and do what operators ask for."""
        return self.standing is Standing.LEADING

    @property
    def standby_words(self) -> str:
        """Why agents and operators are refused; empty: they are not, or not for that."""
        return self._deposed and f"this controller is on standby: {self._deposed}"

    @property
    def refusal(self) -> str:
        """Why nothing new is begun; empty: it may be."""
        return LAPSED_WORDS if self.standing is Standing.LAPSED else self.standby_words

    # -- what happened

    def elected(self, event: Elected) -> None:
        """It leads, or leads on."""
        if event.reason and (self._deposed or event.epoch != self.epoch):
            self._cluster.inform(f"this controller leads: {event.reason}")
        elif self._told is Standing.LAPSED:
            self._cluster.inform("this controller leads again: its lease goes on")
        self.epoch, self.until_ns = event.epoch, event.until_ns
        self._deposed, self._doubts = "", False

    def deposed(self, event: Deposed) -> None:
        """Another one leads, or may."""
        if self._deposed != event.reason:
            self._cluster.inform(f"this controller is on standby: {event.reason}")
        self._deposed = event.reason

    def doubted(self) -> None:
        """It goes on, and cannot tell whether it leads."""
        self._doubts = True

    def look(self, sessions: Iterable[int]) -> None:
        """Say once that the lease has run out, and agents that this controller lives."""
        now_ns, standing = self._cluster.now_ns, self.standing
        is_news = standing is not self._told
        if is_news and standing is Standing.LAPSED:
            self.lapses_count += 1
            self._cluster.warn(f"{LAPSED_WORDS}. It serves what it knows, and starts nothing")
        self._told = standing
        if self._silence_ns and (is_news or now_ns >= self._beat_ns):
            self._beat_ns = now_ns + self._silence_ns // _BEATS_PER_SILENCE
            unsure = self._doubts or standing is not Standing.LEADING
            beat = rpc.ToAgent(leads=rpc.Leads(epoch=self.epoch, unsure=unsure))
            for session in sessions:
                self._cluster.send(session, beat)
