"""Saves as the scheduler sees them: when a request has chunks to save, and whose blocks are kept until then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvclient.engines.core.requests import RequestCaches, SavableChunk
from kvclient.engines.core.saves import SaveLedger
from kvclient.engines.settings import Settings
from kvclient.engines.vllm.events import PoolNews
from kvclient.engines.vllm.metadata import StepOrders
from kvclient.messages import Where


class Saving:
    """The saves of one scheduler's requests."""

    def __init__(
        self,
        settings: Settings,
        caches: RequestCaches,
        ledger: SaveLedger,
        news: PoolNews,
        offered: Callable[[Any, SavableChunk, bool], None],
    ) -> None:
        """`offered(request, chunk, dropped)`: called for each chunk; `dropped`: too many blocks are being saved."""
        self._settings = settings
        self._caches = caches
        self._ledger = ledger
        self._news = news
        self._offered = offered
        self._block_pool: Any = None
        self._due: dict[str, int] = {}
        """By request: tokens that have to be computed until it has chunks to save. Most steps look at nothing else."""
        self._to_tell: dict[int, tuple[Any, int]] = {}
        """By save: the request and the chunk that an event announces when the save is whole."""

    def bind(self, block_pool: Any) -> None:
        """vLLM's own counts of who uses a block: saves keep theirs by it."""
        self._block_pool = block_pool

    @property
    def is_pending(self) -> bool:
        """Whether saves keep blocks: vLLM makes steps until they are given back."""
        return self._ledger.pending_count > 0

    def due_tokens(self, request_id: str) -> int | None:
        """How many tokens of a request have to be computed until it has chunks to save; None: it never will."""
        return self._due.get(request_id)

    def note_next(self, request: Any) -> None:
        """Note when a request has its next chunk to save: called when it arrives and after chunks were offered."""
        due = self._caches.next_save_tokens(request.request_id)
        if due is None or (self._settings.save == "prompt" and due > request.num_prompt_tokens):
            self.forget(request.request_id)
        else:
            self._due[request.request_id] = due

    def offer(
        self,
        orders: StepOrders,
        request: Any,
        computed_tokens: int,
        main: Sequence[int],
        others: Sequence[Sequence[int]],
    ) -> None:
        """Order saves of a request's chunks that are whole after this step. `main`, `others`: its block tables."""
        if self._settings.save == "prompt":
            computed_tokens = min(computed_tokens, request.num_prompt_tokens)
        for chunk in self._caches.saves(request.request_id, request.all_token_ids, computed_tokens, main, others):
            self._offer(orders, request, chunk)
        self.note_next(request)

    def offer_states(
        self, orders: StepOrders, request: Any, ends: Mapping[int, Mapping[int, int]], groups: Sequence[int]
    ) -> None:
        """Order saves of the states of recurrent layers that the engine keeps after this step.

        `ends`: by the tokens behind which they are, the block of each group; `groups`: all that there are.
        """
        for end_tokens, blocks in ends.items():
            if self._settings.save == "prompt" and end_tokens > request.num_prompt_tokens:
                continue
            if any(group not in blocks for group in groups):
                continue
            block_ids = [blocks[group] for group in groups]
            chunk = self._caches.state_save(request.request_id, request.all_token_ids, end_tokens, block_ids)
            if chunk is not None:
                self._offer(orders, request, chunk)

    def _offer(self, orders: StepOrders, request: Any, chunk: SavableChunk) -> None:
        dropped = self._ledger.dropped_count
        save = self._ledger.offer(chunk)
        self._offered(request, chunk, self._ledger.dropped_count > dropped)
        if save is None:
            return
        # Kept like a prefix that another request uses: neither the end nor a preemption of this one frees them.
        self._block_pool.touch([self._block_pool.blocks[block] for block in save.block_ids])
        orders.saves.append(save)
        if self._news.is_on and not chunk.is_state:
            self._to_tell[save.save] = (request, chunk.chunk)

    def saves_answered(self, reports: Mapping[int, tuple[int, int]]) -> None:
        """By save: how many workers have ended it, and how many of them failed."""
        for number, (done, failed) in reports.items():
            saved = self._ledger.workers_answered(number, done, failed)
            if saved is None:
                continue
            self._block_pool.free_blocks([self._block_pool.blocks[block] for block in saved.save.block_ids])
            request, chunk = self._to_tell.pop(number, (None, 0))
            if saved.whole and request is not None:
                self._news.chunk_in_pool(request, chunk, saved.save.keys, Where.LOCAL)

    def forget(self, request_id: str) -> None:
        """Save nothing more of a request."""
        self._due.pop(request_id, None)

    def distrust(self) -> None:
        """The weights may have changed: save nothing of the present requests, and announce nothing of them."""
        self._due.clear()
        self._to_tell.clear()

    def abandon(self) -> None:
        """Give the blocks of all saves under way back, at once. Workers are told with their next step."""
        for save in self._ledger.abandon():
            self._block_pool.free_blocks([self._block_pool.blocks[block] for block in save.block_ids])
        self._to_tell.clear()
