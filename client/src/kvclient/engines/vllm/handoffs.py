"""The `kv_transfer_params` of requests, and those of a prefill's answer."""

from __future__ import annotations

import logging
import random
from typing import Any, Final

from vllm.v1.request import RequestStatus

from kvclient.engines.core.handoff import PARAMETERS, Wish, answer_of, shares, wish_of
from kvclient.engines.core.keys import PrefixKeys
from kvclient.engines.settings import PRODUCER, Settings

log = logging.getLogger("vllm.kvcast")

WARNED_MAX: Final = 64
"""Warnings about unknown names. After so many, new names are ignored in silence."""
KNOWN: Final = f"kvcast knows {', '.join(sorted(PARAMETERS))}"
NOTHING_WISHED: Final = Wish()


class Handoffs:
    """Hand-overs between engines, as one scheduler sees them."""

    def __init__(self, vllm_config: Any, settings: Settings) -> None:
        transfer = vllm_config.kv_transfer_config
        self._engine = str(transfer.engine_id)
        self._nixl = transfer.kv_role == PRODUCER
        self._settings = settings
        self._wishes: dict[str, Wish] = {}
        """By request, where it has `kv_transfer_params`."""
        self._lost_from: dict[str, int] = {}
        """By request: its first chunk that did not get into the pool."""
        self._warned: set[str] = set()
        self.prefills: set[str] = set()
        """Requests for prompts that others decode."""

    def request_arrived(self, request: Any) -> Wish:
        """Read what a new request asks for. An unknown name is logged once."""
        if not request.kv_transfer_params:
            return NOTHING_WISHED
        wish = wish_of(
            request.kv_transfer_params,
            self._settings.expected_s,
            random.random(),
            expected_s_max=self._settings.expected_s_max,
        )
        for name in wish.unknown:
            self._warn(name, f"a request has {name!r}, which kvcast does not know and ignores. {KNOWN}")
        for name in wish.wrong:
            value = request.kv_transfer_params[name]
            self._warn(name, f"a request has {name}={value!r}, which is not allowed and is ignored. {KNOWN}")
        self._wishes[request.request_id] = wish
        if wish.prefills:
            self.prefills.add(request.request_id)
        return wish

    def of(self, request_id: str) -> Wish:
        """What a request asked for when it arrived."""
        return self._wishes.get(request_id, NOTHING_WISHED)

    def expected_chunks(self, request: Any, wish: Wish, keys: PrefixKeys) -> int:
        """Leading chunks of a new request that another engine computes or has computed."""
        if wish.expected_s <= 0:
            return 0
        chunks = keys.named(request.num_prompt_tokens // self._settings.chunk_tokens)
        if wish.chunks is not None:
            chunks = min(chunks, wish.chunks)
            keys.extend(request.all_token_ids, chunks)
            if not shares(wish, keys):
                self._warn(
                    "keys",
                    "the engine that computed a prompt gives its chunks other keys than this one: they cannot share. "
                    "Compare the lines that both engines logged when they started (model, weights, layout, chunk size)",
                )
                return 0
        return chunks

    def ends_prefill(self, request: Any, count: int) -> bool:
        """Whether a step of `count` tokens ends a prompt that others decode: its answer waits for the chunks."""
        return request is not None and 0 < request.num_prompt_tokens - request.num_computed_tokens <= count

    def chunk_lost(self, request_id: str, chunk: int) -> None:
        """A chunk did not get into the pool, so the answer promises only the chunks before it."""
        if request_id in self._wishes:
            self._lost_from[request_id] = min(chunk, self._lost_from.get(request_id, chunk))

    def answer(self, request: Any, keys: PrefixKeys, offered_chunks: int) -> dict[str, Any] | None:
        """`kv_transfer_params` of the answer to a prompt that others decode; None for any other request."""
        request_id = request.request_id
        if request_id not in self.prefills:
            return None
        if request.status not in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED):
            return None
        chunks = min(request.num_prompt_tokens // self._settings.chunk_tokens, offered_chunks, keys.chunks_count)
        chunks = min(chunks, self._lost_from.get(request_id, chunks))
        return answer_of(keys, chunks, request_id, self._engine, request.num_prompt_tokens, nixl=self._nixl)

    def request_ended(self, request_id: str) -> None:
        """A request has ended: forget it."""
        self._wishes.pop(request_id, None)
        self._lost_from.pop(request_id, None)
        self.prefills.discard(request_id)

    def _warn(self, name: str, text: str) -> None:
        if name not in self._warned and len(self._warned) < WARNED_MAX:
            self._warned.add(name)
            log.warning("kvcast: %s", text)
