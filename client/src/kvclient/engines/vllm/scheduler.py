"""The connector's half in the scheduler: carries what vLLM asks to the pure core, and the core's commands out.

Everything here runs on the scheduler's thread. Requests to the agent leave at once; at most `lookup_wait_s` of a
step is spent waiting for them, so that what lies in this node's memory is found in the very step that asks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvchunk.ids import ChunkKey
from kvclient.client import AgentClient, AgentUnavailableError, ChunkSource, Status, Where
from kvclient.engines.core.claims import Claim, ClaimLedger, Disclaim
from kvclient.engines.core.generations import Told
from kvclient.engines.core.keys import PrefixKeys
from kvclient.engines.core.prefill import FetchTerms, PrefillModel, positions_of
from kvclient.engines.core.requests import (
    Command,
    Fetch,
    Load,
    LookUp,
    Miss,
    Release,
    RequestCaches,
    Rules,
    SavableChunk,
    Stage,
)
from kvclient.engines.core.saves import SaveLedger
from kvclient.engines.core.states import state_keys
from kvclient.engines.link import AgentLink
from kvclient.engines.pool_io import Answer, FetchEnded, LookedUp, PoolIo, Swept
from kvclient.engines.settings import Settings
from kvclient.engines.vllm.chunk_names import ChunkNames
from kvclient.engines.vllm.events import PoolNews
from kvclient.engines.vllm.facts import CacheGroups
from kvclient.engines.vllm.handoffs import Handoffs
from kvclient.engines.vllm.idle import IdleNews
from kvclient.engines.vllm.metadata import NOTHING, StepOrders, StepReports
from kvclient.engines.vllm.metrics import GAUGES, KvcastStats
from kvclient.engines.vllm.saving import Saving
from kvclient.engines.vllm.waiting_line import StepTimes, WaitingLine
from kvclient.engines.warming import Warming
from kvclient.polled_client import PolledClient

log = logging.getLogger("vllm.kvcast")

ANSWER_GRACE_S = 1.0
"""An agent that has not answered a fetch this long after its deadline does not answer at all."""
ALONE_PATIENCE = 5
"""An engine with one request waits ALONE_PATIENCE x `lookup_wait_s`: otherwise it would only run empty steps."""
LOOK_AGAIN_S = 0.05
"""A request that still waits for its turn is looked up again after this long: others may have computed it meanwhile."""


@dataclass(slots=True)
class _Waiting:
    since_s: float
    limit_s: float


class KvcastConnectorScheduler:
    """The scheduler's connector."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings, groups: CacheGroups) -> None:
        """Raises SettingsError."""
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._settings = settings
        self._groups = groups
        self._prefill = PrefillModel(settings.prefill_tokens_per_s)
        self._fetch_bytes_per_s = 0.0
        self._stats = KvcastStats()
        self._gauges_told: tuple[float, ...] = ()
        self._requests: dict[str, Any] = {}
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._silent: set[tuple[str, int]] = set()
        """Unanswered lookups and fetches for which no request waits any more."""
        self._caches = RequestCaches(
            Rules(
                groups.block_tokens,
                settings.chunk_tokens,
                settings.load_tokens_min,
                share_loads=bool(vllm_config.cache_config.enable_prefix_caching),
                windows=groups.kept_blocks,
                has_states=bool(groups.states),
            ),
            self._terms,
            self._missed,
        )
        self._times = StepTimes(self._prefill)
        self._line = WaitingLine(self._requests, self._caches.stage, self._prefill, settings)
        self._handoffs = Handoffs(vllm_config, settings)
        self._claims = ClaimLedger(settings.chunk_tokens, self._cost_s)
        self._looked_s: dict[str, float] = {}
        """When a request was last looked up."""
        self._own_tokens: dict[str, int] = {}
        """Tokens of a request that vLLM had itself when it last asked."""
        self._orders = StepOrders()
        # Elsewhere layers run from captured graphs, which no Python can hold up.
        self._can_layer = current_platform.is_cpu() and not groups.is_hybrid
        self._by_layers: set[str] = set()
        self._layers_open: set[str] = set()
        """Requests whose load by layers not all workers have reported. What any request computes meanwhile may stand on
        KV that did not arrive: vLLM computes it again, and nothing of it may get into the pool."""
        self._load_reports: dict[str, tuple[int, int]] = {}
        """Workers done with a load, and those of them that failed, while others are still at it."""
        self._waited_s = 0.0
        """In this step, for answers."""
        self._news = PoolNews(vllm_config, kv_cache_config, settings, groups)
        kept_blocks = max(1, int(kv_cache_config.num_blocks * settings.save_blocks_share))
        ledger = SaveLedger(vllm_config.parallel_config.world_size, kept_blocks)
        self._saving = Saving(settings, self._caches, ledger, self._news, self._offered)
        self._idle_news: IdleNews | None = None
        self._swept_s = time.monotonic()
        self._link = AgentLink(PolledClient, settings.socket, log, answer_timeout_s=settings.answer_timeout_s)
        self._names = ChunkNames(vllm_config, settings, groups, self._link)
        self._early: dict[str, Any] = {}
        """Requests that arrived before the workers had reported their caches."""
        self._outages_told = 0
        self._io = PoolIo(self._link, log, time.monotonic)
        self._warming = Warming(settings, self._names.find_namespace, log) if settings.warm_bytes else None
        if vllm_config.kv_transfer_config.kv_load_failure_policy == "fail":
            log.warning(
                'kvcast: kv_load_failure_policy is "fail": requests end when a load fails; "recompute" is better'
            )

    # ------------------------------------------------------------------ start and end

    def bind_block_pool(self, block_pool: Any) -> None:
        """vLLM's own counts of who uses a block: saves keep theirs by it."""
        self._saving.bind(block_pool)

    def watch_while_idle(self, scheduler: Any) -> None:
        """Tell routers through vLLM's `scheduler` (None: it is not known), also while it makes no steps."""
        if self._news.is_on and scheduler is not None:
            self._idle_news = IdleNews(self._settings, self._news, scheduler, lambda: self._times.ended_s)

    def reset_begins(self) -> None:
        """vLLM is about to empty its own cache, which it cannot while saves keep blocks."""
        self._saving.abandon()

    def weights_may_have_changed(self, *, cache_emptied: bool) -> None:
        """vLLM resets caches when the weights may have changed: whether they have, the workers say with the next step.
        `cache_emptied`: vLLM's own cache is empty."""
        self._names.weights_may_have_changed(cache_emptied=cache_emptied)
        self._distrust()

    def _distrust(self) -> None:
        """What requests of this moment computed may stand on KV of other weights than their keys say."""
        self._do(self._caches.distrust())
        for request_id in self._requests:
            self._disclaim(request_id)
        self._saving.distrust()

    def note_failure(self, doing: str) -> None:
        """Log and count an unexpected exception, caught while `doing`."""
        log.exception("kvcast: %s failed", doing)
        self._stats.add("internal_errors")

    def fail_load(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """Promised tokens cannot be ordered: workers report the request's blocks as failed, and vLLM computes them."""
        if external_tokens:
            main, _, _ = self._tables(blocks.get_block_ids())
            self._order_load(Load(request.request_id, (), 0, tuple(main)))

    def _tables(
        self, block_ids: Sequence[Sequence[int]]
    ) -> tuple[Sequence[int], list[Sequence[int]], list[Sequence[int]]]:
        """Block tables of a request: the leading group's, those of the others in the order of their parts, and those of
        recurrent layers."""
        first, *others = self._groups.order
        states = [block_ids[number] for number in self._groups.states]
        return block_ids[first], [block_ids[number] for number in others], states

    def _order_load(self, load: Load) -> None:
        if load.request in self._by_layers:
            self._orders.layerwise_loads.append(load)
            self._layers_open.add(load.request)
        else:
            self._orders.loads.append(load)

    def where(self, tokens: Sequence[int]) -> list[tuple[ChunkKey, Where]]:
        """For tools: key and whereabouts of each full chunk of plain text at each worker. Waits for the agent.

        Raises AgentUnavailableError.
        """
        if self._names.keys is None:
            raise AgentUnavailableError("the workers of this engine have not reported their caches yet")
        keys = self._names.keys.of_text(tokens)
        flat = keys.flat(0, keys.chunks_count)
        with AgentClient(self._settings.socket) as client:
            return list(zip(flat, client.contains(flat), strict=True))

    def close(self) -> None:
        """End everything."""
        if self._warming is not None:
            self._warming.close()
        if self._idle_news is not None:
            self._idle_news.close()
        self._link.close()
        self._io.close()

    # ------------------------------------------------------------------ requests

    def new_request(self, request: Any) -> None:
        """Begin the lookup of a new request."""
        if self._names.awaits_workers:
            self._early[request.request_id] = request
            return
        names = self._names.find()
        if names is None:
            return
        self._take_answers()
        wish = self._handoffs.request_arrived(request)
        keys = names.of(request)
        usable = keys is not None and request.prompt_embeds is None and not request.resumable
        keys = keys or PrefixKeys((), self._settings.chunk_tokens)
        may_load = usable and self._settings.load != "off" and wish.may_load and self._needs_no_whole_prompt(request)
        self._requests[request.request_id] = request
        self._do(
            self._caches.request_arrived(
                request.request_id,
                request.all_token_ids,
                keys,
                may_load=may_load,
                may_save=usable and self._settings.save != "off" and wish.may_save,
                away=self._away,
                expected_chunks=self._handoffs.expected_chunks(request, wish, keys) if may_load else 0,
            )
        )
        self._saving.note_next(request)
        self._stats.add("lookups")

    def _needs_no_whole_prompt(self, request: Any) -> bool:
        """Whether a request can do with the outputs of its last tokens. Poolers that cannot (of means, of each token)
        ask for the whole prompt, or make vLLM compute prompts in one piece."""
        in_pieces = self._vllm_config.scheduler_config.enable_chunked_prefill or request.pooling_params is None
        return in_pieces and not request.skip_reading_prefix_cache

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """See KVConnectorBase_V1.get_num_new_matched_tokens."""
        request_id = request.request_id
        if request_id in self._early:
            if self._names.awaits_workers:
                return None, False
            self.new_request(self._early.pop(request_id))
        if request_id not in self._caches:
            return 0, False
        self._own_tokens[request_id] = computed_tokens
        self._take_answers()
        while True:
            again = time.monotonic() - self._looked_s.get(request_id, 0.0) > LOOK_AGAIN_S
            answer = self._caches.ask(request_id, request.all_token_ids, computed_tokens, away=self._away, again=again)
            self._do(answer.commands)
            if answer.tokens is not None:
                if self._groups.states:
                    self._aim_at_shared(request, computed_tokens + answer.tokens)
                return answer.tokens, answer.tokens > 0 and not self._loads_by_layers(request_id)
            if not self._wait_for_answer(request_id):
                return None, False

    def _loads_by_layers(self, request_id: str) -> bool:
        """Whether the step that computes the rest waits for the load layer by layer, or the request waits outside it.

        The first is quicker for a request that is alone; with others in the engine, they would wait for it, too.
        """
        by_layers = self._settings.load == "layerwise" or (
            self._settings.load == "auto"
            and self._can_layer
            and len(self._requests) == 1
            # Its chunks would be saved a step later than its answer leaves.
            and request_id not in self._handoffs.prefills
        )
        if by_layers:
            self._by_layers.add(request_id)
        else:
            self._by_layers.discard(request_id)
        return by_layers

    def blocks_allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """See KVConnectorBase_V1.update_state_after_alloc."""
        request_id = request.request_id
        if request_id not in self._caches:
            return
        # vLLM copies the whole table when it is asked for it.
        main, others, states = self._tables(blocks.get_block_ids()) if external_tokens else ((), [], [])
        load, commands = self._caches.blocks_allocated(request_id, external_tokens, main, others, states)
        self._do(commands)
        self._claim(request, self._own_tokens.get(request_id, 0) + external_tokens)
        if load is not None:
            self._order_load(load)
            self._stats.add("hit_tokens", external_tokens)
            for source in self._caches.sources(request_id):
                self._stats.add_labelled("hits", source.label)

    def _cost_s(self, first: int, tokens: int) -> float | None:
        cost = self._prefill.cost(first, tokens)
        return None if cost is None else cost.seconds

    def _claim(self, request: Any, computed_tokens: int) -> None:
        """A request has its blocks: claim its chunks, so that others do not compute them, too."""
        request_id = request.request_id
        if self._settings.save == "off" or self._away or self._caches.next_save_tokens(request_id) is None:
            return
        keys, chunks_count = self._caches.keys(request_id), request.num_prompt_tokens // self._settings.chunk_tokens
        keys.extend(request.all_token_ids, chunks_count)
        chunks = keys.keys[:chunks_count]
        queue_s = self._line.queue_s(request_id)
        last = (request.num_prompt_tokens - 1) // self._settings.chunk_tokens
        state = state_keys(chunks[last - 1]) if self._groups.states and 0 < last <= len(chunks) else ()
        claim = self._claims.begin(request_id, chunks, computed_tokens, queue_s, time.monotonic(), state)
        if claim is not None:
            self._tell_claim(claim)
            self._stats.add("claims", len(claim.keys))

    def _tell_claim(self, claim: Claim) -> None:
        self._io.claim(claim, self._names.shard_bytes)
        if claim.state_claim is not None:
            self._io.claim(claim.state_claim, self._names.state_bytes)

    def _disclaim(self, request_id: str) -> None:
        """Withdraw the claim of a request that computes no more of its prompt."""
        disclaim = self._claims.request_ended(request_id)
        if disclaim is not None and not self._away:
            self._io.disclaim(disclaim)

    def hit_sources(self, request: Any, tokens: int) -> dict[CacheHitSource, int]:
        """vLLM's own classes for the source of cached tokens: this host's memory, or others'."""
        if not tokens:
            return {}
        sources = self._caches.sources(request.request_id) if request.request_id in self._caches else ()
        if not sources:
            return {CacheHitSource.EXTERNAL_UNSPECIFIED: tokens}
        here = tokens * sum(source is ChunkSource.LOCAL for source in sources) // len(sources)
        split = {CacheHitSource.HOST: here, CacheHitSource.P2P: tokens - here}
        return {source: count for source, count in split.items() if count}

    def request_finished(self, request: Any) -> dict[str, Any] | None:
        """Forget a request, however it ended. Its blocks are vLLM's to free: saves keep those that they read.

        Returns `kv_transfer_params` of its answer, if others decode.
        """
        answer = None
        request_id = request.request_id
        self._disclaim(request_id)
        self._looked_s.pop(request_id, None)
        self._own_tokens.pop(request_id, None)
        if self._names.keys is not None:
            self._names.keys.request_ended(request_id)
        if request_id in self._caches:
            keys = self._caches.keys(request_id)
            if not self._away:
                answer = self._handoffs.answer(request, keys, self._caches.offered_chunks(request_id))
            if self._handoffs.of(request_id).ends_session and not self._away:
                self._io.end_sessions(keys.flat(0, keys.chunks_count))
            self._do(self._caches.request_ended(request_id))
        self._early.pop(request_id, None)
        self._requests.pop(request_id, None)
        self._saving.forget(request_id)
        self._by_layers.discard(request_id)
        self._handoffs.request_ended(request_id)
        return answer

    # ------------------------------------------------------------------ steps

    def orders(self, scheduler_output: Any) -> StepOrders:
        """See KVConnectorBase_V1.build_connector_meta."""
        self._waited_s = 0.0
        self._names.step()
        self._take_answers()
        orders = self._orders
        state = scheduler_output.kv_connector_block_state
        may_save = not self._layers_open and not self._away
        prompt_tokens = decode_tokens = 0
        positions = 0.0
        for request_id in scheduler_output.preempted_req_ids or ():
            self._disclaim(request_id)
        for request_id, count in scheduler_output.num_scheduled_tokens.items():
            if request_id in self._handoffs.prefills:
                orders.holds_answers |= self._handoffs.ends_prefill(self._requests.get(request_id), count)
            if count > 1:
                prompt_tokens += count
                known = self._requests.get(request_id)
                positions += positions_of(known.num_computed_tokens if known is not None else 0, count)
            else:
                decode_tokens += count
            due = self._saving.due_tokens(request_id)
            if due is None or not may_save:
                continue
            request = self._requests[request_id]
            if request.num_computed_tokens + count >= due:
                try:
                    self._offer_saves(orders, request, request.num_computed_tokens + count, state)
                except Exception:  # noqa: BLE001 - a bug of ours must not end the engine; logged in full and counted
                    self.note_failure("offering saves")
            if request_id in self._claims and not self._away:
                claim = self._claims.request_progressed(request_id, request.num_computed_tokens, 0.0, time.monotonic())
                if claim is not None:
                    self._tell_claim(claim)
        if self._groups.states and may_save and state is not None and state.boundary_state_offloads:
            self._offer_states(orders, state.boundary_state_offloads)
        now_s = time.monotonic()
        self._times.step_scheduled(now_s, prompt_tokens, positions, decode_tokens)
        if now_s - self._swept_s >= self._settings.events_sweep_s and not self._away:
            self._swept_s = now_s
            self._io.sweep(self._news.announced_keys())
        is_idle = not scheduler_output.total_num_scheduled_tokens
        has_orders = orders.holds_answers or orders.loads or orders.layerwise_loads or orders.saves
        if not (is_idle or has_orders or self._names.awaits_workers):
            return NOTHING
        orders.is_idle = is_idle
        orders.has_requests = bool(self._requests)
        return self.take_orders()

    def take_orders(self) -> StepOrders:
        """The orders so far, once."""
        orders, self._orders = self._orders, StepOrders()
        orders.question = self._names.question
        orders.is_anything = bool(orders.loads or orders.layerwise_loads or orders.saves or orders.holds_answers)
        return orders

    def reports(self, output: Any) -> None:
        """See KVConnectorBase_V1.update_connector_output: a step has ended."""
        now_s = time.monotonic()
        self._times.step_ended(now_s, whole=not output.invalid_block_ids)
        reports = output.kv_connector_worker_meta
        if isinstance(reports, StepReports):
            self._take_reports(reports)

    def _take_reports(self, reports: StepReports) -> None:
        if reports.shards:
            self._names.workers_reported(reports.shards)
        if reports.weights:
            told = self._names.weights_told(reports.weights)
            if Told.NOTICED in told:
                self._distrust()
            if Told.CHANGED in told:
                self._news.withdraw()
        workers = self._vllm_config.parallel_config.world_size
        for request_id, (done, failed) in reports.loads.items():
            before = self._load_reports.pop(request_id, (0, 0))
            done, failed = before[0] + done, before[1] + failed
            if done < workers:
                self._load_reports[request_id] = (done, failed)
            else:
                self._layers_open.discard(request_id)
                self._do(self._caches.load_ended(request_id, whole=not failed))
        self._saving.saves_answered(reports.saves)

    def _offer_saves(self, orders: StepOrders, request: Any, computed_tokens: int, state: Any) -> None:
        if not self._keys_are_true(request):
            # This request's keys no longer name what its adapter is by now: nothing of it is saved any more.
            self._disclaim(request.request_id)
            self._saving.forget(request.request_id)
            return
        block_ids = state.get_block_ids(request.request_id)
        if block_ids is not None:
            orders.namespace = self._names.namespace
            main, others, _ = self._tables(block_ids)
            self._saving.offer(orders, request, computed_tokens, main, others)

    def _keys_are_true(self, request: Any) -> bool:
        return self._names.keys is not None and self._names.keys.are_true(request)

    def _offer_states(self, orders: StepOrders, kept: Mapping[str, Sequence[tuple[int, int, int]]]) -> None:
        """Save states of recurrent layers: those that vLLM says it keeps after this step, as (group, block, tokens)."""
        for request_id, entries in kept.items():
            request = self._requests.get(request_id)
            if request is None or not self._keys_are_true(request):
                continue
            ends: dict[int, dict[int, int]] = {}
            for group, block, tokens in entries:
                ends.setdefault(tokens, {})[group] = block
            orders.namespace = self._names.namespace
            try:
                self._saving.offer_states(orders, request, ends, self._groups.states)
            except Exception:  # noqa: BLE001 - a bug of ours must not end the engine; logged in full and counted
                self.note_failure("offering states")

    def _aim_at_shared(self, request: Any, had_tokens: int) -> None:
        """Others have computed more of this prompt than a state lets it load: have vLLM end a step where that ends, as
        it does for prefixes in its own cache that no state is kept of. The next one can load it."""
        shared_tokens = self._caches.shared_tokens(request.request_id)
        if shared_tokens > max(had_tokens, request.shared_prefix_boundary):
            request.shared_prefix_boundary = shared_tokens

    def _offered(self, request: Any, chunk: SavableChunk, dropped: bool) -> None:
        self._claims.chunk_offered(request.request_id, chunk.chunk)
        if dropped:
            self._stats.add("saves_dropped")
            self._handoffs.chunk_lost(request.request_id, chunk.chunk)
            self._io.disclaim(Disclaim(chunk.keys))

    @property
    def has_saves(self) -> bool:
        """Whether blocks are kept for saves: vLLM goes on stepping until they are given back."""
        return self._saving.is_pending

    # ------------------------------------------------------------------ the agent's answers

    def _do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            now_s = time.monotonic()
            match command:
                case LookUp(request, ticket):
                    self._looked_s[request] = now_s
                    self._waiting[request, ticket] = _Waiting(now_s, self._settings.lookup_timeout_s)
                case Fetch(request, ticket, _, terms):
                    self._waiting[request, ticket] = _Waiting(now_s, terms.deadline_s + ANSWER_GRACE_S)
                case Release(request, ticket):
                    self._waiting.pop((request, ticket), None)
            self._io.do(command)

    def _wait_for_answer(self, request_id: str) -> bool:
        """Wait a moment for an answer, if this step has time left; whether one (of any request) arrived."""
        patience = ALONE_PATIENCE if len(self._requests) == 1 else 1
        left_s = self._settings.lookup_wait_s * patience - self._waited_s
        if self._caches.stage(request_id) not in (Stage.LOOKING, Stage.FETCHING) or left_s <= 0:
            return False
        started_s = time.monotonic()
        answers = self._io.answers(left_s)
        self._waited_s += time.monotonic() - started_s
        for answer in answers:
            self._take(answer)
        return bool(answers)

    def _take_answers(self) -> None:
        for answer in self._io.answers():
            self._take(answer)
        if self._waiting:
            self._give_up_silent()

    def _give_up_silent(self) -> None:
        """Nobody waits for an answer longer than it may take; the connection decides when an agent is lost."""
        now_s = time.monotonic()
        late = [key for key, waiting in self._waiting.items() if now_s - waiting.since_s > waiting.limit_s]
        if late and not self._silent and not self._link.away:
            log.warning("kvcast: the agent at %s is slow to answer: going on without it until it does", self._link.path)
        for request, ticket in late:
            del self._waiting[request, ticket]
            self._silent.add((request, ticket))
            if request in self._caches and self._caches.stage(request) is Stage.LOOKING:
                self._caches.lookup_answered(request, ticket, None)
            else:
                self._do(self._caches.fetch_answered(request, ticket, (), Status.DEADLINE))
                self._io.do(Release(request, ticket))

    @property
    def _away(self) -> bool:
        """Whether there is no agent, or it owes answers: then requests do not wait for it."""
        return self._link.away or bool(self._silent)

    def _take(self, answer: Answer) -> None:
        match answer:
            case LookedUp(request, ticket, where):
                self._silent.discard((request, ticket))
                if self._waiting.pop((request, ticket), None) is not None:
                    self._caches.lookup_answered(request, ticket, where)
                    if where is not None and request in self._requests:
                        # The states of recurrent layers follow the chunks; routers do not know them.
                        chunks_where = where[: len(where) // 2] if self._groups.states else where
                        self._news.chunks_found(self._requests[request], self._caches.keys(request).keys, chunks_where)
            case FetchEnded(request, ticket, sources, outcome, seconds):
                self._silent.discard((request, ticket))
                self._waiting.pop((request, ticket), None)
                self._stats.observe("fetch_seconds", seconds)
                self._do(self._caches.fetch_answered(request, ticket, sources, outcome))
            case Swept(chunks, where, rate):
                self._fetch_bytes_per_s = rate
                self._news.sweep_ended(chunks, where)

    def _terms(self, request: str, first: int, tokens: int) -> FetchTerms:
        if self._caches.expects(request):
            return self._line.expecting(request, self._handoffs.of(request).expected_s)
        return self._line.terms(request, first, tokens)

    def _missed(self, why: Miss, _tokens: int) -> None:
        self._stats.add_labelled("misses", why.value)

    # ------------------------------------------------------------------ events and figures

    def take_events(self) -> list[Any]:
        """See KVConnectorBase_V1.take_events."""
        return self._news.take()

    def stats(self) -> KvcastStats | None:
        """Figures since the last call."""
        if self._link.outages_count > self._outages_told:
            self._stats.add("outages", self._link.outages_count - self._outages_told)
            self._outages_told = self._link.outages_count
        gauges = (float(self._away), self._prefill.tokens_per_s or 0.0, self._fetch_bytes_per_s)
        if gauges != self._gauges_told:
            self._gauges_told = gauges
            self._stats.data.update(zip(GAUGES, gauges, strict=True))
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, KvcastStats()
        return stats
