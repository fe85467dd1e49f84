"""Whether a network carries casts to groups: to their members, in the segments' size, and to nobody else. Pure.

Some nodes join a group that nothing else uses; of the others, those that may look at frames look whether any come to
them. Where casts go by groups already, one of those is tried that all have been in for long: a switch that snoops and
hears no querier forgets members after some minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from controlplane.core.examination.observations import GroupsSeen
from controlplane.core.examination.script import HEAR_MS, LOOK_MS, STEP_MS, Ask, Batch, Outcome, Script, Subject
from kvproto.blocks import EVERYBODY, TRIAL
from kvproto.rpc import control_pb2 as rpc

SENDERS: Final = 2


class Trial:
    """One run of the script; `seen` fills as it goes."""

    def __init__(self, number: int, subjects: Sequence[Subject], packet_bytes: int, *, standing: bool) -> None:
        """`number`: of the examination; `standing`: try the group that all members have long been in."""
        self._number = number
        self._subjects = {subject.name: subject for subject in subjects}
        self._packet_bytes = packet_bytes
        self._standing = standing
        self.seen = GroupsSeen()

    def script(self) -> Script:
        """The batches."""
        names = list(self._subjects)
        joiners = set(names if self._standing or len(names) <= SENDERS else names[::2])
        block = EVERYBODY if self._standing else TRIAL
        outcomes = yield self._batch(
            names,
            lambda name: {"look": rpc.ProbeLook(block=block, watches=name not in joiners)},
            LOOK_MS,
        )
        facts = {name: one.result.probe.facts for name, one in zip(names, outcomes, strict=True) if not one.problem}
        listeners = [name for name in names if name in joiners and name in facts and facts[name].hears]
        watchers = [name for name in names if name not in joiners and name in facts and facts[name].watches]
        senders = listeners[:: max(1, len(listeners) - 1)][:SENDERS]
        if len(senders) < 2:
            return
        send = rpc.ProbeSend(block=block, packet_bytes=self._packet_bytes)
        yield self._batch(senders, lambda _: {"send": send}, STEP_MS)
        ears = listeners + watchers
        others = {name: [self._subjects[one].index for one in senders if one != name] for name in ears}
        hear = {name: rpc.ProbeHear(nodes=theirs, wait_ms=HEAR_MS, by_group=True) for name, theirs in others.items()}
        outcomes = yield self._batch(ears, lambda name: {"hear": hear[name]}, STEP_MS)
        self._note(ears, outcomes, set(watchers))

    def _note(self, ears: Sequence[str], outcomes: Sequence[Outcome], watchers: set[str]) -> None:
        seen = self.seen
        for name, outcome in zip(ears, outcomes, strict=True):
            heard = outcome.result.probe.heard
            if outcome.problem:
                continue
            if name in watchers:
                seen.looked.add(name)
                if any(one.small or one.large for one in heard):
                    seen.flooded.add(name)
                continue
            seen.listened.add(name)
            if not all(one.small for one in heard):
                seen.deaf.add(name)
            elif not all(one.large for one in heard):
                seen.cut.add(name)

    def _batch(self, names: Sequence[str], step: Callable[[str], Mapping[str, object]], timeout_ms: int) -> Batch:
        asks = (
            Ask(self._subjects[name].index, rpc.Probe(examination=self._number, **step(name)), timeout_ms)  # type: ignore[arg-type]
            for name in names
        )
        return Batch("groups", tuple(asks))
