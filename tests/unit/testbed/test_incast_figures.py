"""What an incast's figures say of several runs, and the order of a chain relay."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bmv2_testbed.bench.figures import (
    IncastFigures,
    incast_figures,
    incast_table,
    mean_of,
    spread_table,
    typical,
)
from bmv2_testbed.bench.incast import SET_READERS, IncastPlan, Mode, Trust
from bmv2_testbed.bench.peer_servers import Peer, missing
from bmv2_testbed.bench.relay import chain
from bmv2_testbed.configs import agent_config, controller_config, namespace_endpoints
from bmv2_testbed.network.counters import InterfaceCounters
from controlplane.config import parse
from kvlab.commands.bench_incast import choice_ratios, trust_ratios


def _figures(mean_ratio: float, *others: InterfaceCounters) -> IncastFigures:
    counters = InterfaceCounters(0, 0, 0, 0)
    made = incast_figures(
        mode="cast",
        target="p4switch",
        size_bytes=1000,
        rate_bit_s=8000,
        slow_readers=frozenset(),
        offsets_s=[0.0],
        reports=[None],
        holder=counters,
        readers=[counters],
        cpu_s={},
        counters="interfaces",
        others=others,
    )
    return replace(made, mean_ratio=mean_ratio)


def test_of_links_between_racks_the_busiest_direction_counts() -> None:
    counters = [InterfaceCounters(500, 1, 1000, 1), InterfaceCounters(1250, 1, 0, 0)]
    made = incast_figures(
        mode="relay",
        target="bridge",
        size_bytes=1000,
        rate_bit_s=8000,
        slow_readers=frozenset(),
        offsets_s=[0.0],
        reports=[None],
        holder=counters[0],
        readers=[counters[0]],
        cpu_s={},
        counters="interfaces",
        cores=counters,
    )
    assert made.core_tx_S == 1.25
    heads = [str(column.header) for column in incast_table([made], 1, 1000, 8000, "").columns]
    assert "busiest core link" in heads
    assert "busiest core link" not in [
        str(one.header) for one in incast_table([_figures(1.0)], 1, 1000, 8000, "").columns
    ]


def test_hosts_of_racks_say_so_and_the_narrowest_link_is_the_measure() -> None:
    plan = IncastPlan(readers=15, racks=4)
    spec = plan.testbed(Mode.RELAY)
    racks = [agent_config(spec, host, namespace_endpoints(spec), "/run")["rack"] for host in range(16)]
    assert racks == [f"rack{rack}" for rack in range(4) for _ in range(4)]
    assert plan.ideal_s == pytest.approx(16 * 2**20 * 8 / 50e6)
    assert "rack" not in agent_config(replace(spec, racks=1), 0, namespace_endpoints(spec), "/run")


def test_the_typical_run_is_the_one_in_the_middle() -> None:
    runs = [_figures(ratio) for ratio in (1.3, 1.1, 9.0)]
    assert typical(runs) is runs[0]
    assert typical(runs[:2]) is runs[1]


def test_random_sets_say_what_came_to_ports_that_did_not_ask() -> None:
    assert _figures(1.0).unasked_rx_S == 0.0
    sets = [
        _figures(ratio, *(InterfaceCounters(rx, 9, 0, 0) for rx in came))
        for ratio, came in ((1.0, (0, 600)), (1.4, (800, 600)))
    ]
    assert [one.unasked_rx_S for one in sets] == [0.3, 0.7]
    mean = mean_of(sets)
    assert (mean.mean_ratio, mean.max_ratio, mean.unasked_rx_S) == (
        pytest.approx(1.2),
        float("inf"),
        pytest.approx(0.5),
    )
    assert not mean.verified
    assert len(mean.problems) == 2


def test_random_sets_are_drawn_by_the_seed() -> None:
    plan = IncastPlan(sets=20, seed=7)
    drawn = plan.drawn_sets()
    assert drawn == plan.drawn_sets()
    assert {len(set(one.hosts)) for one in drawn} == {SET_READERS}
    assert {host for one in drawn for host in one.hosts} == set(range(1, 9)), "the holder, host 0, is none of them"
    assert len({one.prefix.seed for one in drawn} | {plan.seed}) == 21


def test_the_spread_names_least_median_and_greatest() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(spread_table([{"cast": _figures(ratio)} for ratio in (1.3, 1.1, 9.0)]))
    row = next(line for line in console.export_text().splitlines() if "cast" in line)
    assert [word for word in row.split() if word[0].isdigit()] == ["1.100", "1.300", "9.000"]


def test_what_trust_costs_is_the_median_of_pairs_of_one_run() -> None:
    def run(on: float, off: float) -> dict[str, IncastFigures]:
        return {
            "cast, trust on": replace(_figures(on), cpu_s={"agent0": 2.0, "readers": 1.0}),
            "cast, trust off": replace(_figures(off), cpu_s={"agent0": 1.0, "readers": 1.0}),
        }

    assert trust_ratios([run(1.1, 1.0), run(4.4, 4.0), run(9.0, 1.0)]) == {"cast": {"time": 1.1, "cpu": 1.5}}
    assert trust_ratios([{"cast": _figures(1.0)}]) == {}


def test_trust_on_and_off_are_other_settings_of_the_daemons() -> None:
    trusting, wary = (IncastPlan(trust=trust).testbed(Mode.CAST) for trust in (Trust.OFF, Trust.ON))
    config = parse(controller_config(trusting, namespace_endpoints(trusting), "/run", ""), Path())
    assert (config.core.fabric.integrity.value, config.core.limits, config.security) == ("xxh3", None, "insecure")
    plain = controller_config(wary, namespace_endpoints(wary), "/run", "")
    assert plain["tls"]["cert"] == "/run/tls/controller.pem"
    config = parse(plain, Path())
    assert config.core.fabric.integrity.value == "blake3"
    assert config.core.limits is not None
    assert config.security == "tls"
    agent = agent_config(wary, 3, namespace_endpoints(wary), "/run")
    assert (agent["tls"]["key"], agent["insecure"]) == ("/run/tls/agent-h3.key", False)


def test_each_reader_of_a_chain_reads_from_the_one_that_started_before_it() -> None:
    assert chain([0.0, 0.0, 0.0]) == {0: None, 1: 0, 2: 1}
    assert chain([0.0, 0.9, 0.2, 0.5]) == {0: None, 2: 0, 3: 2, 1: 3}


def test_a_peer_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert {peer: missing(peer).rpartition(" ")[2] for peer in Peer} == {
        Peer.TCP: "",
        Peer.REDIS: "redis-server",
        Peer.CHAIN: "",
        Peer.MOONCAKE: "mooncake-transfer-engine-non-cuda",
    }


def test_a_choice_is_compared_with_the_best_of_all_in_the_same_run() -> None:
    def run(unicast: float, cast: float, chosen: float) -> dict[str, IncastFigures]:
        return {"unicast": _figures(unicast), "cast": _figures(cast), "cast, chosen": _figures(chosen)}

    assert choice_ratios([run(4.0, 8.0, 4.4), run(2.0, 1.0, 1.2), run(3.0, 4.0, 3.0)]) == {"cast, chosen": 1.1}
    assert choice_ratios([{"cast": _figures(1.0)}]) == {}
