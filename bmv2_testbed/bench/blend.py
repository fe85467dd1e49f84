"""Documents from the pool behind any others: what a model makes of their KV, by the share of tokens computed again.

The model of `tools/train_kv_model.py` and text that it never saw. A context is cut into documents. One node computes
the KV of each alone and puts it under a key of its content; another fetches them in the order of the context, turns K
to its place, and computes a share of the tokens again (`SmallLlama.blend`). Then the model goes on with what follows,
on that KV and on KV that was computed in full.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from bmv2_testbed import client
from bmv2_testbed.bench.kv_quality import Quality, load_model, quality, scores_of, windows
from bmv2_testbed.bench.small_llama import Floats, LlamaShape, SmallLlama
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.spec import TestbedSpec
from kvchunk.ids import ChunkKey, KvIdentity
from kvchunk.kv_layout import KvLayout, KvTerms, with_terms
from kvchunk.parts import ranges_of
from kvclient.client import AgentClient, PutOutcome, Where
from kvclient.engines.blend.rotation import turned
from kvclient.engines.core.content_keys import content_keys

DOCUMENTS: Final = 3
DOCUMENT_TOKENS: Final = 64
SHARES: Final = (0.0, 0.05, 0.15, 0.3, 0.5, 1.0)
DEADLINE_S: Final = 60.0
_LABEL: Final = "blend"


@dataclass(frozen=True, slots=True)
class BlendPlan:
    """`windows` contexts of held-out text; `seed` decides the order in which documents are put."""

    model: Path
    windows: int
    seed: int = 1
    shares: tuple[float, ...] = SHARES


@dataclass(frozen=True, slots=True)
class BlendFigures:
    """Of one share of tokens."""

    share: float
    """Computed again; the first layer and K and V of the second are computed for all, unless the share is 0."""
    computed: float
    """Share of all layers of all tokens that was computed."""
    quality: Quality
    """Beside KV that was computed in full."""
    kv_error: float
    """Largest difference of a number of KV from the one computed in full."""


@dataclass(frozen=True, slots=True)
class BlendReport:
    """What was measured."""

    figures: tuple[BlendFigures, ...]
    unturned: BlendFigures
    """Nothing computed again, and K left as it was computed at the beginning: what turning is worth."""
    full_perplexity: float
    prefix_error: float
    """Of the first documents, which are prefixes: largest difference of a number as it came from the pool."""
    documents: int
    whole_bytes: int
    """Of all documents, as the reader's agent received them."""
    later_bytes: int
    """The same of all layers but the first."""

    def to_json(self) -> dict[str, Any]:
        report = asdict(self)
        for figures in (*report["figures"], report["unturned"]):
            figures |= figures.pop("quality")
        return report


@dataclass(frozen=True, slots=True)
class Carried:
    """Chunks as the fetching node got them, in its order."""

    whole: list[bytes]
    later: list[bytes]
    """All layers but the first."""
    whole_bytes: int
    later_bytes: int


Carry = Callable[[KvLayout, Mapping[ChunkKey, bytes], Sequence[ChunkKey], str], Carried]
"""Puts chunks on one node, in their order, and fetches them on another in its own: (layout, contents, keys, label)."""


@dataclass(frozen=True, slots=True)
class _Window:
    tokens: npt.NDArray[np.int32]
    """Of the context."""
    following: npt.NDArray[np.int32]
    kv: Floats
    """Computed in full."""
    scores: Floats
    """Of what follows, on that."""


def layout_of(shape: LlamaShape) -> KvLayout:
    """Of one document's KV: float32, layer by layer."""
    sizes = (shape.layers, 2, DOCUMENT_TOKENS, shape.kv_heads, shape.head_numbers)
    return KvLayout("fp32", tuple(zip("lpthd", sizes, strict=True)))


def run_blend(plan: BlendPlan, carry: Carry, say: Callable[[str], None], moved: Callable[[float], None]) -> BlendReport:
    """Measure every share. Raises TestbedError."""
    model, held_out = load_model(plan.model)
    if model.shape.layers < 2:
        raise TestbedError(f"{plan.model} has one layer: blending looks at the second")
    say("contexts, computed in full")
    made = []
    for context, following in windows(held_out, plan.windows, DOCUMENTS * DOCUMENT_TOKENS):
        _, kv = model.run(context, model.no_past())
        made.append(_Window(context, following, kv, scores_of(model, following, kv)))
    documents = [one for window in made for one in np.split(window.tokens, DOCUMENTS)]
    say(f"{len(documents)} documents through the pool")
    layout = layout_of(model.shape)
    carried = _through_pool(plan, model, layout, documents, carry)
    reused = [
        _placed(model.shape, carried.whole[at : at + DOCUMENTS], layout) for at in range(0, len(documents), DOCUMENTS)
    ]
    later = [
        _without_first_layer(model.shape, carried.later[at : at + DOCUMENTS], layout)
        for at in range(0, len(documents), DOCUMENTS)
    ]
    figures = []
    for place, share in enumerate(plan.shares):
        moved(place / len(plan.shares))
        say(f"{share:.0%} of tokens computed again")
        figures.append(_measured(model, made, later if share else reused, share))
    say("K not turned")
    unturned = [
        _placed(model.shape, carried.whole[at : at + DOCUMENTS], layout, turn=False)
        for at in range(0, len(documents), DOCUMENTS)
    ]
    moved(1.0)
    first = slice(0, DOCUMENT_TOKENS)
    return BlendReport(
        tuple(figures),
        _measured(model, made, unturned, 0.0),
        _quality(made, [window.scores for window in made]).perplexity,
        max(_error(one[:, :, first], window.kv[:, :, first]) for one, window in zip(reused, made, strict=True)),
        len(documents),
        carried.whole_bytes,
        carried.later_bytes,
    )


def _through_pool(
    plan: BlendPlan,
    model: SmallLlama,
    layout: KvLayout,
    documents: Sequence[npt.NDArray[np.int32]],
    carry: Carry,
) -> Carried:
    """Each document's KV computed alone, put in one order and fetched in another; every byte is compared."""
    identity = KvIdentity("small llama", dtype="float32", layout=layout.text, chunk_tokens=DOCUMENT_TOKENS)
    keys = content_keys(identity.digest(), [list(map(int, one)) for one in documents])
    contents = {key: model.run(one, model.no_past())[1].tobytes() for key, one in zip(keys, documents, strict=True)}
    order = sorted(contents)
    random.Random(plan.seed).shuffle(order)
    wanted = list(contents)
    label = with_terms(_LABEL, KvTerms(layout, may_lose=False))
    carried = carry(layout, {key: contents[key] for key in order}, wanted, label)
    whole = dict(zip(wanted, carried.whole, strict=True))
    later = dict(zip(wanted, carried.later, strict=True))
    layer_bytes = layout.size_bytes // layout.size("l")
    for key in wanted:
        if whole[key] != contents[key] or later[key] != contents[key][layer_bytes:]:
            raise TestbedError(f"document {key.hex()} came with other bytes than it was put with")
    return Carried([whole[key] for key in keys], [later[key] for key in keys], carried.whole_bytes, carried.later_bytes)


def _placed(shape: LlamaShape, chunks: Sequence[bytes], layout: KvLayout, *, turn: bool = True) -> Floats:
    """KV of a context whose documents stand one behind the other: K of each turned to its place, or left alone."""
    sizes = [size for _, size in layout.axes]
    placed = []
    for number, chunk in enumerate(chunks):
        kv = np.frombuffer(chunk, np.float32).reshape(-1, *sizes[1:])
        keys = turned(kv[:, 0], number * DOCUMENT_TOKENS if turn else 0, shape.ROPE_BASE)
        placed.append(np.stack((keys, kv[:, 1]), axis=1))
    return np.concatenate(placed, axis=2)


def _without_first_layer(shape: LlamaShape, chunks: Sequence[bytes], layout: KvLayout) -> Floats:
    """As `_placed`, of chunks whose first layer did not cross the network: not-a-number stands in its place."""
    later = _placed(shape, chunks, layout)
    return np.concatenate((np.full_like(later[:1], np.nan), later))


def _measured(model: SmallLlama, made: Sequence[_Window], reused: Sequence[Floats], share: float) -> BlendFigures:
    blended = [model.blend(window.tokens, kv, share) for window, kv in zip(made, reused, strict=True)]
    scores = [scores_of(model, window.following, kv) for window, kv in zip(made, blended, strict=True)]
    layers = model.shape.layers
    return BlendFigures(
        share,
        (1 + (layers - 1) * share) / layers if share else 0.0,
        _quality(made, scores),
        max(_error(kv, window.kv) for kv, window in zip(blended, made, strict=True)),
    )


def _quality(made: Sequence[_Window], scores: Sequence[Floats]) -> Quality:
    return quality(scores, [window.scores for window in made], [window.following for window in made])


def _error(found: Floats, right: Floats) -> float:
    return float(np.abs(found - right).max())


# ------------------------------------------------------------------ the pool


def carry_by_testbed() -> Carry:
    """Through the agents of a testbed's two hosts."""

    def carry(layout: KvLayout, contents: Mapping[ChunkKey, bytes], keys: Sequence[ChunkKey], label: str) -> Carried:
        with (
            client.running(TestbedSpec(hosts=2)) as testbed,
            AgentClient(testbed.directory / "h0.sock") as putter,
            AgentClient(testbed.directory / "h1.sock") as fetcher,
        ):
            return carry_between(putter, fetcher, layout, contents, keys, label)

    return carry


def carry_between(
    putter: AgentClient,
    fetcher: AgentClient,
    layout: KvLayout,
    contents: Mapping[ChunkKey, bytes],
    keys: Sequence[ChunkKey],
    label: str,
    was_put: Callable[[], None] = lambda: None,
) -> Carried:
    """Put by one client, then fetched by another: all layers but the first, and the whole.

    `was_put`: called once the client has put it. Raises TestbedError where a document does not arrive."""
    for key, content in contents.items():
        if putter.put(key, None, content, namespace=label) is not PutOutcome.STORED:
            raise TestbedError(f"document {key.hex()} was in the pool before")
    was_put()
    until_s = time.monotonic() + DEADLINE_S
    while set(fetcher.contains(keys)) != {Where.REMOTE}:
        if time.monotonic() > until_s:
            raise TestbedError("the directory of the fetching node does not list the documents")
    before = _received_bytes(fetcher)
    ranges = ranges_of(layout, layers=range(1, layout.size("l")))
    with fetcher.fetch(keys, ranges=ranges, deadline_s=DEADLINE_S) as parts:
        later = [b"".join(views) for views in parts.views if views is not None]
    between = _received_bytes(fetcher)
    with fetcher.fetch(keys, any_order=True, deadline_s=DEADLINE_S) as found:
        whole = [bytes(view) for view in found.views if view is not None]
    if not len(later) == len(whole) == len(keys):
        raise TestbedError(f"{len(later)} and {len(whole)} of {len(keys)} documents came: {parts.outcome}")
    return Carried(whole, later, _received_bytes(fetcher) - between, between - before)


def _received_bytes(agent: AgentClient) -> int:
    """By reliable reads."""
    return int(sum(value for name, value in agent.stats().items() if name.startswith("read_received_bytes")))


# ------------------------------------------------------------------ for people


def blend_table(report: BlendReport) -> Table:
    """For a terminal of 80 columns."""
    table = Table(title="Documents reused behind others, by tokens computed again", box=box.SIMPLE)
    for column in ("again", "computed", "perplexity", "divergence", "same next", "KV differs by"):
        table.add_column(column, justify="right")
    rows = [("K not turned", report.unturned), *((f"{one.share:.0%}", one) for one in report.figures)]
    for name, one in rows:
        table.add_row(
            name,
            f"{one.computed:.0%}",
            f"{one.quality.perplexity:.2f}",
            f"{one.quality.divergence:.5f}",
            f"{100 * one.quality.same_first:.1f} %",
            f"{one.kv_error:.1e}",
        )
    return table
