"""The agent's core and forms of fewer bytes: which form it asks for, what it remembers, what the gate reckons."""

from __future__ import annotations

import pytest

from hostagent.core import effects, events
from hostagent.core.events import SaveOutcome
from hostagent.core.forms import Forms
from hostagent.core.options import CoreOptions
from hostagent.pool.chunks import Chunk, ChunkState
from kvchunk.kv_layout import KvTerms, parse_layout, with_terms
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.form_costs import FormChoice, FormWork
from kvpolicy.value.costs import PRIORS, SourceCost, SourceCosts, Tier
from tests.digests import digest
from tests.unit.hostagent.core_harness import PAGE, key
from tests.unit.hostagent.node_harness import make_node
from tests.unit.hostagent.test_core_cold import ColdScene

LAYOUT = parse_layout("bf16.l1.p2.t8.h2.d64")
EXACT, LOSSY = (with_terms("m", KvTerms(LAYOUT, may_lose)) for may_lose in (False, True))
WORKS = (
    FormWork(Form.PLANES, 10**6, 700_000, 0.001, 0.0005),
    FormWork(Form.LOSSY, 10**6, 250_000, 0.004, 0.001),
)


def chunk(label: str) -> Chunk:
    return Chunk(key(1), None, 0, label, 0, LAYOUT.size_bytes, ChunkState.READY, digest(1))


def forms(**options: FormChoice) -> Forms:
    costs = SourceCosts({**PRIORS, Tier.COLD: SourceCost(0.0, 1e8), Tier.LOCAL_DISK: SourceCost(0.0, 1e8)})
    made = Forms(make_node(CoreOptions(1 << 20, 4096, **options), costs=costs))
    for work in WORKS:
        made.costs.measured(work)
    return made


def test_only_a_label_that_allows_it_gets_loss_and_only_in_the_cold_store() -> None:
    assert forms().for_cold(chunk(LOSSY)) is Form.LOSSY
    assert forms().for_cold(chunk(EXACT)) is Form.PLANES
    assert forms().for_cold(chunk("m")) is Form.PLANES
    assert forms().for_disk(chunk(LOSSY)) is Form.PLANES


def test_a_label_of_another_size_is_not_believed() -> None:
    other = chunk(LOSSY)
    other.size_bytes += 2
    assert forms().for_cold(other) is Form.PLANES


@pytest.mark.parametrize("choice", [FormChoice.RAW, FormChoice.LOSSLESS])
def test_the_operators_word_is_above_the_labels(choice: FormChoice) -> None:
    made = forms(cold_form=choice, disk_form=choice)
    expected = Form.RAW if choice is FormChoice.RAW else Form.PLANES
    assert made.for_cold(chunk(LOSSY)) is made.for_disk(chunk(LOSSY)) is expected


def slow_store() -> ColdScene:
    """A store of 100 MB/s that takes no time to begin, and a node that has tried out its forms."""
    scene = ColdScene(pool_pages=16)
    for size_bytes in (PAGE, 10**6) * 30:
        scene.say(events.ColdProbed(size_bytes, size_bytes / 1e8, 0.000_5))
    for work in WORKS:
        scene.say(events.FormMeasured(work))
    return scene


def test_a_chunk_is_saved_and_loaded_in_its_form_and_teaches_the_stores_own_rate() -> None:
    scene = slow_store()
    scene.fill(range(16))
    written = []
    scene.pass_ms(15)
    while asked := scene.take(effects.SaveCold):
        for one in asked:
            assert one.form is Form.PLANES
            written.append(int.from_bytes(one.chunk.key, "big"))
            stored = StoredForm(Form.PLANES, PAGE // 2)
            scene.say(events.ColdSaveEnded(one.chunk, SaveOutcome.STORED, stored, one.chunk.digest))
        scene.pass_ms(15)
    scene.fill(range(20, 30))
    gone = next(number for number in written if scene.core.pool.find(key(number)) is None)
    scene.fetch(gone)
    (load,) = (one for one in scene.made if isinstance(one, effects.LoadCold))
    assert load.stored == StoredForm(Form.PLANES, PAGE // 2)
    source = scene.core.gate.costs.cost(Tier.COLD)
    (brought,) = scene.core.gate.counts.last.brought
    assert brought == (Tier.COLD, scene.core.forms.costs.reckoned_bytes(load.stored, PAGE, source))
    assert PAGE // 2 < brought[1] < PAGE
    scene.pass_ms(1)
    assert scene.bring() == [gone]
    assert scene.got() == (Status.OK, [ChunkSource.COLD])
    taught = scene.core.gate.take_measurements()[-1]
    assert (taught.source, taught.size_bytes) == brought
    scene.close()


def test_what_another_node_stored_in_fewer_bytes_is_read_as_that() -> None:
    scene = slow_store()
    scene.fetch(1, recompute_s=1.0)
    (look,) = scene.take(effects.LookUpCold)
    scene.stored = {1: 1}
    entry = scene.entry(1)
    stored = StoredForm(Form.LOSSY, 900)
    found = type(entry)(entry.key, None, PAGE, entry.digest, 0, (), stored=stored)
    scene.say(events.ColdLookedUp(look.number, (found,)))
    (load,) = (one for one in scene.made if isinstance(one, effects.LoadCold))
    assert load.stored == stored
    assert scene.bring() == [1]
    assert scene.got() == (Status.OK, [ChunkSource.COLD])
    scene.close()
