"""The scheduler's half of a connector, event by event."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.engines.core.keys import MediaSpan, PrefixKeys
from kvclient.engines.core.prefill import FetchTerms
from kvclient.engines.core.requests import Command, Fetch, LookUp, Miss, Release, RequestCaches, Rules, Stage
from kvclient.messages import Status, Where

BLOCK, CHUNK = 4, 8
L, R, N, S = Where.LOCAL, Where.REMOTE, Where.NOWHERE, Where.SWITCH
TERMS = FetchTerms(1.0, 1.0)


class Script:
    """A connector's core with what it asked for and why it missed."""

    def __init__(self, *, shards: int = 1, share_loads: bool = True, tokens_min: int = 1) -> None:
        self.missed: list[Miss] = []
        self.terms: list[int] = []
        self.shards = shards
        self.core = RequestCaches(
            Rules(BLOCK, CHUNK, tokens_min, share_loads), self._terms, lambda why, _: self.missed.append(why)
        )

    def _terms(self, _request: str, _first: int, tokens: int) -> FetchTerms:
        self.terms.append(tokens)
        return TERMS

    def arrive(
        self, name: str, tokens: Sequence[int], *, may_load: bool = True, may_save: bool = True, away: bool = False
    ) -> tuple[Command, ...]:
        keys = PrefixKeys([bytes([shard]) * 32 for shard in range(self.shards)], CHUNK)
        return self.core.request_arrived(name, tokens, keys, may_load=may_load, may_save=may_save, away=away)

    def hold(self, name: str, tokens: Sequence[int], where: Sequence[Where], computed: int = 0) -> Fetch:
        """Bring a request to its fetch."""
        (lookup,) = self.arrive(name, tokens)
        assert isinstance(lookup, LookUp)
        self.core.lookup_answered(name, lookup.ticket, where)
        (fetch,) = self.core.ask(name, tokens, computed, away=False).commands
        assert isinstance(fetch, Fetch)
        return fetch

    def ask(self, name: str, tokens: Sequence[int], computed: int = 0) -> int | None:
        answer = self.core.ask(name, tokens, computed, away=False)
        assert not answer.commands
        return answer.tokens


TOKENS = list(range(35))  # four whole chunks and three tokens


def test_from_arrival_to_load_and_release() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [L, R, R, R])
    assert script.terms == [24], "the local chunk comes whatever the rest costs"
    assert script.ask("a", TOKENS) is None
    assert script.core.fetch_answered("a", fetch.ticket, [ChunkSource.LOCAL] + [ChunkSource.CAST] * 3, Status.OK) == ()
    assert script.ask("a", TOKENS) == 32
    assert script.ask("a", TOKENS) == 32, "asking changes nothing"
    load, commands = script.core.blocks_allocated("a", 32, list(range(100, 109)))
    assert load is not None
    assert commands == ()
    assert (load.skip_blocks, load.block_ids, len(load.keys)) == (0, tuple(range(100, 108)), 4)
    assert script.core.blocks_allocated("a", 0, []) == (None, ())
    assert script.core.load_ended("a", whole=True) == (Release("a", fetch.ticket),)
    assert script.core.stage("a") is Stage.RUNNING
    assert script.core.request_ended("a") == ()
    assert len(script.core) == 0


def test_the_last_token_is_always_computed() -> None:
    script = Script()
    (lookup,) = script.arrive("a", TOKENS[:32])
    assert isinstance(lookup, LookUp)
    assert len(lookup.keys) == 3


def test_blocks_of_the_engine_itself_are_not_loaded() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [R, R, R, N], computed=12)
    assert len(fetch.keys) == 2, "from the chunk in whose middle the engine's own blocks end"
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.HOLDER] * 2, Status.OK)
    assert script.ask("a", TOKENS, 12) == 12
    load, _ = script.core.blocks_allocated("a", 12, list(range(50, 60)))
    assert load is not None
    assert (load.skip_blocks, load.block_ids) == (1, (53, 54, 55))


def test_what_arrived_of_a_fetch_is_used() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [L, R, R, R])
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.LOCAL, ChunkSource.HOLDER], Status.DEADLINE)
    assert script.ask("a", TOKENS) == 16


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Status.GATE, Miss.GATE),
        (Status.DEADLINE, Miss.LATE),
        (Status.NOT_FOUND, Miss.ABSENT),
        (Status.POOL_FULL, Miss.LOST),
    ],
)
def test_a_fetch_that_brings_nothing_is_a_miss(outcome: Status, why: Miss) -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [R] * 4)
    assert script.core.fetch_answered("a", fetch.ticket, [], outcome) == ()
    assert script.ask("a", TOKENS) == 0
    assert script.missed == [why]
    assert script.core.blocks_allocated("a", 0, [1]) == (None, ())
    assert script.core.request_ended("a") == ()


def test_expected_chunks_are_fetched_before_anybody_has_them() -> None:
    script = Script()
    keys = PrefixKeys([bytes(32)], CHUNK)
    (lookup,) = script.core.request_arrived(
        "a", TOKENS, keys, may_load=True, may_save=True, away=False, expected_chunks=3
    )
    assert isinstance(lookup, LookUp)
    assert script.core.expects("a")
    script.core.lookup_answered("a", lookup.ticket, [L, N, N, N])
    (fetch,) = script.core.ask("a", TOKENS, 0, away=False).commands
    assert isinstance(fetch, Fetch)
    assert len(fetch.keys) == 3, "nobody has said that the fourth will be there"
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.LOCAL, ChunkSource.CAST], Status.ABANDONED)
    assert not script.core.expects("a"), "once is enough"
    assert script.ask("a", TOKENS) == 16


def test_misses_without_a_fetch() -> None:
    script = Script()
    assert script.arrive("short", TOKENS[:8]) == ()
    assert script.arrive("away", TOKENS, away=True) == ()
    assert script.arrive("off", TOKENS, may_load=False) == ()
    (lookup,) = script.arrive("absent", TOKENS)
    assert isinstance(lookup, LookUp)
    script.core.lookup_answered("absent", lookup.ticket, [N, R, R, R])
    (lookup,) = script.arrive("silent", TOKENS)
    assert isinstance(lookup, LookUp)
    script.core.lookup_answered("silent", lookup.ticket, None)
    assert [script.ask(name, TOKENS) for name in ("short", "away", "off", "absent", "silent")] == [0] * 5
    assert script.missed == [Miss.SHORT, Miss.AWAY, Miss.OFF, Miss.ABSENT, Miss.AWAY]


def test_a_hit_needs_all_shards() -> None:
    script = Script(shards=2)
    fetch = script.hold("a", TOKENS, [L, R, S, L, L, N, L, L])
    assert len(fetch.keys) == 4
    release = script.core.fetch_answered(
        "a", fetch.ticket, [ChunkSource.LOCAL, ChunkSource.CAST, ChunkSource.LOCAL], Status.DEADLINE
    )
    assert release == ()
    assert script.ask("a", TOKENS) == 8
    assert script.core.sources("a") == (ChunkSource.CAST,)


def test_answers_that_come_too_late_meet_nobody() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [R] * 4)
    assert script.core.request_ended("a") == (Release("a", fetch.ticket),)
    assert script.core.fetch_answered("a", fetch.ticket, [ChunkSource.HOLDER], Status.OK) == (
        Release("a", fetch.ticket),
    )
    script.core.lookup_answered("a", fetch.ticket, [L] * 4)
    assert script.core.load_ended("a", whole=True) == ()


def test_requests_for_one_prefix_wait_for_one_load() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [R] * 4)
    (lookup,) = script.arrive("b", TOKENS)
    assert isinstance(lookup, LookUp)
    script.core.lookup_answered("b", lookup.ticket, [R] * 4)
    assert script.ask("b", TOKENS) is None
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.HOLDER] * 4, Status.OK)
    script.core.blocks_allocated("a", 32, list(range(9)))
    assert script.ask("b", TOKENS) is None
    script.core.load_ended("a", whole=True)
    assert script.ask("b", TOKENS, 32) == 0, "the engine has them itself now"
    other = Script(share_loads=False)
    other.hold("a", TOKENS, [R] * 4)
    other.hold("b", TOKENS, [R] * 4)


@pytest.mark.parametrize("end", ["ended", "missed"])
def test_who_waited_goes_on_when_the_first_does_not_load(end: str) -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [R] * 4)
    (lookup,) = script.arrive("b", TOKENS)
    assert isinstance(lookup, LookUp)
    script.core.lookup_answered("b", lookup.ticket, [R] * 4)
    if end == "ended":
        script.core.request_ended("a")
    else:
        script.core.fetch_answered("a", fetch.ticket, [], Status.UNAVAILABLE)
    assert script.core.ask("b", TOKENS, 0, away=False).commands


def test_aborted_while_loading_the_lease_outlives_the_copy() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [L] * 4)
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.LOCAL] * 4, Status.OK)
    script.core.blocks_allocated("a", 32, list(range(9)))
    assert script.core.request_ended("a") == ()
    assert "a" in script.core
    assert script.core.load_ended("a", whole=True) == (Release("a", fetch.ticket),)
    assert "a" not in script.core


def test_a_failed_load_is_not_tried_again_and_its_chunks_are_saved() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [L] * 4)
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.LOCAL] * 4, Status.OK)
    script.core.blocks_allocated("a", 32, list(range(9)))
    script.core.load_ended("a", whole=False)
    assert script.ask("a", TOKENS) == 0
    script.core.blocks_allocated("a", 0, list(range(9)))
    assert [chunk.chunk for chunk in script.core.saves("a", TOKENS, 35, list(range(1, 10)))] == [0, 1, 2, 3]


def test_preempted_requests_look_again() -> None:
    script = Script()
    (lookup,) = script.arrive("a", TOKENS)
    assert isinstance(lookup, LookUp)
    script.core.lookup_answered("a", lookup.ticket, [N] * 4)
    assert script.ask("a", TOKENS) == 0
    script.core.blocks_allocated("a", 0, list(range(9)))
    answer = script.core.ask("a", TOKENS, 0, away=False)
    (again,) = answer.commands
    assert isinstance(again, LookUp)
    assert answer.tokens is None
    script.core.lookup_answered("a", again.ticket, [L, L, N, N])
    assert script.core.ask("a", TOKENS, 0, away=False).commands


def test_preempted_while_loading_waits_for_the_load_to_end() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [L] * 4)
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.LOCAL] * 4, Status.OK)
    script.core.blocks_allocated("a", 32, list(range(9)))
    assert script.ask("a", TOKENS) is None
    script.core.load_ended("a", whole=True)
    assert isinstance(script.core.ask("a", TOKENS, 0, away=False).commands[0], LookUp)


def test_blocks_that_the_engine_lost_meanwhile_are_fetched_again() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [R] * 4, computed=16)
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.HOLDER] * 2, Status.OK)
    answer = script.core.ask("a", TOKENS, 0, away=False)
    assert answer.tokens is None
    release, again = answer.commands
    assert release == Release("a", fetch.ticket)
    assert isinstance(again, Fetch)
    assert len(again.keys) == 4


def test_blocks_that_the_engine_got_meanwhile_make_the_lease_needless() -> None:
    script = Script()
    fetch = script.hold("a", TOKENS, [R] * 4)
    script.core.fetch_answered("a", fetch.ticket, [ChunkSource.HOLDER] * 4, Status.OK)
    answer = script.core.ask("a", TOKENS, 32, away=False)
    assert (answer.tokens, answer.commands) == (0, (Release("a", fetch.ticket),))


def test_too_little_is_computed() -> None:
    script = Script(tokens_min=16)
    (lookup,) = script.arrive("a", TOKENS)
    assert isinstance(lookup, LookUp)
    script.core.lookup_answered("a", lookup.ticket, [L, N, N, N])
    assert script.ask("a", TOKENS) == 0


def test_saves_are_whole_chunks_offered_once() -> None:
    script = Script()
    (lookup,) = script.arrive("a", TOKENS)
    assert isinstance(lookup, LookUp)
    script.core.lookup_answered("a", lookup.ticket, [L, R, N, N])
    blocks = list(range(20, 40))
    assert script.core.next_save_tokens("a") == 8
    assert script.core.saves("a", TOKENS, 7, blocks) == []
    first = script.core.saves("a", TOKENS, 20, blocks)
    assert [(chunk.chunk, chunk.block_ids) for chunk in first] == [(1, (22, 23))], "chunk 0 is here"
    second = script.core.saves("a", TOKENS, 35, blocks)
    assert [chunk.chunk for chunk in second] == [2, 3]
    assert second[0].parents == first[0].keys
    assert script.core.saves("a", TOKENS, 35, blocks) == []
    assert script.core.next_save_tokens("a") == 40
    longer = [*TOKENS, *range(5)]
    assert [chunk.chunk for chunk in script.core.saves("a", longer, 40, blocks)] == [4]
    assert script.core.saves("a", longer, 40, blocks[:5]) == []
    assert script.core.saves("unknown", TOKENS, 35, blocks) == []
    assert script.core.next_save_tokens("unknown") is None


def test_requests_may_decline_saves() -> None:
    script = Script()
    script.arrive("a", TOKENS, may_save=False)
    assert script.core.next_save_tokens("a") is None
    assert script.core.saves("a", TOKENS, 35, list(range(1, 10))) == []


@pytest.mark.parametrize(("start", "chunks"), [(20, 2), (3, 0)])
def test_nothing_from_unseen_media_on_is_looked_up_or_saved(start: int, chunks: int) -> None:
    script = Script()
    keys = PrefixKeys([bytes(32)], CHUNK, [MediaSpan(start, start + 2, None)])
    commands = script.core.request_arrived("a", TOKENS, keys, may_load=True, may_save=True, away=False)
    assert [len(command.keys) for command in commands if isinstance(command, LookUp)] == [chunks] * bool(chunks)
    assert (script.core.next_save_tokens("a") is None) == (chunks == 0)
    saves = script.core.saves("a", TOKENS, 35, list(range(1, 10)))
    assert [chunk.chunk for chunk in saves] == list(range(chunks))
    assert script.core.next_save_tokens("a") is None
    assert script.core.state_save("a", TOKENS, 32, [1]) is None


def test_after_a_reset_nobody_loads_or_saves_what_was_made_before() -> None:
    script = Script(share_loads=False)
    fetches = {name: script.hold(name, TOKENS, [L] * 4) for name in ("fetching", "held", "loading")}
    for name in ("held", "loading"):
        script.core.fetch_answered(name, fetches[name].ticket, [ChunkSource.LOCAL] * 4, Status.OK)
    script.core.blocks_allocated("loading", 32, list(range(9)))
    script.arrive("looking", TOKENS)
    assert script.core.distrust() == (
        Release("fetching", fetches["fetching"].ticket),
        Release("held", fetches["held"].ticket),
    )
    for name in ("fetching", "held", "looking"):
        assert script.ask(name, TOKENS) == 0
        assert script.core.blocks_allocated(name, 0, []) == (None, ())
    assert script.core.load_ended("loading", whole=True) == (Release("loading", fetches["loading"].ticket),)
    for name in ("fetching", "held", "loading", "looking"):
        assert script.core.saves(name, TOKENS, 35, list(range(1, 10))) == []
    assert script.missed == [Miss.OFF] * 3


def test_random_scripts_hold_no_lease_in_the_end() -> None:
    """Any order of events: every fetch is released exactly once, and nothing is left."""
    for seed in range(300):
        _random_script(random.Random(seed))


def _random_script(chance: random.Random) -> None:
    script = Script(share_loads=chance.random() < 0.5, shards=chance.choice([1, 2]))
    core = script.core
    lookups: list[LookUp] = []
    fetches: list[Fetch] = []
    open_leases: set[tuple[str, int]] = set()
    loading: set[str] = set()
    alive: set[str] = set()
    tokens = {f"r{index}": [chance.randrange(3) for _ in range(chance.randrange(1, 40))] for index in range(5)}

    def do(commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case LookUp():
                    lookups.append(command)
                case Fetch():
                    fetches.append(command)
                    open_leases.add((command.request, command.ticket))
                case Release(name, ticket):
                    open_leases.discard((name, ticket))

    def answer_fetch() -> None:
        fetch = fetches.pop(chance.randrange(len(fetches)))
        count = chance.randrange(len(fetch.keys) + 1)
        if not count:
            open_leases.discard((fetch.request, fetch.ticket))
        do(
            core.fetch_answered(
                fetch.request, fetch.ticket, [ChunkSource.LOCAL] * count, Status.OK if count else Status.GATE
            )
        )

    for _ in range(200):
        name = chance.choice(list(tokens))
        match chance.randrange(6):
            case 0 if name not in core:
                do(script.arrive(name, tokens[name], away=chance.random() < 0.1))
                alive.add(name)
            case 1 if lookups:
                lookup = lookups.pop()
                where = [chance.choice([L, R, S, L, N]) for _ in lookup.keys]
                core.lookup_answered(lookup.request, lookup.ticket, where if chance.random() < 0.9 else None)
            case 2 if name in alive:
                computed = chance.randrange(0, len(tokens[name]), BLOCK)
                answer = core.ask(name, tokens[name], computed, away=chance.random() < 0.1)
                do(answer.commands)
                if answer.tokens is not None and chance.random() < 0.7:
                    assert computed + answer.tokens < len(tokens[name]) or not answer.tokens
                    load, commands = core.blocks_allocated(name, answer.tokens, list(range(20)))
                    do(commands)
                    assert (load is not None) == bool(answer.tokens)
                    if load is not None:
                        loading.add(name)
                        assert len(load.block_ids) * BLOCK == answer.tokens
            case 3 if fetches:
                answer_fetch()
            case 4 if loading:
                ended = loading.pop()
                do(core.load_ended(ended, whole=chance.random() < 0.8))
            case 5 if name in alive and chance.random() < 0.3:
                alive.discard(name)
                do(core.request_ended(name))
    for name in sorted(alive):
        do(core.request_ended(name))
    while loading:
        do(core.load_ended(loading.pop(), whole=True))
    while fetches:
        answer_fetch()
    assert not open_leases
    assert len(core) == 0
    assert not core.loading


def test_keys_differ_between_shards() -> None:
    script = Script(shards=2)
    fetch = script.hold("a", TOKENS, [L] * 8)
    assert len(set(fetch.keys)) == 8
    assert all(isinstance(key, bytes) and len(ChunkKey(key)) == 16 for key in fetch.keys)
