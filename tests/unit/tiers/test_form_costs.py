"""In which form a chunk is stored: whichever is here first, by what was measured, within what the operator says."""

from __future__ import annotations

import pytest

from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.form_costs import FormChoice, FormCosts, FormWork
from kvpolicy.tiers.gate_plan import Offer, Plan
from kvpolicy.value.costs import PRIORS, SourceCost, SourceCosts, Tier

MB = 1_000_000
BOTH = (Form.PLANES, Form.LOSSY)
SLOW, QUICK = SourceCost(0.005, 100 * MB), SourceCost(0.001, 5000 * MB)


def measured(*, planes_decode_s: float = 0.001, lossy_decode_s: float = 0.001, encode_s: float = 0.004) -> FormCosts:
    """A megabyte without loss is 0.7, with loss 0.25."""
    costs = FormCosts()
    costs.measured(FormWork(Form.PLANES, MB, 700_000, encode_s, planes_decode_s))
    costs.measured(FormWork(Form.LOSSY, MB, 250_000, encode_s, lossy_decode_s))
    return costs


def best(costs: FormCosts, source: SourceCost, allowed: tuple[Form, ...] = BOTH, write: int = 0) -> Form:
    return costs.best(FormChoice.AUTO, allowed, MB, source, write)


def test_a_slow_store_gets_fewer_bytes_and_a_quick_one_the_chunk_as_it_is() -> None:
    assert best(measured(), SLOW, (Form.PLANES,)) is Form.PLANES
    assert best(measured(), QUICK, (Form.PLANES,)) is Form.RAW


def test_loss_is_chosen_only_where_it_is_allowed_and_much_quicker() -> None:
    assert best(measured(), SLOW) is Form.LOSSY
    assert best(measured(), SLOW, (Form.PLANES,)) is Form.PLANES
    # 0.7 of 10 ms, and 1 ms: 8 ms. 0.25 of it and 5.3 ms: 7.8 ms, which is not worth any loss.
    assert best(measured(lossy_decode_s=0.0053), SLOW) is Form.PLANES


@pytest.mark.parametrize(
    ("gbit_s", "exact", "may_lose"),
    [(1, Form.PLANES, Form.LOSSY), (3, Form.PLANES, Form.LOSSY), (6, Form.RAW, Form.LOSSY), (10, Form.RAW, Form.RAW)],
)
def test_bandwidth_decides(gbit_s: int, exact: Form, may_lose: Form) -> None:
    """With what a core of docs/research/performance.md takes, a chunk of 8 MB, and nothing but the rate."""
    costs, source = FormCosts(), SourceCost(0.0, gbit_s * 125 * MB)
    for form, ratio, encode, decode in ((Form.PLANES, 1.5, 0.49, 1.64), (Form.LOSSY, 4.17, 0.21, 1.17)):
        seconds = (8 / encode / 1000, 8 / decode / 1000)
        costs.measured(FormWork(form, 8 * MB, int(8 * MB / ratio), *seconds))
    assert costs.best(FormChoice.AUTO, (Form.PLANES,), 8 * MB, source, 0) is exact
    assert costs.best(FormChoice.AUTO, BOTH, 8 * MB, source, 0) is may_lose


def test_slow_decoding_is_worth_no_bytes() -> None:
    assert best(measured(planes_decode_s=0.004, lossy_decode_s=0.01), SLOW) is Form.RAW


def test_what_encodes_more_slowly_than_it_may_be_written_is_not_used() -> None:
    assert best(measured(encode_s=0.004), SLOW, write=240 * MB) is Form.LOSSY
    assert best(measured(encode_s=0.004), SLOW, write=260 * MB) is Form.RAW


def test_what_was_never_measured_there_and_back_is_not_used() -> None:
    costs = FormCosts()
    assert best(costs, SLOW) is Form.RAW
    costs.measured(FormWork(Form.PLANES, MB, 700_000, encode_s=0.001))
    assert best(costs, SLOW) is Form.RAW
    costs.measured(FormWork(Form.PLANES, MB, 700_000, decode_s=0.001))
    assert best(costs, SLOW) is Form.PLANES


def test_an_operator_may_say_which() -> None:
    assert measured().best(FormChoice.RAW, BOTH, MB, SLOW, 0) is Form.RAW
    assert measured().best(FormChoice.LOSSLESS, BOTH, MB, QUICK, 0) is Form.PLANES
    assert FormCosts().best(FormChoice.LOSSLESS, BOTH, MB, QUICK, 0) is Form.PLANES


def test_a_stored_chunk_is_reckoned_as_what_the_store_gives_meanwhile() -> None:
    costs = measured()
    assert costs.reckoned_bytes(StoredForm(Form.RAW, MB), MB, SLOW) == MB
    # 1 ms of decoding is 0.1 MB of this store.
    assert costs.reckoned_bytes(StoredForm(Form.PLANES, 700_000), MB, SLOW) == pytest.approx(800_000, abs=2)
    assert costs.expected(Form.LOSSY, 4 * MB) == StoredForm(Form.LOSSY, MB)


def test_the_gates_price_of_a_cold_chunk_is_its_fewer_bytes_and_its_decoding() -> None:
    sources = SourceCosts({**PRIORS, Tier.COLD: SLOW})
    reckoned = measured().reckoned_bytes(StoredForm(Form.LOSSY, 250_000), MB, SLOW)
    as_it_is = Plan(sources, [Offer(MB, (Tier.COLD,))], {}, None, 0)
    fewer = Plan(sources, [Offer(MB, (Tier.COLD,), reckoned={Tier.COLD: reckoned})], {}, None, 0)
    assert as_it_is.finish_s[1] == pytest.approx(0.015)
    assert fewer.finish_s[1] == pytest.approx(0.005 + 0.0025 + 0.001)
    assert fewer.loads(1) == {Tier.COLD: reckoned}
    assert fewer.brought_bytes[1] == MB


def test_fewer_bytes_can_make_the_cold_store_the_quicker_source() -> None:
    sources = SourceCosts({**PRIORS, Tier.COLD: SLOW, Tier.REMOTE_DRAM: SourceCost(0.0, 80 * MB)})
    tiers = (Tier.REMOTE_DRAM, Tier.COLD)
    assert Plan(sources, [Offer(MB, tiers)], {}, None, 0).routes == [Tier.REMOTE_DRAM]
    assert Plan(sources, [Offer(MB, tiers, reckoned={Tier.COLD: 350_000})], {}, None, 0).routes == [Tier.COLD]


def test_what_is_learned_follows_what_is_measured() -> None:
    costs = measured()
    for _ in range(40):
        costs.measured(FormWork(Form.PLANES, MB, 900_000, decode_s=0.003))
    assert costs.reckoned_bytes(costs.expected(Form.PLANES, MB), MB, SLOW) == pytest.approx(1_200_000, rel=0.01)
