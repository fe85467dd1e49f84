"""Configuration files of the daemons of a run. Values in, values for YAML out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bmv2_testbed.guests.machine import MANAGEMENT_GUEST, MANAGEMENT_HOST
from bmv2_testbed.spec import (
    CONTROLLER_MANAGEMENT_IP,
    Target,
    TestbedSpec,
    Wiring,
    data_interface,
    data_ip,
    host_name,
    management_ip,
    rack_name,
)

CONTROLLER_PORT: Final = 4800
CONTROLLER_METRICS_PORT: Final = 9470
P4RUNTIME_PORT: Final = 9559
AGENT_HTTP_PORT: Final = 9475
DATA_INTERFACE: Final = "data0"
GUEST_AGENT_SOCKET: Final = "/run/kvcast-agent.sock"
POOL_MAC: Final = "02:4b:56:00:ff:fe"


TLS_FOLDER = "tls"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where daemons listen. In namespaces: the well-known ports on addresses of their own; otherwise: free ports."""

    controller: str
    controller_metrics: str
    p4runtime: str
    agent_http: Mapping[int, str]
    switch_datagram: Mapping[int, str]
    agent_datagram: Mapping[int, str]


def namespace_endpoints(spec: TestbedSpec) -> Endpoints:
    """Each daemon has an address of its own on the management network."""
    return Endpoints(
        controller=f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_PORT}",
        controller_metrics=f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_METRICS_PORT}",
        p4runtime=f"127.0.0.1:{P4RUNTIME_PORT}",
        agent_http={host: f"{management_ip(host)}:{AGENT_HTTP_PORT}" for host in range(spec.hosts)},
        switch_datagram={},
        agent_datagram={},
    )


def agent_config(spec: TestbedSpec, host: int, endpoints: Endpoints, directory: str) -> dict[str, Any]:
    """agent.yaml of one host."""
    http_address, _, http_port = endpoints.agent_http[host].rpartition(":")
    plain: dict[str, Any] = {
        "node": host_name(host),
        "data": _agent_data(spec, host),
        "controller": {"address": endpoints.controller},
        "pool": {"size": spec.pool_bytes},
        "api": {"socket": agent_socket(spec, host, directory)},
        "http": {"address": http_address, "port": int(http_port)},
        "insecure": not spec.tls,
    }
    if spec.tls:
        plain["tls"] = tls_section(directory, f"agent-{host_name(host)}")
    if spec.racks > 1:
        plain["rack"] = rack_name(spec.rack(host))
    rate_bit_s = spec.link_rate_bit_s(host)
    if rate_bit_s is not None:
        plain["gate"] = {"link_rate": rate_bit_s}
    if spec.wiring is Wiring.GUESTS:
        # Through the guests' user network: the controller's loopback has an address there, and so has the guest.
        controller_port = endpoints.controller.rpartition(":")[2]
        plain["controller"] = {"address": f"{MANAGEMENT_HOST}:{controller_port}"}
        plain["http"] = {"address": MANAGEMENT_GUEST, "port": AGENT_HTTP_PORT}
    if spec.disk_bytes:
        plain["disk"] = {"path": f"{directory}/{host_name(host)}.disk", "size": spec.disk_bytes}
    return merged(plain, spec.agent_settings)


def tls_section(directory: str, name: str) -> dict[str, str]:
    """The files of one identity, as `kvcast pki` names them in the run's directory."""
    folder = f"{directory}/{TLS_FOLDER}"
    return {"cert": f"{folder}/{name}.pem", "key": f"{folder}/{name}.key", "ca": f"{folder}/ca.pem"}


def agent_socket(spec: TestbedSpec, host: int, directory: str) -> str:
    """Where engines of a host find their agent."""
    return GUEST_AGENT_SOCKET if spec.wiring is Wiring.GUESTS else f"{directory}/{host_name(host)}.sock"


def _agent_data(spec: TestbedSpec, host: int) -> dict[str, Any]:
    if spec.wiring is Wiring.NAMESPACES:
        rails = [data_interface(rail) for rail in range(spec.rails)]
        named = {"interfaces": rails} if len(rails) > 1 else {"interface": DATA_INTERFACE}
        return {"transport": "sockets", **named, "address": data_ip(host)}
    return {
        "transport": "sockets" if host in spec.socket_hosts else "verbs",
        "interface": DATA_INTERFACE,
        "address": data_ip(host),
        "segment_bytes": spec.segment_bytes,
    }


def controller_config(spec: TestbedSpec, endpoints: Endpoints, directory: str, program: str) -> dict[str, Any]:
    """controller.yaml; `program`: the switch program of bmv2, which has to be pushed."""
    plain: dict[str, Any] = {
        "listen": endpoints.controller,
        "metrics": endpoints.controller_metrics,
        "insecure": not spec.tls,
        "switch": {"target": "none"},
        "fabric": {"pool_mac": POOL_MAC},
    }
    if spec.tls:
        plain["tls"] = tls_section(directory, "controller")
    if spec.target is not Target.BRIDGE and not spec.plain:
        plain["switch"] = {"target": spec.target.value, "address": endpoints.p4runtime}
        if spec.target is Target.TNA:
            from controlplane.p4runtime.tofino import frame_bytes  # finsy and its dependencies: only when asked for

            plain["switch"] |= {"target": "tofino", "orbit_bytes": spec.slots * frame_bytes(spec.segment_bytes)}
            plain["fabric"]["segment_bytes"] = spec.segment_bytes
        if spec.target is Target.BMV2:
            plain["switch"] |= {"p4info": f"{program}.p4info.txtpb", "program": f"{program}.json"}
    else:
        plain["fabric"]["segment_bytes"] = spec.segment_bytes
    return merged(plain, spec.controller_settings)


def merged(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`plain` with `changes` on top, mapping by mapping."""
    result = dict(plain)
    for name, value in changes.items():
        known = result.get(name)
        result[name] = merged(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return result
