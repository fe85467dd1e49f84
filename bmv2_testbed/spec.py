"""What a testbed is made of: a value that travels as JSON from the command line to the supervisor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import BMV2_SEGMENT_BYTES_MAX, HOSTS_MAX, LINK_MTU_BYTES, SEGMENT_BYTES
from kvproto.limits import RAILS_MAX

CONTROL_SOCKET: Final = "control.sock"
"""Where the supervisor answers, in the run's directory."""


class Target(StrEnum):
    """What stands in the middle."""

    P4SWITCH = "p4switch"
    BMV2 = "bmv2"
    TNA = "tna"
    """p4switch with the program for Tofino."""
    BRIDGE = "bridge"

    @property
    def segment_bytes(self) -> int:
        """Payload of a segment there, unless a testbed says otherwise."""
        return BMV2_SEGMENT_BYTES_MAX if self is Target.BMV2 else SEGMENT_BYTES

    @property
    def is_p4switch(self) -> bool:
        """Whether the process is p4switch, whatever it runs."""
        return self in (Target.P4SWITCH, Target.TNA)


class Bridge(StrEnum):
    """What a plain bridge does with multicast."""

    FLOODS = "floods"
    """Every port gets it, as where nothing snoops."""
    SNOOPS = "snoops"
    """Only ports behind which somebody has joined; the bridge itself is the querier."""
    DROPS = "drops"
    """No port gets it, as in clouds."""


class Wiring(StrEnum):
    """What the links are made of."""

    NAMESPACES = "namespaces"
    """Mininet hosts on veth pairs, shaped by the kernel. Needs root, or a user namespace of one's own."""
    GUESTS = "guests"
    """Virtual machines with soft-RoCE on p4switch's datagram ports, shaped by the switch. Needs QEMU, no privileges."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What every switch port does to the frames that leave it; probabilities in [0, 1]."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay_ms: float = 0.0

    @property
    def any(self) -> bool:
        return any((self.loss, self.duplicate, self.reorder, self.corrupt, self.delay_ms))


NO_FAULTS = Faults()


@dataclass(frozen=True, slots=True)
class TestbedSpec:
    """Host 0 holds, hosts 1.. read (only a convention of the benchmarks). Rates in bit/s, sizes in bytes."""

    __test__ = False

    target: Target = Target.P4SWITCH
    wiring: Wiring = Wiring.NAMESPACES
    hosts: int = 9
    rate_bit_s: int | None = None
    slow_bit_s: Mapping[int, int] = field(default_factory=dict)
    """Rates of the hosts whose link differs, by host index."""
    uplink_bit_s: int | None = None
    """Rate at which every host but the first can send, where it receives at its link's; None: the same."""
    faults: Faults = NO_FAULTS
    seed: int = 1
    segment_bytes: int = SEGMENT_BYTES
    pool_bytes: int = 256 * 2**20
    disk_bytes: int = 0
    """Of each host's disk tier, in the run's directory; 0: none."""
    slots: int = 16384
    """Segments that the switch can store."""
    mtu_bytes: int = LINK_MTU_BYTES
    """Of the data interfaces of guests."""
    socket_hosts: tuple[int, ...] = ()
    """Guests without RDMA: their agents use sockets."""
    plain: bool = False
    """True: no controller programs the switch. It keeps the forwarding of the controller before; if there was none, it
    floods, and all hosts share the rate of one link."""
    bridge: Bridge = Bridge.FLOODS
    """With Target.BRIDGE."""
    rails: int = 1
    """Networks, each with an interface of every host: the first has the switch, the others are bridges as `bridge`
    says. Only of namespaces."""
    racks: int = 1
    """More than one: bridges with as many of the hosts each, joined by one more, as `bridge` says."""
    core_bit_s: int | None = None
    """Rate of each rack's link to the others, each way; None: not shaped."""
    daemons: bool = True
    """False: only the network (peers need no more)."""
    tls: bool = False
    """Certificates of the run's own between agents, controller and operators. P4Runtime stays on loopback, without."""
    agent_settings: Mapping[str, Any] = field(default_factory=dict)
    controller_settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 2 <= self.hosts <= HOSTS_MAX:
            raise TestbedError(f"{self.hosts} hosts: between 2 and {HOSTS_MAX} are possible")
        if self.target is Target.BMV2 and self.segment_bytes > BMV2_SEGMENT_BYTES_MAX:
            raise TestbedError(
                f"segments of {self.segment_bytes} bytes are too long for bmv2: {BMV2_SEGMENT_BYTES_MAX} at most"
            )
        if not 1 <= self.rails <= (RAILS_MAX if self.wiring is Wiring.NAMESPACES else 1):
            raise TestbedError(f"{self.rails} rails: namespaces have 1 to {RAILS_MAX}, guests have one")
        if self.racks > 1 and (self.target is not Target.BRIDGE or self.rails > 1 or self.racks > self.hosts):
            raise TestbedError(f"{self.racks} racks: of bridges, with one rail, and no more than there are hosts")
        if self.wiring is not Wiring.NAMESPACES and not self.target.is_p4switch:
            raise TestbedError(f"target {self.target} needs namespaces: use --target p4switch with --roce")
        for host in self.socket_hosts:
            if not 0 <= host < self.hosts:
                raise TestbedError(f"host {host} does not exist: there are {self.hosts} hosts")
        for host in self.slow_bit_s:
            if not 0 <= host < self.hosts:
                raise TestbedError(f"slow host {host} does not exist: there are {self.hosts} hosts")

    def link_rate_bit_s(self, host: int) -> int | None:
        """Rate of that host's link in each direction; None: not shaped."""
        return self.slow_bit_s.get(host, self.rate_bit_s)

    def rack(self, host: int) -> int:
        """Where a host stands."""
        return host * self.racks // self.hosts

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TestbedSpec:
        fields = json.loads(text)
        fields["target"] = Target(fields["target"])
        fields["wiring"] = Wiring(fields["wiring"])
        fields["bridge"] = Bridge(fields["bridge"])
        fields["faults"] = Faults(**fields["faults"])
        fields["socket_hosts"] = tuple(fields["socket_hosts"])
        fields["slow_bit_s"] = {int(host): rate for host, rate in fields["slow_bit_s"].items()}
        return cls(**fields)


def host_name(host: int) -> str:
    return f"h{host}"


def agent_name(host: int) -> str:
    """Name of the agent's process."""
    return f"agent{host}"


def data_ip(host: int, rail: int = 0) -> str:
    """Address on the data network; the last byte is the switch port, the member index is one less."""
    return f"10.{79 + rail if rail else 75}.0.{host + 1}"


def querier_ip(rail: int = 0) -> str:
    """Of the bridge in the middle of a rail."""
    return f"10.{79 + rail if rail else 75}.255.253"


def data_mac(host: int, rail: int = 0) -> str:
    return f"02:4b:56:00:{rail:02x}:{host + 1:02x}"


def data_interface(rail: int = 0) -> str:
    """Of every host."""
    return f"data{rail}"


def switch_name(rail: int = 0) -> str:
    """What is in the middle of a rail."""
    return f"rail{rail}" if rail else "sw"


def rack_name(rack: int) -> str:
    """Of a rack, and of its bridge."""
    return f"rack{rack}"


def core_interface(rack: int) -> str:
    """Of a rack's bridge, towards the others."""
    return f"{rack_name(rack)}-core"


def management_ip(host: int) -> str:
    return f"10.76.0.{host + 1}"


def switch_port(host: int) -> int:
    return host + 1


CONTROLLER: Final = "controller"
"""The name of its process."""
CONTROLLER_MANAGEMENT_IP = "10.76.0.254"
DATA_PREFIX_BITS = 16
MANAGEMENT_PREFIX_BITS = 24
