"""Four nodes fetch one prefix over shaped links; every byte is compared, and bytes on links are counted."""

from __future__ import annotations

import pytest

from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode, Peer
from bmv2_testbed.spec import Wiring

SIZE_BYTES = 2 * 2**20
CHUNK_BYTES = 512 * 1024


def _plan(**changes: object) -> IncastPlan:
    fixed: dict[str, object] = {"readers": 4, "size_bytes": SIZE_BYTES, "chunk_bytes": CHUNK_BYTES}
    return IncastPlan(**(fixed | changes))  # type: ignore[arg-type]


def _run(plan: IncastPlan, mode: Mode) -> IncastFigures:
    figures, _ = IncastRun(plan, lambda _text: None, lambda _share: None).mode(mode)
    assert figures.verified, figures.problems
    return figures


@pytest.mark.root
def test_unicast_sends_everything_once_a_reader() -> None:
    figures = _run(_plan(), Mode.UNICAST)
    # What a reader has it holds, too: late readers may read from it.
    assert 3.0 <= figures.holder_tx_S < 4.6
    assert figures.holder_tx_S + figures.readers_tx_S >= 4.0
    assert figures.origins.keys() <= {"holder"}


@pytest.mark.root
@pytest.mark.parametrize("stagger", [False, True], ids=["at once", "staggered"])
def test_cast_sends_everything_about_once(stagger: bool) -> None:
    figures = _run(_plan(stagger=stagger), Mode.CAST)
    assert figures.holder_tx_S < (2.6 if stagger else 1.5)
    assert figures.readers_tx_S < 0.2
    assert "cast" in figures.origins


@pytest.mark.root
def test_cache_leaves_the_holder_alone() -> None:
    figures = _run(_plan(stagger=True), Mode.CACHE)
    assert figures.holder_tx_S < 0.1
    assert figures.origins.keys() == {"switch"}


@pytest.mark.root
def test_a_slow_reader_slows_nobody_much() -> None:
    figures = _run(_plan(slow={0: 50_000_000}), Mode.CAST)
    assert figures.slow_ratios[0] >= 1.9
    assert figures.mean_ratio < figures.slow_ratios[0]


@pytest.mark.root
def test_peers_run_on_the_same_links() -> None:
    peers = IncastRun(_plan(), lambda _text: None, lambda _share: None).peers([Peer.TCP])
    assert peers["tcp"].verified
    assert 4.0 <= peers["tcp"].holder_tx_S < 4.6
    assert peers["tcp"].mean_ratio > 2


def test_cast_without_root() -> None:
    # Reliable reads are not shaped in this mode: only a prefix that takes longer than readers need to meet is cast.
    plan = _plan(wiring=Wiring.DATAGRAMS, readers=3, size_bytes=16 * 2**20, chunk_bytes=2**20, rate_bit_s=400_000_000)
    figures = _run(plan, Mode.CAST)
    assert "cast" in figures.origins


def test_cache_without_root() -> None:
    figures = _run(_plan(wiring=Wiring.DATAGRAMS, readers=3), Mode.CACHE)
    assert figures.origins.keys() == {"switch"}
