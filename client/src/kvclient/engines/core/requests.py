"""What the pool does for each of an engine's requests: the scheduler's half of a connector, without any engine. Pure.

The shell tells what happens (`arrived`, `ask`, `looked_up`, `fetched`, `allocated`, `loaded`, `saves`, `ended`) and
carries out the commands it gets back. Lookups and fetches run elsewhere and answer by ticket, so that an answer that
comes too late meets nobody.

    LOOKING -> LOOKED -> FETCHING -> HELD -> LOADING -> RUNNING         chunks are promised only once they are in
        \\         \\         \\        \\                   ^             this node's memory and leased
         `---------`---------`--------`-----> MISSED ---'
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.engines.core.keys import PrefixKeys
from kvclient.engines.core.prefill import FetchTerms
from kvclient.engines.core.states import StatePart, chunks_with_state, flat_state_keys, state_blocks, state_keys
from kvclient.engines.core.windows import NULL_BLOCK, WindowPart, loaded_blocks, saved_blocks
from kvclient.messages import Status, Where

LOOKUP_KEYS_MAX = 65536
"""Keys looked up for one request: tokens beyond them are computed."""


class Stage(enum.Enum):
    LOOKING = "looking"
    LOOKED = "looked"
    FETCHING = "fetching"
    HELD = "held"
    LOADING = "loading"
    MISSED = "missed"
    RUNNING = "running"


class Miss(enum.Enum):
    """Why nothing is loaded for a request; the label of a metric."""

    SHORT = "short"
    """Less than one chunk that the engine does not have itself."""
    ABSENT = "absent"
    """The pool has nothing of it."""
    GATE = "gate"
    """Computing is faster."""
    LATE = "late"
    LOST = "lost"
    """Holders were known and did not deliver, or there was no room here."""
    AWAY = "away"
    """No agent."""
    OFF = "off"
    """Not wanted: by the settings, by the request, or because a load of it has failed before."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the agent where these keys are."""

    request: str
    ticket: int
    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Have the agent bring these keys, in order, and keep the lease under (request, ticket)."""

    request: str
    ticket: int
    keys: tuple[ChunkKey, ...]
    terms: FetchTerms


@dataclass(frozen=True, slots=True)
class Release:
    """Give the lease of (request, ticket) back, or cancel the fetch that would bring it."""

    request: str
    ticket: int


Command = LookUp | Fetch | Release


@dataclass(frozen=True, slots=True)
class Load:
    """Workers are to copy blocks of leased chunks into the paged cache."""

    request: str
    keys: tuple[tuple[ChunkKey, ...], ...]
    """Per chunk, per shard."""
    skip_blocks: int
    """Blocks at the head of the first chunk that the engine has itself."""
    block_ids: tuple[int, ...]
    windows: tuple[tuple[WindowPart, ...], ...] = ()
    """Per chunk, per group of layers with a window; empty where there are none."""
    state: StatePart | None = None
    """Of recurrent layers, behind the last chunk."""


@dataclass(frozen=True, slots=True)
class SavableChunk:
    """A chunk whose blocks are all computed, or the state of recurrent layers at its end."""

    chunk: int
    keys: tuple[ChunkKey, ...]
    parents: tuple[ChunkKey | None, ...]
    block_ids: tuple[int, ...]
    is_state: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """To the scheduler's question how many tokens can be loaded. `tokens` None: ask again later."""

    tokens: int | None
    commands: tuple[Command, ...] = ()


@dataclass(slots=True)
class _Request:
    keys: PrefixKeys
    may_load: bool
    may_save: bool
    stage: Stage = Stage.MISSED
    ticket: int = 0
    where: list[Where] = field(default_factory=list)
    """Per chunk looked up: where its farthest shard is."""
    states: list[Where] = field(default_factory=list)
    """Of recurrent layers, likewise: where the state at the chunk's end is."""
    first_chunk: int = 0
    wanted_chunks: int = 0
    """Leading chunks that the fetch is for: [first_chunk, wanted_chunks), and the state behind them."""
    held_chunks: int = 0
    """Leading chunks held: [first_chunk, held_chunks) by lease, before it by the engine itself."""
    sources: tuple[ChunkSource, ...] = ()
    load_key: ChunkKey | None = None
    """First key of the fetch or load under way, under which others wait for it."""
    expected_chunks: int = 0
    """Leading chunks that another engine computes for this request: the fetch waits for them, also while nobody has
    them."""
    load_failed: bool = False
    why: Miss | None = None
    """Of a request that missed."""
    ended: bool = False
    next_save: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of loading and saving, out of the settings."""

    block_tokens: int
    chunk_tokens: int
    tokens_min: int = 1
    """The engine computes fewer tokens than these itself."""
    share_loads: bool = True
    """Whether requests wait when another one loads the same chunks (the engine's own prefix cache shares it)."""
    windows: tuple[int, ...] = ()
    """Blocks that a chunk holds of each group of layers with a window."""
    has_states: bool = False
    """Whether there are recurrent layers: a prefix is loaded with the state at its end, or not at all."""


class RequestCaches:
    """What each request of one scheduler loads and saves."""

    def __init__(
        self, rules: Rules, terms: Callable[[str, int, int], FetchTerms], missed: Callable[[Miss, int], None]
    ) -> None:
        """`terms(request, first, tokens)`: terms of a fetch that spares computing `tokens` tokens from position `first`
        on; `missed` counts misses."""
        self._rules = rules
        self._terms = terms
        self._missed = missed
        self._requests: dict[str, _Request] = {}
        self.loading: dict[ChunkKey, str] = {}
        """First key of each load under way, so that others who want the same wait for it."""
        self._tickets = 0

    def __contains__(self, request: str) -> bool:
        return request in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def stage(self, request: str) -> Stage:
        """Where a request stands. Raises KeyError."""
        return self._requests[request].stage

    def keys(self, request: str) -> PrefixKeys:
        """A request's keys so far. Raises KeyError."""
        return self._requests[request].keys

    def expects(self, request: str) -> bool:
        """Whether a request's next fetch waits for chunks that no node has yet. Raises KeyError."""
        return self._requests[request].expected_chunks > 0

    def offered_chunks(self, request: str) -> int:
        """Leading chunks of a request that were offered for saving so far, or are in the pool. Raises KeyError."""
        return self._requests[request].next_save

    def sources(self, request: str) -> tuple[ChunkSource, ...]:
        """Sources of the chunks held for a request, each by its farthest shard."""
        return self._requests[request].sources

    # ------------------------------------------------------------------ what happens

    def request_arrived(
        self,
        request: str,
        tokens: Sequence[int],
        keys: PrefixKeys,
        *,
        may_load: bool,
        may_save: bool,
        away: bool,
        expected_chunks: int = 0,
    ) -> tuple[Command, ...]:
        """A new request. Its lookup starts now, so that it is answered when the scheduler asks.

        `expected_chunks`: leading chunks that another engine computes for it; its first fetch waits for them.
        """
        state = self._requests[request] = _Request(keys, may_load, may_save, expected_chunks=expected_chunks)
        return self._look(request, state, tokens, away=away)

    def ask(
        self, request: str, tokens: Sequence[int], computed_tokens: int, *, away: bool, again: bool = False
    ) -> Answer:
        """How many tokens beyond `computed_tokens` (whole blocks) can be loaded. May be asked again and again.

        `again`: the lookup is old, and others may have computed meanwhile what no node had then."""
        state = self._requests[request]
        outdated = again and state.stage is Stage.MISSED and state.why in _MAY_CHANGE
        if state.stage is Stage.RUNNING or outdated:
            # Preempted, or its load failed: everything starts over, though a failed load is not tried twice.
            commands = self._look(request, state, tokens, away=away)
            return Answer(None if commands else 0, commands)
        match state.stage:
            case Stage.LOOKED:
                return self._want(request, state, len(tokens), computed_tokens)
            case Stage.HELD:
                return self._hold(request, state, len(tokens), computed_tokens)
            case Stage.MISSED:
                return Answer(0)
            case _:
                # LOADING: preempted in the very step that loads; its outcome is known when that step has ended.
                return Answer(None)

    def lookup_answered(self, request: str, ticket: int, where: Sequence[Where] | None) -> None:
        """The lookup of a ticket is answered, per key; None: there is no agent."""
        state = self._requests.get(request)
        if state is None or state.ticket != ticket or state.stage is not Stage.LOOKING:
            return
        if where is None:
            self._miss(state, Miss.AWAY, 0)
            return
        state.where = _by_chunk(where, len(state.keys.keys[0]))
        if self._rules.has_states:
            chunks = len(state.where) // 2
            state.where, state.states = state.where[:chunks], state.where[chunks:]
        if self._known_chunks(state) == 0:
            self._miss(state, Miss.ABSENT, len(state.where) * self._rules.chunk_tokens)
        else:
            state.stage = Stage.LOOKED

    def fetch_answered(
        self, request: str, ticket: int, sources: Sequence[ChunkSource], outcome: Status
    ) -> tuple[Command, ...]:
        """A fetch is answered: sources of the leading keys that are leased now, and why there are no more."""
        state = self._requests.get(request)
        if state is None or state.ticket != ticket or state.stage is not Stage.FETCHING:
            return (Release(request, ticket),)
        state.expected_chunks = 0
        shards = len(state.keys.keys[0])
        chunks = len(sources) // shards
        if self._rules.has_states:
            chunks -= 1  # the state is the last key
            if state.first_chunk + chunks < state.wanted_chunks:
                return self._fell_short(request, state, sources, outcome)
        if chunks == 0:
            self._forget_load(state)
            self._miss(state, _MISSES.get(outcome, Miss.LOST), 0)
            return (Release(request, ticket),) if sources else ()
        state.stage = Stage.HELD
        state.held_chunks = state.first_chunk + chunks
        state.sources = tuple(max(sources[at * shards : (at + 1) * shards]) for at in range(chunks))
        return ()

    def blocks_allocated(
        self,
        request: str,
        external_tokens: int,
        block_ids: Sequence[int],
        tables: Sequence[Sequence[int]] = (),
        state_tables: Sequence[Sequence[int]] = (),
    ) -> tuple[Load | None, tuple[Command, ...]]:
        """The scheduler has given a request its blocks; `external_tokens` of what was promised are to be loaded.

        `tables`: blocks of the groups of layers with windows; `state_tables`: of those of recurrent layers. Raises
        ValueError when there is no block for the state.
        """
        state = self._requests[request]
        if state.stage is Stage.HELD and external_tokens:
            return self._load(request, state, external_tokens, block_ids, tables, state_tables), ()
        if state.stage in (Stage.LOADING, Stage.RUNNING):
            return None, ()
        commands = (Release(request, state.ticket),) if state.stage in (Stage.HELD, Stage.FETCHING) else ()
        self._forget_load(state)
        state.stage = Stage.RUNNING
        return None, commands

    def load_ended(self, request: str, *, whole: bool) -> tuple[Command, ...]:
        """All workers are done with a load; not `whole`: the engine has to compute what failed."""
        state = self._requests.get(request)
        if state is None or state.stage is not Stage.LOADING:
            return ()
        state.stage = Stage.RUNNING
        if not whole:
            # What the pool has is uncertain again: an agent that restarted has lost it all.
            state.load_failed = True
            state.where = []
            state.states = []
            state.first_chunk = state.held_chunks = 0
        self._forget_load(state)
        release = (Release(request, state.ticket),)
        if state.ended:
            del self._requests[request]
        return release

    def next_save_tokens(self, request: str) -> int | None:
        """How many tokens of a request have to be computed until `saves` has something; None: it never will."""
        state = self._requests.get(request)
        if state is None or not state.may_save or state.keys.named(state.next_save + 1) == state.next_save:
            return None
        return (state.next_save + 1) * self._rules.chunk_tokens

    def saves(
        self,
        request: str,
        tokens: Sequence[int],
        computed_tokens: int,
        block_ids: Sequence[int],
        tables: Sequence[Sequence[int]] = (),
    ) -> list[SavableChunk]:
        """Chunks that are whole after a step and were not offered before; `computed_tokens` of `tokens` are done.

        `tables`: blocks of the groups of layers with windows. A chunk of which the engine gave some back is left out.
        """
        state = self._requests.get(request)
        if state is None or not state.may_save:
            return []
        rules = self._rules
        blocks = rules.chunk_tokens // rules.block_tokens
        end = min(computed_tokens, len(tokens)) // rules.chunk_tokens
        end = state.keys.named(min(end, len(block_ids) // blocks))
        if end <= state.next_save:
            return []
        state.keys.extend(tokens, end)
        found = []
        for chunk in range(state.next_save, end):
            main = tuple(block_ids[chunk * blocks : (chunk + 1) * blocks])
            windows = saved_blocks(tables, rules.windows, chunk, blocks)
            if windows is not None and NULL_BLOCK not in main and not self._is_here(state, chunk):
                keys = state.keys.keys[chunk]
                found.append(SavableChunk(chunk, keys, state.keys.parents(chunk), main + windows))
        state.next_save = end
        return found

    def state_save(
        self, request: str, tokens: Sequence[int], end_tokens: int, block_ids: Sequence[int]
    ) -> SavableChunk | None:
        """The engine has the state behind `end_tokens` after a step: what to save of it, if the pool is to have it.

        `block_ids`: one block of each group of recurrent layers.
        """
        state = self._requests.get(request)
        end, rest = divmod(end_tokens, self._rules.chunk_tokens)
        if state is None or not state.may_save or rest or end == 0 or end_tokens > len(tokens):
            return None
        if state.keys.named(end) < end:
            return None
        chunk = end - 1
        is_here = chunk < len(state.states) and state.states[chunk] is Where.LOCAL
        if is_here or end == state.held_chunks:
            return None
        state.keys.extend(tokens, end)
        parents = state.keys.keys[chunk]
        return SavableChunk(chunk, state_keys(parents), parents, tuple(block_ids), is_state=True)

    def shared_tokens(self, request: str) -> int:
        """Leading tokens of a request whose chunks the pool has, also those that no state lets it load. Raises
        KeyError."""
        state = self._requests[request]
        return _leading(state.where, 0) * self._rules.chunk_tokens

    def request_ended(self, request: str) -> tuple[Command, ...]:
        """A request is finished or aborted. One that is being loaded stays until its workers are done."""
        state = self._requests.get(request)
        if state is None:
            return ()
        if state.stage is Stage.LOADING:
            state.ended = True
            return ()
        self._forget_load(state)
        del self._requests[request]
        if state.stage in (Stage.FETCHING, Stage.HELD):
            return (Release(request, state.ticket),)
        return ()

    def distrust(self) -> tuple[Command, ...]:
        """The weights may be others from now on: no request of this moment loads or saves anything any more.

        A request that is being loaded goes on with what it has, and so does one that runs.
        """
        commands: list[Command] = []
        for request, state in self._requests.items():
            state.may_load = state.may_save = False
            if state.stage in (Stage.FETCHING, Stage.HELD):
                commands.append(Release(request, state.ticket))
            if state.stage in (Stage.LOOKING, Stage.LOOKED, Stage.FETCHING, Stage.HELD):
                self._forget_load(state)
                self._miss(state, Miss.OFF, 0)
        return tuple(commands)

    # ------------------------------------------------------------------ inside

    def _look(self, request: str, state: _Request, tokens: Sequence[int], *, away: bool) -> tuple[Command, ...]:
        size = self._rules.chunk_tokens
        # The engine always computes at least the last token itself: its output is the next token.
        chunks = state.keys.named(max(0, len(tokens) - 1) // size)
        state.where = []
        state.states = []
        state.first_chunk = state.held_chunks = 0
        state.sources = ()
        if not state.may_load or state.load_failed:
            self._miss(state, Miss.OFF, 0)
        elif chunks == 0:
            self._miss(state, Miss.SHORT, 0)
        elif away:
            self._miss(state, Miss.AWAY, chunks * size)
        else:
            state.keys.extend(tokens, chunks)
            shards = len(state.keys.keys[0])
            chunks = min(chunks, LOOKUP_KEYS_MAX // (shards * (2 if self._rules.has_states else 1)))
            keys = state.keys.flat(0, chunks)
            if self._rules.has_states:
                keys += flat_state_keys(state.keys.keys[:chunks])
            self._tickets += 1
            state.ticket = self._tickets
            state.stage = Stage.LOOKING
            return (LookUp(request, state.ticket, tuple(keys)),)
        return ()

    def _want(self, request: str, state: _Request, tokens_count: int, computed_tokens: int) -> Answer:
        """The lookup is answered: begin the fetch of what the engine lacks."""
        rules = self._rules
        known = self._known_chunks(state, (tokens_count - 1) // rules.chunk_tokens)
        spared = known * rules.chunk_tokens - computed_tokens
        if spared < max(1, rules.tokens_min):
            self._miss(state, Miss.SHORT, 0)
            return Answer(0)
        first = computed_tokens // rules.chunk_tokens
        keys = tuple(state.keys.flat(first, known))
        if rules.has_states:
            keys += state_keys(state.keys.keys[known - 1])
        if rules.share_loads:
            if self.loading.get(keys[0], request) != request:
                return Answer(None)
            self._forget_load(state)
            self.loading[keys[0]] = request
            state.load_key = keys[0]
        state.first_chunk, state.wanted_chunks = first, known
        self._tickets += 1
        state.ticket = self._tickets
        state.stage = Stage.FETCHING
        contested = self._contested(state, first, known, spared)
        terms = self._terms(request, known * rules.chunk_tokens - contested, contested)
        return Answer(None, (Fetch(request, state.ticket, keys, terms),))

    def _contested(self, state: _Request, first: int, known: int, spared: int) -> int:
        """Tokens that the engine would have to compute without the fetch: chunks of this node's pool need none."""
        if self._rules.has_states:
            return spared  # all of it, or nothing
        for chunk in range(first, known):
            if state.where[chunk] is not Where.LOCAL:
                return min(spared, (known - chunk) * self._rules.chunk_tokens)
        return spared

    def _hold(self, request: str, state: _Request, tokens_count: int, computed_tokens: int) -> Answer:
        """Chunks are leased: promise them, if they still continue what the engine has itself."""
        rules = self._rules
        first = computed_tokens // rules.chunk_tokens
        if first < state.first_chunk:
            # The engine has evicted blocks of its own meanwhile: the held chunks no longer follow on from what it has.
            ticket, state.stage = state.ticket, Stage.LOOKED
            again = self._want(request, state, tokens_count, computed_tokens)
            return Answer(again.tokens, (Release(request, ticket), *again.commands))
        spared = state.held_chunks * rules.chunk_tokens - computed_tokens
        if spared < max(1, rules.tokens_min):
            ticket = state.ticket
            self._forget_load(state)
            self._miss(state, Miss.SHORT, 0)
            return Answer(0, (Release(request, ticket),))
        return Answer(spared)

    def _load(
        self,
        request: str,
        state: _Request,
        external_tokens: int,
        block_ids: Sequence[int],
        tables: Sequence[Sequence[int]],
        state_tables: Sequence[Sequence[int]],
    ) -> Load:
        rules = self._rules
        end_tokens = state.held_chunks * rules.chunk_tokens
        start_tokens = end_tokens - external_tokens
        first = start_tokens // rules.chunk_tokens
        state.stage = Stage.LOADING
        blocks = range(start_tokens // rules.block_tokens, end_tokens // rules.block_tokens)
        part = None
        if rules.has_states:
            last_keys = state.keys.keys[state.held_chunks - 1]
            part = StatePart(state_keys(last_keys), state_blocks(state_tables, blocks.stop))
        chunk_blocks = rules.chunk_tokens // rules.block_tokens
        return Load(
            request,
            tuple(state.keys.keys[first : state.held_chunks]),
            blocks.start - first * chunk_blocks,
            tuple(block_ids[blocks.start : blocks.stop]),
            loaded_blocks(tables, rules.windows, blocks.start, blocks.stop, chunk_blocks) if rules.windows else (),
            part,
        )

    def _fell_short(
        self, request: str, state: _Request, sources: Sequence[ChunkSource], outcome: Status
    ) -> tuple[Command, ...]:
        """A fetch did not bring the state at its end. The arrived chunks may end with an earlier state: fetch that."""
        arrived = state.first_chunk + len(sources) // len(state.keys.keys[0])
        state.where = state.where[: min(arrived, state.wanted_chunks - 1)]
        self._forget_load(state)
        if self._known_chunks(state) > state.first_chunk:
            state.stage = Stage.LOOKED
        else:
            self._miss(state, _MISSES.get(outcome, Miss.LOST), 0)
        return (Release(request, state.ticket),) if sources else ()

    def _is_here(self, state: _Request, chunk: int) -> bool:
        """Whether this node's pool has all of a chunk, as far as is known."""
        if state.first_chunk <= chunk < state.held_chunks:
            return True
        return chunk < len(state.where) and state.where[chunk] is Where.LOCAL

    def _known_chunks(self, state: _Request, most: int = LOOKUP_KEYS_MAX) -> int:
        """Leading chunks that can be fetched, at most so many."""
        chunks = min(_leading(state.where, state.expected_chunks), most)
        return chunks_with_state(state.states, chunks, state.expected_chunks) if self._rules.has_states else chunks

    def _miss(self, state: _Request, why: Miss, tokens: int) -> None:
        state.stage = Stage.MISSED
        if state.why is not why:
            self._missed(why, tokens)
        state.why = why

    def _forget_load(self, state: _Request) -> None:
        if state.load_key is not None:
            self.loading.pop(state.load_key, None)
            state.load_key = None


_MAY_CHANGE = frozenset({Miss.ABSENT, Miss.GATE})
"""Misses that may be none a little later."""

_MISSES = {
    Status.NOT_FOUND: Miss.ABSENT,
    Status.GATE: Miss.GATE,
    Status.DEADLINE: Miss.LATE,
    Status.ABANDONED: Miss.LATE,
    Status.FILLING: Miss.ABSENT,
}


def _leading(where: Sequence[Where], expected_chunks: int) -> int:
    """Leading chunks that are somewhere, or computed, or expected."""
    for chunk, place in enumerate(where):
        if place is Where.NOWHERE and chunk >= expected_chunks:
            return chunk
    return len(where)


def _by_chunk(where: Sequence[Where], shards: int) -> list[Where]:
    """Where chunks are, by where their shards are, all shards of a chunk next to each other."""
    if shards == 1:
        return list(where)
    whole = len(where) - len(where) % shards
    return [farthest(where[at : at + shards]) for at in range(0, whole, shards)]


def farthest(where: Sequence[Where]) -> Where:
    """Where a chunk is when its shards are in several places: a hit needs all of them."""
    return min(where, key=_NEARNESS.__getitem__)


_NEARNESS = {Where.NOWHERE: 0, Where.COMPUTING: 1, Where.REMOTE: 2, Where.SWITCH: 3, Where.LOCAL: 4}
