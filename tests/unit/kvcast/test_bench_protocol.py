"""`kvcast bench protocol`: what it writes, and that the same seed gives the same figures."""

import json
from pathlib import Path

import pytest

from kvcast.cli import main
from kvsim.incast import Hosts, Incast, combine, simulate

SMALL = "bench protocol --rate 25gbit --size 1MiB --chunk 256KiB --readers 3"


def figures(words: str, path: Path) -> dict:
    assert main([*words.split(), "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize("more", ["", "--stagger", "--hosts slow", "--hosts mixed", "--loss 0.01"])
def test_figures_are_written_and_repeat(more: str, tmp_path: Path) -> None:
    found = figures(f"{SMALL} {more}", tmp_path / "figures.json")
    assert found == figures(f"{SMALL} {more}", tmp_path / "again.json")
    assert found["complete"]
    assert 1 < found["mean_ratio"] <= found["max_ratio"]
    assert 0.9 < found["holder_tx_S"] < 4
    assert 0 < found["readers_tx_S"] < 0.1
    assert found["transfer_s"] == pytest.approx(2**20 * 8 / 25e9)


def test_several_seeds_are_combined(tmp_path: Path) -> None:
    found = figures(f"{SMALL} --repeat 3 --seed 5", tmp_path / "figures.json")
    runs = [simulate(Incast(25_000_000_000, 1 << 20, 3, 256 << 10, seed=seed)) for seed in (5, 6, 7)]
    assert [run["mean_ratio"] for run in found["runs"]] == [run.mean_ratio for run in runs]
    assert found["mean_ratio"] == combine(runs).mean_ratio
    assert found["max_ratio"] == max(run.max_ratio for run in runs)


def test_progress_grows_to_the_whole() -> None:
    shares: list[float] = []
    simulate(Incast(25_000_000_000, 1 << 20, 3, 256 << 10), shares.append)
    assert shares == sorted(shares)
    assert len(shares) > 10
    assert shares[0] == 0
    assert shares[-1] > 0.5


def test_every_other_host_is_late_in_a_mixed_fabric() -> None:
    incast = Incast(25_000_000_000, 1 << 20, 5, hosts=Hosts.MIXED)
    assert incast.late_readers == (1, 3)
    assert set(incast.setting().scheduling_of) == {1, 3}


def test_odd_sizes_lose_nothing() -> None:
    setting = Incast(10**9, 3_000_000, chunk_bytes=1 << 20).setting()
    assert setting.chunks * setting.segments * setting.segment_bytes >= 3_000_000
    assert setting.chunks == 3


def test_readers_in_several_racks_are_served_by_one_cast() -> None:
    incast = Incast(25_000_000_000, 4 << 20, 6, racks=3)
    assert incast.setting().racks == 3
    result = simulate(incast)
    assert result.complete
    assert result.holder_tx_S < 1.5, "one reader of each rack alone would make it 3"
    with pytest.raises(ValueError, match="6 readers are not in 7 racks"):
        Incast(25_000_000_000, 4 << 20, 6, racks=7)
