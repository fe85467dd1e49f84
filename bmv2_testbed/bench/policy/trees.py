"""A trace as numbered chunks with parents, and what an engine could report of its sessions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.traces import BLOCK_TOKENS, TraceRequest


@dataclass(frozen=True, slots=True)
class Step:
    """One request: arrival in s, its chunks in prefix order, its tokens."""

    at_s: float
    path: tuple[int, ...]
    tokens: int

    def hit_tokens(self, leading: int) -> int:
        """Tokens in `leading` leading chunks; the last chunk of a request may be shorter than the others."""
        return self.tokens if leading == len(self.path) else min(self.tokens, leading * BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Forest:
    """All requests of a trace over chunks 0 .. count - 1."""

    steps: tuple[Step, ...]
    parents: tuple[int, ...]
    """-1: none."""
    positions: tuple[int, ...]

    @property
    def count(self) -> int:
        """The footprint: distinct chunks."""
        return len(self.parents)

    @property
    def tokens(self) -> int:
        return sum(step.tokens for step in self.steps)


def forest(requests: Sequence[TraceRequest]) -> Forest:
    """Number the chunks of a trace in order of their first use."""
    numbers: dict[int, int] = {}
    parents: list[int] = []
    positions: list[int] = []
    steps = []
    for request in requests:
        path: list[int] = []
        for position, block in enumerate(request.blocks):
            chunk = numbers.setdefault(block, len(numbers))
            if chunk == len(parents):
                parents.append(path[-1] if path else -1)
                positions.append(position)
            path.append(chunk)
        steps.append(Step(request.arrival_ms / 1000, tuple(path), request.input_tokens))
    return Forest(tuple(steps), tuple(parents), tuple(positions))


def session_ends(trees: Forest) -> list[list[int]]:
    """Chunks of which an engine could say after each request that its session will not use them again.

    A request continues another when it begins with all of that one's chunks but the last, which is not full as a rule.
    Requests that continue each other are one session. A chunk that only one session has used so far ends with that
    session's last use of it; what several sessions share (templates) is never named.
    """
    sessions = _sessions(trees)
    last_use = {
        (chunk, session): at
        for at, (step, session) in enumerate(zip(trees.steps, sessions, strict=True))
        for chunk in step.path
    }
    users: list[int] = [-1] * trees.count
    shared = bytearray(trees.count)
    ends = []
    for at, (step, session) in enumerate(zip(trees.steps, sessions, strict=True)):
        for chunk in step.path:
            if users[chunk] not in (-1, session):
                shared[chunk] = 1
            users[chunk] = session
        ends.append([chunk for chunk in step.path if not shared[chunk] and last_use[chunk, session] == at])
    return ends


def _sessions(trees: Forest) -> list[int]:
    """A number for each request, equal within a session."""
    last_user = [-1] * trees.count
    sessions: list[int] = []
    for at, step in enumerate(trees.steps):
        known = next((here for here, chunk in enumerate(step.path) if last_user[chunk] < 0), len(step.path))
        before = last_user[step.path[known - 1]] if known else -1
        continues = before >= 0 and len(trees.steps[before].path) - 1 <= known
        sessions.append(sessions[before] if continues else at)
        for chunk in step.path:
            last_user[chunk] = at
    return sessions
