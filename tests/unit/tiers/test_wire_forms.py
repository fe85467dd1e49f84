"""Whether a chunk crosses the network in fewer bytes: by link, processor and demand; never slower for a reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostagent.core.forms import CHUNK_BYTES_MIN, Demand, Smaller, form_to_make, takes_twin
from kvchunk.ids import ChunkKey
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.form_costs import FormChoice, FormCosts, FormWork
from kvpolicy.value.costs import SourceCost

MB = 1_000_000
TWIN = StoredForm(Form.PLANES, 667_000)
LOSSY = StoredForm(Form.LOSSY, 240_000)
GBIT = 125 * MB
PLANES_ONLY = (Form.PLANES,)


def measured(decode_bytes_per_s: float = 1_640 * MB, encode_bytes_per_s: float = 490 * MB) -> FormCosts:
    costs = FormCosts()
    for twin in (TWIN, LOSSY):
        encode_s, decode_s = MB / encode_bytes_per_s, MB / decode_bytes_per_s
        costs.measured(FormWork(twin.form, MB, twin.size_bytes, encode_s, decode_s))
    return costs


def link(rate_bytes_per_s: float) -> SourceCost:
    return SourceCost(0.0001, rate_bytes_per_s)


@pytest.mark.parametrize(("gbit", "pays"), [(0.1, True), (1, True), (3, True), (10, False), (100, False)])
def test_one_core_pays_on_slow_links_only(gbit: float, pays: bool) -> None:
    assert takes_twin(FormChoice.AUTO, measured(), TWIN, MB, link(gbit * GBIT)) is pays
    made = form_to_make(FormChoice.AUTO, measured(), PLANES_ONLY, MB, link(gbit * GBIT), likely=10.0)
    assert (made is Form.PLANES) is pays


def test_a_slow_processor_declines() -> None:
    assert not takes_twin(FormChoice.AUTO, measured(100 * MB), TWIN, MB, link(GBIT))
    assert takes_twin(FormChoice.AUTO, measured(100 * MB), TWIN, MB, link(GBIT / 10))


def test_who_shares_the_link_with_others_saves_more() -> None:
    assert not takes_twin(FormChoice.AUTO, measured(), TWIN, MB, link(10 * GBIT))
    assert takes_twin(FormChoice.AUTO, measured(), TWIN, MB, link(10 * GBIT), sharing=7)


@given(
    st.floats(1e6, 1e11),
    st.floats(1e6, 1e11),
    st.integers(1, MB - 1),
    st.integers(0, 63),
    st.sampled_from(list(Form)[1:]),
)
def test_by_itself_no_reader_takes_longer(
    rate: float, decode: float, stored_bytes: int, sharing: int, form: Form
) -> None:
    costs = FormCosts()
    costs.measured(FormWork(form, MB, stored_bytes, 0.001, MB / decode))
    twin = StoredForm(form, stored_bytes)
    if takes_twin(FormChoice.AUTO, costs, twin, MB, link(rate), sharing):
        assert stored_bytes * (1 + sharing) / rate + MB / decode < MB * (1 + sharing) / rate


def test_what_was_never_measured_is_neither_made_nor_taken() -> None:
    assert not takes_twin(FormChoice.AUTO, FormCosts(), TWIN, MB, link(GBIT / 100))
    assert form_to_make(FormChoice.AUTO, FormCosts(), PLANES_ONLY, MB, link(GBIT / 100), likely=10.0) is Form.RAW


def test_a_holder_makes_what_saves_its_readers_more_than_it_takes() -> None:
    costs = measured()
    # Of a megabyte at 1 Gbit/s a reader saves 2.05 ms; encoding takes 2.04 ms.
    for likely, form in ((0.0, Form.RAW), (0.9, Form.RAW), (1.0, Form.PLANES)):
        assert form_to_make(FormChoice.AUTO, costs, PLANES_ONLY, MB, link(GBIT), likely) is form
    assert form_to_make(FormChoice.AUTO, costs, PLANES_ONLY, MB, link(GBIT / 10), 0.1) is Form.PLANES


def test_rounding_only_where_it_is_allowed() -> None:
    costs = measured()
    assert form_to_make(FormChoice.AUTO, costs, (Form.PLANES, Form.LOSSY), MB, link(GBIT), 1.0) is Form.LOSSY
    assert form_to_make(FormChoice.AUTO, costs, PLANES_ONLY, MB, link(GBIT), 1.0) is Form.PLANES


def test_an_operator_may_say_which() -> None:
    both = (Form.PLANES, Form.LOSSY)
    quick, nothing = link(1000 * GBIT), FormCosts()
    assert form_to_make(FormChoice.LOSSLESS, nothing, both, MB, quick, 0.0) is Form.PLANES
    assert form_to_make(FormChoice.RAW, measured(), both, MB, link(GBIT / 100), 9.0) is Form.RAW
    assert takes_twin(FormChoice.LOSSLESS, nothing, TWIN, MB, quick)
    assert not takes_twin(FormChoice.LOSSLESS, measured(), LOSSY, MB, link(GBIT / 100))
    assert not takes_twin(FormChoice.RAW, measured(), TWIN, MB, link(GBIT / 100))


def test_small_chunks_stay_as_they_are() -> None:
    size_bytes = CHUNK_BYTES_MIN - 1
    assert form_to_make(FormChoice.LOSSLESS, measured(), PLANES_ONLY, size_bytes, link(GBIT), 9.0) is Form.RAW


def test_where_nothing_becomes_smaller_little_is_tried_until_something_does() -> None:
    smaller = Smaller()
    tried = 0
    for _ in range(2048):
        if smaller.worth_trying():
            tried += 1
            smaller.tried(False)
    assert 2048 // 64 <= tried < 2048 // 64 + 8
    for _ in range(2048):
        if smaller.worth_trying():
            smaller.tried(True)
    assert all(smaller.worth_trying() for _ in range(64))


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def test_demand_follows_what_others_ask_for() -> None:
    demand = Demand()
    for number in range(200):
        demand.put(key(number))
    assert demand.share == 0.0
    for number in range(200):
        demand.chunk_requested(key(number))
        demand.chunk_requested(key(number))
    assert demand.share > 0.99
    for number in range(200, 1500):
        demand.put(key(number))
    assert demand.share < 0.01, "nobody asked for those"
    demand.chunk_requested(key(0))
    assert demand.share < 0.01, "it was asked for long ago"
