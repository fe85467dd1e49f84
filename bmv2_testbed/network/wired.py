"""The network of namespaces: Mininet hosts on shaped veth links around one switch, and a separate management network.

Mininet's Node, Host, Switch, Link, Topo and Mininet do the building. Two things are our own: shaping (its TCIntf has a
token bucket smaller than a jumbo frame and stops at 1 Gbit/s) and bridges (its LinuxBridge wants `brctl`).
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from bmv2_testbed.configs import DATA_INTERFACE
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import (
    INTERFACE_NAME_CHARS_MAX,
    LINK_MTU_BYTES,
    shaper_burst_bytes,
    shaper_queue_bytes,
)
from bmv2_testbed.network.counters import InterfaceCounters, read_interface_counters, sum_of
from bmv2_testbed.spec import (
    CONTROLLER_MANAGEMENT_IP,
    DATA_PREFIX_BITS,
    MANAGEMENT_PREFIX_BITS,
    Faults,
    Target,
    TestbedSpec,
    core_interface,
    data_interface,
    data_ip,
    data_mac,
    host_name,
    management_ip,
    querier_ip,
    rack_name,
    switch_name,
    switch_port,
)
from bmv2_testbed.spec import Bridge as BridgeKind

MANAGEMENT_INTERFACE: Final = "mgmt0"
_DEBIAN_PACKAGES: Final = "/usr/lib/python3/dist-packages"


def import_mininet(module: str) -> Any:
    """Import a module of Mininet, from the system's packages where this interpreter has a path of its own.

    The system's directory goes to the end of the path and only for this import, so that it shadows nothing.
    """
    if importlib.util.find_spec("mininet") is not None:
        return importlib.import_module(module)
    _lend_distutils()
    sys.path.append(_DEBIAN_PACKAGES)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise TestbedError(f"no module {error.name}: install the Debian package mininet (make system)") from error
    finally:
        sys.path.remove(_DEBIAN_PACKAGES)


def _lend_distutils() -> None:
    """Mininet 2.3 imports `StrictVersion`, to compare versions of Open vSwitch, from what Python 3.12 no longer has."""
    if importlib.util.find_spec("distutils") is not None:
        return
    version = types.ModuleType("distutils.version")
    version.__dict__["StrictVersion"] = str
    sys.modules.setdefault("distutils", types.ModuleType("distutils"))
    sys.modules.setdefault("distutils.version", version)


def shaper_arguments(rate_bit_s: int) -> str:
    """`tc` words of a token bucket for that rate."""
    burst_bytes, queue_bytes = shaper_burst_bytes(rate_bit_s), shaper_queue_bytes(rate_bit_s)
    return f"tbf rate {rate_bit_s}bit burst {burst_bytes} limit {queue_bytes}"


def netem_arguments(faults: Faults) -> str:
    """`tc` words of netem for these faults. Reordering needs some delay to overtake."""
    delay_ms = max(faults.delay_ms, 1.0 if faults.reorder else 0.0)
    words = [f"delay {delay_ms}ms"] if delay_ms else []
    for word, probability in (("loss", faults.loss), ("duplicate", faults.duplicate), ("corrupt", faults.corrupt)):
        if probability:
            words.append(f"{word} {probability * 100}%")
    if faults.reorder:
        words.append(f"reorder {faults.reorder * 100}%")
    return " ".join(["netem", *words])


def _snooping(bridge: str, rail: int) -> list[str]:
    return [
        # A querier without an address is none; who does not answer within a second is taken to be gone.
        f"ip addr add {querier_ip(rail)}/{DATA_PREFIX_BITS} dev {bridge}",
        f"ip link set dev {bridge} type bridge mcast_query_use_ifaddr 1 mcast_query_response_interval 100",
        f"ip link set dev {bridge} type bridge mcast_snooping 1 mcast_querier 1",
    ]


class WiredNetwork:
    """Hosts `h0`.. with `data0` on the switch (ports `sw-eth1`..) and `mgmt0` on the management bridge."""

    def __init__(self, spec: TestbedSpec) -> None:
        self._spec = spec
        self._net = _build(spec)

    def launch(
        self,
        place: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        out: IO[bytes],
        err: IO[bytes],
        descriptors: Sequence[int],
    ) -> subprocess.Popen[bytes]:
        """Start a process in a host (by its name) or next to the switch (`switch`)."""
        if place == "switch":
            return subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                pass_fds=descriptors,
            )
        process: subprocess.Popen[bytes] = self._node(place).popen(
            list(argv), env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, pass_fds=descriptors
        )
        return process

    def switch_interfaces(self) -> dict[int, str]:
        """Interface names of the switch by port number."""
        ports = range(self._spec.hosts)
        return {switch_port(host): f"{_switch_of(self._spec, host)}-eth{switch_port(host)}" for host in ports}

    def counters(self) -> dict[str, InterfaceCounters]:
        """What each host's data interfaces have sent and received, all rails together; and each rack's link to the
        others, out of it and into it."""
        cores = range(self._spec.racks if self._spec.racks > 1 else 0)
        rails = [data_interface(rail) for rail in range(self._spec.rails)]
        return {
            host.name: sum_of(read_interface_counters(host.pid, rail) for rail in rails)
            for host in (self._net.get(host_name(i)) for i in range(self._spec.hosts))
        } | {
            rack_name(rack): read_interface_counters(self._net.get(rack_name(rack)).pid, core_interface(rack))
            for rack in cores
        }

    def set_link(self, place: str, up: bool) -> None:
        """Cut or mend a host's data link, or a rack's link to the others."""
        cores = {rack_name(rack): core_interface(rack) for rack in range(self._spec.racks)}
        interface = cores.get(place, DATA_INTERFACE)
        run_checked(self._node(place), f"ip link set dev {interface} {'up' if up else 'down'}")

    def set_rail(self, host: int, rail: int, up: bool) -> None:
        """Pull or plug a host's cable to a rail: its interface stays, without a carrier."""
        switch = self._net.get(switch_name(rail))
        run_checked(switch, f"ip link set dev {switch.name}-eth{switch_port(host)} {'up' if up else 'down'}")

    def set_netem(self, port: int, faults: Faults) -> None:
        """Have the kernel hurt the frames that leave a switch port (targets without fault injection of their own)."""
        interface = self.switch_interfaces()[port]
        switch = self._net.get("sw")
        shaped = self._spec.link_rate_bit_s(port - 1) is not None
        parent = "parent 1:1" if shaped else "root"
        try:
            run_checked(switch, f"tc qdisc replace dev {interface} {parent} handle 10: {netem_arguments(faults)}")
        except TestbedError as error:
            raise TestbedError(f"this target needs the kernel module sch_netem to hurt frames ({error})") from error

    def stop(self) -> None:
        self._net.stop()

    def _node(self, place: str) -> Any:
        try:
            return self._net.get(place)
        except KeyError:
            raise TestbedError(f"no host {place}: there are h0 to h{self._spec.hosts - 1}") from None


def run_checked(node: Any, command: str) -> None:
    """Run a command in a node; raise with its words if it fails."""
    output, error, status = node.pexec(["sh", "-c", command])
    if status != 0:
        raise TestbedError(f"in {node.name}: {command}: {(error or output).strip()}")


def _build(spec: TestbedSpec) -> Any:
    mininet_log = import_mininet("mininet.log")
    mininet_log.setLogLevel("warning")
    net_module = import_mininet("mininet.net")
    node_module = import_mininet("mininet.node")
    topo_module = import_mininet("mininet.topo")
    # Mininet would raise limits of the whole machine (sysctl fs.*, kernel.*); what we need is per namespace.
    net_module.Mininet.inited = True

    rails = {switch_name(rail): rail for rail in range(spec.rails)}

    class Bridge(node_module.Switch):  # type: ignore[misc,name-defined]
        """A plain Linux bridge: the network without kvcast."""

        def start(self, _controllers: object) -> None:
            commands = [
                f"ip link add {self.name} type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
                f"ip link set dev {self.name} mtu {LINK_MTU_BYTES} up",
                *(f"ip link set dev {name} master {self.name}" for name in self.nameToIntf if name != "lo"),
            ]
            if self.name in rails and spec.bridge is BridgeKind.SNOOPS:
                commands += _snooping(self.name, rails[self.name])
            if self.name != "mg" and spec.bridge is BridgeKind.DROPS:
                ports = (name for name in self.nameToIntf if name != "lo")
                commands += (f"bridge link set dev {name} mcast_flood off" for name in ports)
            run_checked(self, " && ".join(commands))

    class ProcessSwitch(node_module.Switch):  # type: ignore[misc,name-defined]
        """Only the ports: the process that forwards between them (kvcast-switch, simple_switch_grpc) is a daemon
        of the cluster, so that it can be killed and started again like the others."""

        def start(self, _controllers: object) -> None:
            # A switch port is not a party on the network: it must not answer, and no stray packet may leave it.
            run_checked(
                self, "; ".join(f"ip link set dev {name} arp off up" for name in self.nameToIntf if name != "lo")
            )

    class Star(topo_module.Topo):  # type: ignore[misc,name-defined]
        """Every host on the switch and on the management bridge."""

        def build(self) -> None:
            self.addSwitch("sw", dpid="1", cls=Bridge if spec.target is Target.BRIDGE else ProcessSwitch)
            self.addSwitch("mg", dpid="2", cls=Bridge)
            for rail in range(1, spec.rails):
                self.addSwitch(switch_name(rail), dpid=f"{rail + 2:x}", cls=Bridge)
            for rack in range(spec.racks if spec.racks > 1 else 0):
                name = self.addSwitch(rack_name(rack), dpid=f"{rack + 16:x}", cls=Bridge)
                names = {"intfName1": core_interface(rack), "intfName2": f"sw-{name}"}
                self.addLink(name, "sw", port1=spec.hosts + 1, port2=rack + 1, **names)
            for host in range(spec.hosts):
                name = self.addHost(host_name(host), ip=None)
                port = switch_port(host)
                self.addLink(
                    name, _switch_of(spec, host), port1=0, port2=port, intfName1=DATA_INTERFACE, addr1=data_mac(host)
                )  # addr2 stays random: no packet is for a switch port
                self.addLink(name, "mg", port1=1, port2=port, intfName1=MANAGEMENT_INTERFACE)
                for rail in range(1, spec.rails):
                    name1, mac = data_interface(rail), data_mac(host, rail)
                    self.addLink(name, switch_name(rail), port1=rail + 1, port2=port, intfName1=name1, addr1=mac)

    net = net_module.Mininet(topo=Star(), controller=None, build=False)
    net.build()
    _configure_supervisor()
    for host in range(spec.hosts):
        _configure_host(net.get(host_name(host)), host, spec)
        for name in (_switch_of(spec, host), *map(switch_name, range(1, spec.rails))):
            _configure_port(net.get(name), f"{name}-eth{switch_port(host)}", spec.link_rate_bit_s(host), spec)
    for rack in range(spec.racks if spec.racks > 1 else 0):
        _configure_port(net.get(rack_name(rack)), core_interface(rack), spec.core_bit_s, spec)
        _configure_port(net.get("sw"), f"sw-{rack_name(rack)}", spec.core_bit_s, spec)
    net.start()
    run_checked(net.get("mg"), f"ip addr add {CONTROLLER_MANAGEMENT_IP}/{MANAGEMENT_PREFIX_BITS} dev mg")
    return net


def _switch_of(spec: TestbedSpec, host: int) -> str:
    """What a host's first rail is cabled to."""
    return rack_name(spec.rack(host)) if spec.racks > 1 else switch_name()


def _configure_supervisor() -> None:
    subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)


_NO_IPV6: Final = "[ ! -e /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6"
"""Neighbour discovery would be counted as traffic."""


def _link_commands(interface: str, rate_bit_s: int | None, offloads: bool) -> list[str]:
    assert len(interface) <= INTERFACE_NAME_CHARS_MAX
    commands = [_NO_IPV6.format(interface=interface), f"ip link set dev {interface} mtu {LINK_MTU_BYTES} up"]
    if not offloads:
        # On shaped links, frames on the wire must have the sizes that the counters count.
        commands.append(f"ethtool -K {interface} tso off gso off gro off tx off rx off >/dev/null")
    if rate_bit_s is not None:
        commands.append(f"tc qdisc replace dev {interface} root handle 1: {shaper_arguments(rate_bit_s)}")
    return commands


def _keep_offloads(spec: TestbedSpec, rate_bit_s: int | None) -> bool:
    # kvcast-switch carries them through (PACKET_VNET_HDR); simple_switch_grpc does not.
    return spec.target is not Target.BMV2 and rate_bit_s is None


def _configure_host(node: Any, host: int, spec: TestbedSpec) -> None:
    rate_bit_s = spec.link_rate_bit_s(host)
    if spec.uplink_bit_s is not None and host:
        rate_bit_s = spec.uplink_bit_s
    commands = [
        "ip link set dev lo up",
        *_link_commands(DATA_INTERFACE, rate_bit_s, _keep_offloads(spec, rate_bit_s)),
        f"ip addr add {data_ip(host)}/{DATA_PREFIX_BITS} dev {DATA_INTERFACE}",
        f"ip route add 224.0.0.0/4 dev {DATA_INTERFACE}",
        # A node may get back from the switch what it filled in itself: packets with its own address as source.
        f"echo 1 > /proc/sys/net/ipv4/conf/{DATA_INTERFACE}/accept_local",
        f"echo 0 > /proc/sys/net/ipv4/conf/{DATA_INTERFACE}/rp_filter",
        _NO_IPV6.format(interface=MANAGEMENT_INTERFACE),
        f"ip addr add {management_ip(host)}/{MANAGEMENT_PREFIX_BITS} dev {MANAGEMENT_INTERFACE}",
        f"ip link set dev {MANAGEMENT_INTERFACE} up",
    ]
    for rail in range(1, spec.rails):
        commands += _link_commands(data_interface(rail), rate_bit_s, _keep_offloads(spec, rate_bit_s))
        commands.append(f"ip addr add {data_ip(host, rail)}/{DATA_PREFIX_BITS} dev {data_interface(rail)}")
    run_checked(node, " && ".join(f"{{ {command}; }}" for command in commands))


def _configure_port(switch: Any, interface: str, rate_bit_s: int | None, spec: TestbedSpec) -> None:
    commands = _link_commands(interface, rate_bit_s, _keep_offloads(spec, rate_bit_s))
    run_checked(switch, " && ".join(f"{{ {command}; }}" for command in commands))


def have_mininet() -> bool:
    """Whether the Debian package is installed."""
    return Path(_DEBIAN_PACKAGES, "mininet").is_dir()
