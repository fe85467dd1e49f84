"""The question of `/v1/cost` as JSON or as a query string, and its bounds. Pure.

{"keys": ["<32 hex digits>", ...],             chunks in prefix order; or, instead of keys:
 "namespace": "<64 hex digits>", "chunk_tokens": 256, "tokens": [1, 2, ...],
 "recompute_s": 0.8, "attention_share": 0.3,   what computing all of them takes, see `Prefill`
 "queue_s": 0.1, or {"node": 0.1, ...},        until the engine begins
 "nodes": ["n0", ...],                         of which nodes; all, if left out
 "within_s": 0.5}                              the bound that they are judged by, see `in_time`

What it would take a node to have the chunks of a prefix: the gate's reckoning, without a decision. Pure.

For routers that weigh nodes by it, as NetKV does (arXiv 2606.03910).

Whether nodes would have a prompt's KV in time, and which of them should be asked, if any. Pure.

For routers that refuse early rather than late, as Mooncake's Conductor does (arXiv 2407.00079, section 7). A request
that would miss its bound everywhere costs those behind it the time for which they then miss theirs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kvchunk.ids import DIGEST_BYTES, KEY_BYTES, ROOT_KEY, ChunkKey, chunk_keys, pack_tokens
from kvpolicy.tiers.gate_plan import Offer, Plan
from kvpolicy.tiers.prefill import Prefill
from kvpolicy.value import SourceCosts, Tier

KEYS_MAX: Final = 2048
"""Chunks in one question."""
NODES_MAX: Final = 256
KEYS_PER_S_MAX: Final = 200_000
"""Chunks, times nodes that have them differently, that a daemon weighs in a second: about half of a processor."""
BURST_S: Final = 0.25
_NAMES: Final = frozenset(
    {"keys", "namespace", "chunk_tokens", "tokens", "recompute_s", "attention_share", "queue_s", "nodes", "within_s"}
)


class QuestionError(Exception):
    """It cannot be answered; one line names what is wrong."""


class TooManyQuestionsError(Exception):
    """Ask again later."""

    def __init__(self, after_s: float) -> None:
        super().__init__(f"too many questions: ask again in {after_s:.3f} s")
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class CostQuestion:
    """What a router asks."""

    keys: tuple[ChunkKey, ...]
    recompute_s: float | None = None
    """Of all chunks; None: unknown."""
    attention_share: float = 0.0
    queue_s: float = 0.0
    queues_s: Mapping[str, float] = field(default_factory=dict)
    """By node; others have `queue_s`."""
    nodes: tuple[str, ...] = ()
    """Empty: all."""
    within_s: float | None = None
    """Until the engine must have everything; None: nobody is judged."""

    def prefill(self, node: str) -> Prefill | None:
        """Computing all of it at a node; None: nobody says what that takes."""
        if self.recompute_s is None:
            return None
        return Prefill(self.recompute_s, self.attention_share, self.queues_s.get(node, self.queue_s))


def from_json(body: bytes) -> CostQuestion:
    """The question in a body. Raises QuestionError."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"the body is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise QuestionError('the body is no JSON object: send {"keys": [...]}')
    unknown = sorted(asked.keys() - _NAMES)
    if unknown:
        raise QuestionError(f"unknown: {', '.join(map(repr, unknown[:5]))}; known are {', '.join(sorted(_NAMES))}")
    return question_from(asked)


def from_query(query: Mapping[str, str]) -> CostQuestion:
    """The question in a query string: lists are separated by commas; for tokens and for long lists send JSON. Raises
    QuestionError."""
    unknown = sorted(query.keys() - {"keys", "recompute_s", "attention_share", "queue_s", "nodes", "within_s"})
    if unknown:
        raise QuestionError(f"unknown in a query: {', '.join(map(repr, unknown[:5]))}; POST a JSON object for more")
    asked: dict[str, Any] = {name: text.split(",") for name, text in query.items() if name in ("keys", "nodes")}
    for name in query.keys() - asked.keys():
        try:
            asked[name] = float(query[name])
        except ValueError:
            raise QuestionError(f"{name}: {query[name]!r} is not a number") from None
    return question_from(asked)


def question_of(query: Mapping[str, str], body: bytes | None) -> CostQuestion:
    """The question of an HTTP request: of its body if it has one. Raises QuestionError."""
    return from_query(query) if body is None else from_json(body)


def question_from(asked: Mapping[str, Any]) -> CostQuestion:
    """The question of a JSON object whose names are known. Raises QuestionError."""
    queue = asked.get("queue_s", 0.0)
    queues = queue if isinstance(queue, dict) else {}
    nodes = asked.get("nodes", [])
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes) or len(nodes) > NODES_MAX:
        raise QuestionError(f"nodes: not a list of at most {NODES_MAX} names")
    recompute_s = asked.get("recompute_s")
    attention_share = _number("attention_share", asked.get("attention_share", 0.0))
    if attention_share > 1:
        raise QuestionError(f"attention_share: {attention_share} is above 1")
    return CostQuestion(
        _keys(asked),
        None if recompute_s is None else _number("recompute_s", recompute_s),
        attention_share,
        0.0 if isinstance(queue, dict) else _number("queue_s", queue),
        {str(node): _number(f"queue_s of {node}", one) for node, one in queues.items()},
        tuple(nodes),
        None if asked.get("within_s") is None else _number("within_s", asked["within_s"]),
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise QuestionError(f"{name}: {value!r} is not a number of 0 or more")
    return float(value)


def _keys(asked: Mapping[str, Any]) -> tuple[ChunkKey, ...]:
    if ("keys" in asked) == ("tokens" in asked):
        raise QuestionError("give either keys, or tokens with namespace and chunk_tokens")
    keys = [_hex("keys", one, KEY_BYTES) for one in _list(asked, "keys")] if "keys" in asked else _derived(asked)
    if not 1 <= len(keys) <= KEYS_MAX:
        raise QuestionError(f"{len(keys)} chunks: 1 to {KEYS_MAX} can be asked for at a time")
    if len(set(keys)) < len(keys):
        raise QuestionError("keys: the same chunk twice")
    return tuple(ChunkKey(key) for key in keys)


def _derived(asked: Mapping[str, Any]) -> Sequence[bytes]:
    """Keys of the full chunks of a prompt, as `kvchunk.ids.prefix_keys` derives them."""
    digest = _hex("namespace", asked.get("namespace"), DIGEST_BYTES)
    chunk_tokens, tokens = asked.get("chunk_tokens"), _list(asked, "tokens")
    if isinstance(chunk_tokens, bool) or not isinstance(chunk_tokens, int) or chunk_tokens < 1:
        raise QuestionError(f"chunk_tokens: {chunk_tokens!r} is not a number of 1 or more")
    try:
        return chunk_keys(ROOT_KEY, digest, pack_tokens(tokens[: chunk_tokens * (KEYS_MAX + 1)]), chunk_tokens)
    except (TypeError, OverflowError) as error:
        raise QuestionError(f"tokens: not a list of numbers from 0 to 2**32 - 1: {error}") from error


def _list(asked: Mapping[str, Any], name: str) -> list[Any]:
    value = asked[name]
    if not isinstance(value, list):
        raise QuestionError(f"{name}: not a list")
    return value


def _hex(name: str, value: Any, size_bytes: int) -> bytes:
    try:
        found = bytes.fromhex(value)
    except (TypeError, ValueError):
        found = b""
    if len(found) != size_bytes:
        raise QuestionError(f"{name}: {str(value)[:80]!r} is not {2 * size_bytes} hex digits")
    return found


class Allowance:
    """How much may still be weighed: KEYS_PER_S_MAX chunks a second, BURST_S at once."""

    def __init__(self) -> None:
        self._left = KEYS_PER_S_MAX * BURST_S
        self._at_ns = 0

    def take(self, chunks: int, now_ns: int) -> None:
        """This many chunks are about to be weighed; more than a burst may when nothing was asked for a while. Raises
        TooManyQuestionsError."""
        most = KEYS_PER_S_MAX * BURST_S
        self._left = min(most, self._left + (now_ns - self._at_ns) / 1e9 * KEYS_PER_S_MAX)
        self._at_ns = now_ns
        if self._left < min(chunks, most):
            raise TooManyQuestionsError((min(chunks, most) - self._left) / KEYS_PER_S_MAX)
        self._left -= chunks


_PARTS: Final = {
    Tier.LOCAL_DRAM: "local",
    Tier.LOCAL_DISK: "disk",
    Tier.SWITCH: "switch",
    Tier.REMOTE_DRAM: "remote",
    Tier.REMOTE_DISK: "remote",
    Tier.COLD: "cold",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the chunks."""

    chunks: int = 0
    bytes: int = 0
    """Still to come or to be read; 0 where nobody knows a chunk's size."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Of one node and one prefix."""

    seconds: float | None
    """Until the engine has everything, its queue and what it computes included; None: chunks are to be computed, and
    nobody said how long that takes."""
    fetch_s: float
    """Until all that would be brought is here."""
    wait_s: float
    """Of `fetch_s`, what other transfers and the holders' queues take."""
    compute_s: float | None
    """Computing what would not be brought."""
    parts: Mapping[str, Part]
    """local (DRAM), disk, cold, coming (a cast or read under way), switch, remote, computing (somebody does, and it is
    waited for), compute."""

    def to_json(self) -> dict[str, object]:
        """As it goes over the wire."""
        return asdict(self)


def quote(
    costs: SourceCosts, offers: Sequence[Offer], absent: int, prefill: Prefill | None, under_way: Mapping[Tier, int]
) -> Quote:
    """`offers`: in prefix order, as `Gate.decide` takes them; `absent`: chunks behind them that nobody has; `prefill`:
    of all of them together; None: nobody says what computing takes, and all that can be had is brought."""
    first = next((place for place, offer in enumerate(offers) if Tier.LOCAL_DRAM not in offer.sources), len(offers))
    behind, chunks = offers[first:], len(offers) + absent
    after_local = None if prefill is None else prefill.without_leading(first, chunks)
    leading = None if after_local is None else after_local.of_leading(len(behind), len(behind) + absent, first)
    plan = Plan(costs, behind, under_way, leading, first)
    count = plan.best()
    computed = len(behind) - count + absent
    compute_s: float | None = None
    if after_local is not None and leading is not None:
        compute_s = after_local.compute_s - leading.compute_s + plan.compute_left_s[count]
    elif not computed:
        compute_s = 0.0
    queue_s = 0.0 if prefill is None else prefill.queue_s
    fetch_s = plan.finish_s[count]
    return Quote(
        seconds=None if compute_s is None else max(fetch_s, queue_s) + compute_s,
        fetch_s=fetch_s,
        wait_s=plan.waits_s(count, plan.loads(count)),
        compute_s=compute_s,
        parts=_parts(offers, first, plan, count, computed),
    )


def _parts(offers: Sequence[Offer], first: int, plan: Plan, count: int, computed: int) -> Mapping[str, Part]:
    names = ("local", "disk", "cold", "coming", "switch", "remote", "computing", "compute")
    found = {name: [0, 0] for name in names}
    routes = [Tier.LOCAL_DRAM] * first + plan.routes[:count]
    for offer, route in zip(offers, routes, strict=False):
        name = "computing" if offer.ready_s else "coming" if offer.coming_bytes is not None else _PARTS[route]
        found[name][0] += 1
        if route is not Tier.LOCAL_DRAM:
            found[name][1] += offer.size_bytes if offer.coming_bytes is None else offer.coming_bytes
    found["compute"] = [computed, sum(offer.size_bytes for offer in offers[first + count :])]
    return {name: Part(*counts) for name, counts in found.items()}


@dataclass(frozen=True, slots=True)
class InTime:
    """Of one node."""

    meets: bool | None
    """None: nobody said how long computing takes."""
    late_s: float | None
    """Beyond the bound; 0: it is met."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Of all nodes that were asked about."""

    nodes: Mapping[str, InTime]
    send_to: str | None
    """The node that has it soonest, if that is in time."""
    refuse: str
    """Why nobody should be asked; empty: somebody should."""

    def to_json(self) -> dict[str, object]:
        """As it goes over the wire."""
        return asdict(self)


def verdicts(quotes: Mapping[str, Quote], within_s: float) -> Verdicts:
    """`within_s`: from now on until the engine has everything, its queue and what it computes included."""
    late: dict[str, float] = {}
    nodes: dict[str, InTime] = {}
    for node, quote in quotes.items():
        if quote.seconds is None:
            nodes[node] = InTime(None, None)
        else:
            late[node] = quote.seconds - within_s
            nodes[node] = InTime(late[node] <= 0, max(0.0, late[node]))
    if not late:
        return Verdicts(nodes, None, "say recompute_s: nobody knows how long computing takes" if nodes else "no node")
    soonest = min(late, key=lambda node: (late[node], node))
    if late[soonest] <= 0:
        return Verdicts(nodes, soonest, "")
    return Verdicts(nodes, None, f"no node in time: {soonest} would be {late[soonest]:.3f} s late")


def answer_to(question: CostQuestion, quotes: Mapping[str, Quote]) -> dict[str, object]:
    """What `/v1/cost` says."""
    answer: dict[str, object] = {
        "chunks": len(question.keys),
        "nodes": {node: quote.to_json() for node, quote in quotes.items()},
    }
    if question.within_s is not None:
        answer["within"] = verdicts(quotes, question.within_s).to_json()
    return answer
