"""Specs, content and figures: the pure parts of the testbed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bmv2_testbed.bench.figures import ReaderReport, incast_figures
from bmv2_testbed.bench.incast import IncastPlan, Mode
from bmv2_testbed.content import Prefix, content_of, same_content
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network.counters import InterfaceCounters, parse_net_dev, passes_nothing
from bmv2_testbed.network.wired import shaper_arguments
from bmv2_testbed.spec import Faults, Target, TestbedSpec, Wiring, data_ip, data_mac
from kvlab.commands.testbed import by_mininet


def test_spec_survives_json() -> None:
    spec = TestbedSpec(
        target=Target.BRIDGE, hosts=3, rate_bit_s=10**8, slow_bit_s={2: 5 * 10**7}, faults=Faults(loss=0.01)
    )
    assert TestbedSpec.from_json(spec.to_json()) == spec
    assert spec.link_rate_bit_s(2) == 5 * 10**7
    assert spec.link_rate_bit_s(1) == 10**8


def test_spec_refuses_what_cannot_be() -> None:
    with pytest.raises(TestbedError, match="hosts"):
        TestbedSpec(hosts=1)
    with pytest.raises(TestbedError, match="slow host 9"):
        TestbedSpec(hosts=3, slow_bit_s={9: 1})
    with pytest.raises(TestbedError, match="namespaces"):
        TestbedSpec(target=Target.BRIDGE, wiring=Wiring.GUESTS)


def test_addresses_follow_the_port() -> None:
    assert data_ip(0) == "10.75.0.1"
    assert data_mac(8) == "02:4b:56:00:00:09"


def test_shaper_lets_jumbo_frames_through() -> None:
    words = shaper_arguments(1_000_000).split()
    assert int(words[words.index("burst") + 1]) >= 2 * 9014


def test_content_is_what_it_always_was() -> None:
    """A change of numpy or of this code that changed the bytes would break old captures and mixed versions."""
    assert content_of(bytes(range(16)), 12).hex() == content_of(bytes(range(16)), 64).hex()[:24]
    assert content_of(bytes(16), 8) != content_of(bytes(15) + b"\1", 8)
    assert content_of(bytes(16), 16).hex() == "9bd8e40864baf402b2c5a89c0b2bd63d"


def test_comparing_sees_every_byte() -> None:
    content = content_of(bytes(16), 4097)
    assert same_content(memoryview(content), content)
    for position in (0, 2048, 4096):
        wrong = bytearray(content)
        wrong[position] ^= 1
        assert not same_content(memoryview(wrong), content)
    assert not same_content(memoryview(content)[:-1], content)
    assert same_content(b"", b"")


def test_prefix_covers_its_size() -> None:
    prefix = Prefix(seed=7, size_bytes=2500, chunk_bytes=1000)
    assert [len(content) for content in prefix.contents()] == [1000, 1000, 500]
    assert len(set(prefix.chunk_keys())) == 3
    assert prefix.chunk_keys() != Prefix(seed=8, size_bytes=2500, chunk_bytes=1000).chunk_keys()


def test_net_dev() -> None:
    text = (
        "Inter-|   Receive                            |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls\n"
        "    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0\n"
        " data0:    1000      10    0    0    0     0          0         0     2000      20    0    0    0     0\n"
    )
    assert parse_net_dev(text, "data0") == InterfaceCounters(1000, 10, 2000, 20)
    with pytest.raises(KeyError):
        parse_net_dev(text, "data1")


def test_offsets_are_seeded_and_within_one_transfer() -> None:
    plan = IncastPlan(stagger=True, seed=3)
    assert plan.offsets_s() == plan.offsets_s()
    assert plan.offsets_s()[0] == 0.0
    assert all(0 <= offset < plan.ideal_s for offset in plan.offsets_s())
    assert IncastPlan().offsets_s() == [0.0] * 8


def test_unicast_is_the_pool_on_a_plain_bridge() -> None:
    assert IncastPlan().testbed(Mode.UNICAST).target is Target.BRIDGE
    assert IncastPlan().testbed(Mode.CAST).target is Target.P4SWITCH
    assert IncastPlan(slow={0: 5}).testbed(Mode.CAST).slow_bit_s == {1: 5}


def _report(time_s: float, compared: int = 1000, verified: bool = True) -> ReaderReport:
    return ReaderReport(
        time_s, 10 + time_s, 0.0, 0.1, compared, verified, "" if verified else "chunk 0 differs", {"cast": 1}
    )


def _figures(reports: list[ReaderReport | None], slow: frozenset[int] = frozenset()):
    return incast_figures(
        mode="cast",
        target="p4switch",
        size_bytes=1000,
        rate_bit_s=8000,
        slow_readers=slow,
        offsets_s=[0.0] * len(reports),
        reports=reports,
        holder=InterfaceCounters(0, 0, 1100, 1),
        readers=[InterfaceCounters(1000, 1, 10, 1)] * len(reports),
        cpu_s={},
        counters="interfaces",
    )


def test_figures_are_ratios() -> None:
    figures = _figures([_report(1.0), _report(1.2)])
    assert figures.mean_ratio == pytest.approx(1.1)
    assert figures.max_ratio == pytest.approx(1.2)
    assert figures.holder_tx_S == pytest.approx(1.1)
    assert figures.readers_tx_S == pytest.approx(0.02)
    assert figures.verified
    assert figures.origins == {"cast": 2}


def test_a_slow_reader_does_not_count_among_the_others() -> None:
    figures = _figures([_report(2.0), _report(1.0)], frozenset({0}))
    assert figures.mean_ratio == pytest.approx(1.0)
    assert figures.slow_ratios == {0: pytest.approx(2.0)}


@pytest.mark.parametrize("bad", [None, _report(1.0, verified=False), _report(1.0, compared=999)])
def test_one_bad_reader_spoils_verified(bad: ReaderReport | None) -> None:
    assert not _figures([_report(1.0), bad]).verified


def test_a_switch_passes_nothing_when_all_send_and_none_receives() -> None:
    silent, heard = InterfaceCounters(0, 0, 640, 10), InterfaceCounters(64, 1, 640, 10)
    assert passes_nothing({"h0": silent, "h1": silent})
    assert not passes_nothing({"h0": silent, "h1": heard})
    assert not passes_nothing({"h0": InterfaceCounters(0, 0, 0, 0)}), "nobody has asked it to"


def test_the_line_for_mininet_builds_the_same_switch() -> None:
    words = shlex.split(by_mininet(TestbedSpec(hosts=5)))
    assert Path(words[words.index("--custom") + 1]).is_file()
    assert words[words.index("--topo") + 1] == "star,5"
    name, program, options = words[words.index("--switch") + 1].split(",")
    assert name == "p4switch" and Path(program.removeprefix("program=")).is_file()
    assert options.startswith("options=-DSEGMENT_BYTES=")
