"""`/query`: the question of indexers of KV caches, and their answer (Mooncake's RFC 1403, as Dynamo's indexer has it).

{"model_name": "m", "token_ids": [1, 2, ...]}        or, instead of a model that `models` names, what /v1/cost takes:
{"namespace": "<64 hex digits>", "chunk_tokens": 256, "token_ids": [1, 2, ...]}

Other fields of the convention (lora_name, tenant_id, medium and so on) are accepted and mean nothing here: whatever
tells one KV from another is in the namespace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.core.matches import Match
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.cost_question import QuestionError, question_from


@dataclass(frozen=True, slots=True)
class Model:
    """What engines bind a model's KV to: they print it with their first request."""

    namespace: str
    """Digest, in 64 hex digits."""
    chunk_tokens: int


@dataclass(frozen=True, slots=True)
class IndexQuestion:
    """What a router asks."""

    keys: tuple[ChunkKey, ...]
    """Of the prompt's full chunks."""
    chunk_tokens: int


def index_question(body: bytes | None, models: Mapping[str, Model]) -> IndexQuestion:
    """The question in the body of a POST. Raises QuestionError."""
    try:
        asked = json.loads(body or b"")
    except (ValueError, RecursionError) as error:
        raise QuestionError(f'the body is not JSON: {error}; POST {{"model_name": ..., "token_ids": [...]}}') from error
    if not isinstance(asked, dict) or not isinstance(asked.get("token_ids"), list):
        raise QuestionError('send {"model_name": ..., "token_ids": [...]}')
    named = models.get(str(asked.get("model_name", "")))
    if named is None and "namespace" not in asked:
        raise QuestionError(
            f"no model is called {str(asked.get('model_name'))[:80]!r}: name it in models of controller.yaml, or give"
            " namespace and chunk_tokens"
        )
    model = named or Model(asked["namespace"], asked.get("chunk_tokens", 0))
    if isinstance(model.chunk_tokens, int) and len(asked["token_ids"]) < model.chunk_tokens:
        return IndexQuestion((), model.chunk_tokens)
    terms = {"namespace": model.namespace, "chunk_tokens": model.chunk_tokens, "tokens": asked["token_ids"]}
    return IndexQuestion(question_from(terms).keys, model.chunk_tokens)


def index_answer(question: IndexQuestion, found: Mapping[str, Match]) -> Mapping[str, object]:
    """As Dynamo's indexer answers: tokens of the prefix by tier, each with those of the tiers above it. A pool is no
    GPU's, so that no node has a score of its own."""
    instances = {
        name: {
            "longest_matched": match.disk * question.chunk_tokens,
            "gpu": 0,
            "dp": {"0": 0},
            "cpu": match.memory * question.chunk_tokens,
            "disk": match.disk * question.chunk_tokens,
        }
        for name, match in found.items()
    }
    return {"scores": {}, "frequencies": [], "instances": instances}
