"""A switch's counters as Prometheus reads them (text exposition format 0.0.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample: TypeAlias = tuple[Mapping[str, object], float]
"""Labels and value."""

_PORT_DROPS = {
    "rx_dropped": ("in", "damaged_or_no_buffer"),
    "tx_dropped": ("out", "refused_or_down"),
    "tx_queue_dropped": ("out", "queue_full"),
}
_FAULTS = ("lost", "duplicated", "reordered", "corrupted", "delayed")
_DIRECTIONS = {"rx": "in", "tx": "out"}
_DROPS = {
    "dropped_ingress": "ingress",
    "dropped_egress": "egress",
    "no_pipeline": "no_program",
    "no_group": "no_group",
    "no_session": "no_session",
    "no_port": "no_port",
    "no_buffer": "no_buffer",
    "queue_full": "queue_full",
    "clone_too_deep": "clone_too_deep",
    "recirculation_lost": "recirculation_full",
}
_TOTALS = {
    "received": "Packets that came in through ports",
    "processed": "Passes through ingress, those of packets that come round included",
    "parser_errors": "Packets that a parser could not take apart",
    "recirculated": "Packets that went from egress back to ingress",
    "resubmitted": "Packets that went from ingress back to ingress",
    "cloned": "Packets that a clone session copied",
    "replicated": "Copies that multicast groups and clone sessions made",
    "digests": "Digests that the program sent",
    "digests_dropped": "Digests that found no room on their way to the controller",
    "packet_ins": "Packets that went to the CPU port",
    "packet_ins_dropped": "Packets to the CPU port that found no room on their way to the controller",
}


def render(stats: Mapping[str, Any], version: str) -> str:
    """What `Switch.stats()` returns, as one page."""
    return "".join(_lines(stats, version))


def _lines(stats: Mapping[str, Any], version: str) -> Iterator[str]:
    switch, ports = stats["switch"], stats["ports"]
    yield from _family("build_info", "gauge", "The switch's version", [({"version": version}, 1)])
    yield from _family("program_loaded", "gauge", "Whether a program runs", [({}, stats["program"] is not None)])
    yield from _ports(ports)
    for name, text in _TOTALS.items():
        yield from _family(f"{name}_total", "counter", text, [({}, switch[name])])
    drops = [({"reason": reason}, switch[name]) for name, reason in _DROPS.items()]
    yield from _family("dropped_packets_total", "counter", "Packets that the switch dropped, by reason", drops)
    yield from _family(
        "recirculating_packets", "gauge", "Packets that wait at recirculation ports", [({}, switch["recirculating"])]
    )
    yield from _family(
        "recirculating_bytes", "gauge", "Bytes that wait at recirculation ports", [({}, switch["recirculating_bytes"])]
    )
    for key, text in (("entries", "Entries of a table"), ("size", "Entries that a table can hold")):
        uses = [({"table": name}, use[key]) for name, use in stats["tables"].items()]
        yield from _family(f"table_{key}", "gauge", text, uses)
    groups = [({"group": group}, count) for group, count in stats["groups"].items()]
    yield from _family("multicast_group_replicas", "gauge", "Copies that a multicast group makes", groups)
    sessions = stats["p4runtime"]
    yield from _family("p4runtime_streams", "gauge", "Clients with an open stream", [({}, sessions["streams"])])
    roles = [({"role": role}, primary) for role, primary in sessions["roles"].items()]
    yield from _family("p4runtime_primary", "gauge", "Whether a role has a primary client", roles)


def _ports(ports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    named = [({"port": number, "medium": port["medium"]}, port["up"]) for number, port in ports.items()]
    yield from _family("port_up", "gauge", "Whether a port's medium is up", named)
    for unit, text in (("packets", "Frames"), ("bytes", "Bytes of frames")):
        counted = [
            ({"port": number, "direction": shown}, port[f"{direction}_{unit}"])
            for number, port in ports.items()
            for direction, shown in _DIRECTIONS.items()
        ]
        yield from _family(f"port_{unit}_total", "counter", f"{text} of a port", counted)
    dropped = [
        ({"port": number, "direction": direction, "reason": reason}, port[name])
        for number, port in ports.items()
        for name, (direction, reason) in _PORT_DROPS.items()
    ]
    yield from _family("port_dropped_packets_total", "counter", "Frames that a port dropped, by reason", dropped)
    faults = [
        ({"port": number, "direction": shown, "fault": fault}, port[f"{direction}_{fault}"])
        for number, port in ports.items()
        for direction, shown in _DIRECTIONS.items()
        for fault in _FAULTS
    ]
    yield from _family("port_injected_faults_total", "counter", "Faults that --port-option injected", faults)


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    name = f"p4switch_{name}"
    yield f"# HELP {name} {text}.\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(str(of))}"' for label, of in labels.items())
        yield f"{name}{{{shown}}} {int(value)}\n" if shown else f"{name} {int(value)}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
