"""Four nodes fetch one prefix over shaped links; every byte is compared, and bytes on links are counted."""

from __future__ import annotations

import pytest

from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode, Trust
from bmv2_testbed.bench.peer_servers import Peer, missing
from bmv2_testbed.network import namespaces

SIZE_BYTES = 2 * 2**20
CHUNK_BYTES = 512 * 1024
READERS = 4
RATE_BIT_S = 20_000_000
"""A prefix takes 0.8 s: long beside what a loaded machine makes one reader begin, or react, later than another."""


def _plan(**changes: object) -> IncastPlan:
    fixed: dict[str, object] = {
        "readers": READERS,
        "rate_bit_s": RATE_BIT_S,
        "size_bytes": SIZE_BYTES,
        "chunk_bytes": CHUNK_BYTES,
    }
    return IncastPlan(**(fixed | changes))  # type: ignore[arg-type]


def _run(plan: IncastPlan, mode: Mode) -> IncastFigures:
    figures, _ = IncastRun(plan, lambda _text: None, lambda _share: None).mode(mode)
    assert figures.verified, figures.problems
    return figures


def _sent_S(figures: IncastFigures) -> float:
    """By all hosts: what a reader has it holds, too, and late readers may read from it."""
    return figures.holder_tx_S + figures.readers_tx_S


@pytest.mark.root
def test_unicast_sends_everything_once_a_reader() -> None:
    figures = _run(_plan(), Mode.UNICAST)
    assert figures.holder_tx_S >= 1.0
    assert READERS <= _sent_S(figures) < 2 * READERS
    assert figures.origins.keys() == {"holder"}


@pytest.mark.root
@pytest.mark.parametrize("stagger", [False, True], ids=["at once", "staggered"])
def test_cast_sends_less_than_everything_once_a_reader(stagger: bool) -> None:
    figures = _run(_plan(stagger=stagger), Mode.CAST)
    assert _sent_S(figures) < READERS - 0.5
    assert "cast" in figures.origins


@pytest.mark.root
@pytest.mark.parametrize("stagger", [False, True], ids=["at once", "staggered"])
def test_a_bridge_that_snoops_replicates_casts(stagger: bool) -> None:
    figures = _run(_plan(stagger=stagger), Mode.MULTICAST)
    assert _sent_S(figures) < READERS - 0.5
    assert "cast" in figures.origins
    assert figures.fanout == "multicast"
    if not stagger:
        assert figures.unasked_rx_S < 0.5


@pytest.mark.root
def test_the_way_that_suits_a_bridge_is_found() -> None:
    figures = _run(_plan(), Mode.AUTO)
    assert figures.fanout == "multicast"
    assert "cast" in figures.origins


@pytest.mark.root
@pytest.mark.parametrize("trust", Trust)
def test_casts_with_and_without_everything_that_stands_between_strangers(trust: Trust) -> None:
    figures = _run(_plan(trust=trust, readers=2, size_bytes=CHUNK_BYTES), Mode.CAST)
    assert "cast" in figures.origins


@pytest.mark.root
def test_cache_leaves_the_holder_alone() -> None:
    figures = _run(_plan(stagger=True), Mode.CACHE)
    # Without the cache the holder would send everything once at least.
    assert figures.holder_tx_S < 0.9
    assert figures.origins["switch"] > 0


@pytest.mark.root
def test_a_slow_reader_slows_nobody_much() -> None:
    figures = _run(_plan(slow={0: RATE_BIT_S // 4}), Mode.CAST)
    assert figures.slow_ratios[0] >= 3.5, "four times the others' time, less what a token bucket lets through at once"
    assert figures.mean_ratio < figures.slow_ratios[0]


@pytest.mark.root
def test_peers_run_on_the_same_links() -> None:
    peers = IncastRun(_plan(), lambda _text: None, lambda _share: None).peers([Peer.TCP, Peer.CHAIN])
    assert all(figures.verified for figures in peers.values()), peers
    assert peers["chain"].holder_tx_S < 2
    assert READERS <= peers["tcp"].holder_tx_S < 2 * READERS
    # One link carries four prefixes: the last of each come after 1, 2, 3 and 4 times S/B at the earliest.
    assert peers["tcp"].mean_ratio > 2


@pytest.mark.root
@pytest.mark.skipif(bool(missing(Peer.MOONCAKE)), reason=missing(Peer.MOONCAKE))
def test_mooncake_store_is_a_peer() -> None:
    peers = IncastRun(_plan(), lambda _text: None, lambda _share: None).peers([Peer.MOONCAKE])
    assert peers["mooncake"].verified
    # Two of the four readers lend memory, and have a replica.
    assert peers["mooncake"].readers_tx_S > 0.5


def test_cast_and_cache_in_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What users get who are not root; shaped links and peers are there as for root."""
    monkeypatch.setattr(namespaces, "can_unshare", lambda: False)
    assert namespaces.entry() == namespaces.AS_ITS_OWN_ROOT
    assert _run(_plan(readers=3), Mode.CACHE).origins["switch"] > 0
    # On a machine that starts one of the readers late they may miss each other, but not every time.
    if not any("cast" in _run(_plan(readers=3, seed=seed), Mode.CAST).origins for seed in range(1, 6)):
        pytest.fail("no chunk was ever cast")
