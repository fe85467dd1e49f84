"""Configurations of the daemons, switch command lines, and the demo's picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.configs import agent_config, controller_config, merged, namespace_endpoints
from bmv2_testbed.demo.picture import draw
from bmv2_testbed.demo.run import INCASTS, DemoFigures
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network.guests import guest_endpoints
from bmv2_testbed.processes import ProcessorTimes
from bmv2_testbed.scale import SCALES
from bmv2_testbed.spec import Target, TestbedSpec, Wiring
from bmv2_testbed.switches import switch_command
from bmv2_testbed.workloads.rows import Row, row_of
from planner import palette
from planner.workloads.prediction import Prediction
from planner.workloads.workload_catalog import Mode, Name, workload


def test_agents_use_their_own_addresses() -> None:
    spec = TestbedSpec(hosts=3, agent_settings={"pool": {"prefault": False}})
    config = agent_config(spec, 2, namespace_endpoints(spec), "/run/x")
    assert config["node"] == "h2"
    assert config["data"]["address"] == "10.75.0.3"
    assert config["http"] == {"address": "10.76.0.3", "port": 9475}
    assert config["pool"] == {"size": spec.pool_bytes, "prefault": False}


def test_controller_knows_ports_and_switch() -> None:
    spec = TestbedSpec(hosts=2)
    config = controller_config(spec, namespace_endpoints(spec), "/run/x", "/run/x/kvcast")
    assert "nodes" not in config, "ports are learned"
    assert "flood_ports" not in config["switch"]
    assert config["switch"]["target"] == "p4switch"
    bridge = TestbedSpec(hosts=2, target=Target.BRIDGE)
    assert controller_config(bridge, namespace_endpoints(bridge), "/", "")["switch"] == {"target": "none"}


def test_each_target_has_segments_that_suit_it() -> None:
    assert Target.BMV2.segment_bytes == 256
    assert Target.TNA.segment_bytes == Target.P4SWITCH.segment_bytes == 4096
    with pytest.raises(TestbedError, match="4096 bytes are too long for bmv2: 256 at most"):
        TestbedSpec(target=Target.BMV2)
    for target, scale in SCALES.items():
        block_s = scale.block_bytes * 8 / scale.link_bit_s
        assert block_s == pytest.approx(64 * 1024 * 8 / 100e6), "seconds stay seconds"
        assert scale.incast_bytes % scale.chunk_bytes == 0
        assert target is not Target.BMV2 or scale.block_bytes % 256 == 0


def test_a_tofino_may_let_all_its_slots_circulate() -> None:
    spec = TestbedSpec(target=Target.TNA, hosts=2, slots=100)
    endpoints = namespace_endpoints(spec)
    switch = controller_config(spec, endpoints, "/run/x", "/run/x/kvcast")["switch"]
    assert (switch["target"], switch["orbit_bytes"]) == ("tofino", 100 * 4198)
    command = switch_command(spec, endpoints, Path("/run/x"))
    assert any(word.endswith("p4/tna/kvcast.p4") for word in command)


def test_datagram_endpoints_are_all_different() -> None:
    spec = TestbedSpec(hosts=4, wiring=Wiring.GUESTS)
    endpoints = guest_endpoints(spec)
    datagrams = [*endpoints.switch_datagram.values(), *endpoints.agent_datagram.values()]
    assert len(set(datagrams)) == 8
    command = switch_command(spec, endpoints, Path("/run/x"))
    assert sum(word.startswith("2@udp:") for word in command) == 1


def test_merging_goes_by_mapping() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "e": 4}) == {"a": {"b": 9, "c": 2}, "d": 3, "e": 4}


def incast(mode: str = "cast") -> IncastFigures:
    return IncastFigures(
        mode=mode,
        target="p4switch",
        mean_ratio=1.0,
        max_ratio=1.1,
        holder_tx_S=1.0,
        readers_tx_S=0.0,
        busiest_tx_S=1.0,
        readers_rx_S=2.0,
        verified=True,
        times_s=[1.0, 1.1],
        offsets_s=[0.0, 0.0],
        slow_ratios={},
        ideal_s=1.0,
        late_max_s=0.0,
        origins={"cast": 2},
        cpu_s={},
        counters="interfaces",
    )


def row(mode: Mode, name: Name = Name.SCALE_OUT, mean_s: float = 0.1) -> Row:
    planned = Prediction([0.1], computed_blocks=10, regret_s=0.0, saved_s=0.0, decisions={}, given_up=0, uplink_bytes=0)
    return replace(row_of(workload(name), mode, planned, [], 0, ProcessorTimes(0.0, 0.0), []), ready_s=[mean_s])


def test_the_demos_picture_has_a_bar_for_each_incast(tmp_path: Path) -> None:
    svg, _png = draw(DemoFigures([incast(case.value) for case in INCASTS], []), tmp_path)
    text = svg.read_text()
    for words in ("unicast", "chain", "cast", "switch", "multi-", "relay", "auto"):
        assert f">{words}</text>" in text, words


def test_the_demos_picture_shows_what_a_pool_loses(tmp_path: Path) -> None:
    rows = [row(Mode.NONE), row(Mode.UNICAST, mean_s=0.15), row(Mode.CAST, mean_s=0.02), row(Mode.NONE, Name.CHATS)]
    files = draw(DemoFigures([incast("unicast"), incast("cast"), incast("cache")], rows), tmp_path / "out")
    assert [file.name for file in files] == ["demo.svg", "demo.png"]
    text = files[0].read_text()
    for colour in (palette.COMPUTED, palette.HOLDER, palette.CAST, palette.SWITCH):
        assert colour in text
    for words in ("150 ms", "(+50 %)", "20 ms", "(-80 %)", "what the pool loses", "planned"):
        assert words in text
    assert draw(DemoFigures([incast("cast")], []), tmp_path / "again")[0].stat().st_size > 1000
