"""From what an examination saw to findings: each names a path and, if something is wrong, the remedy. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from controlplane.core.examination.observations import NodeSeen, Observations, Path, Tries, blame
from kvproto.fanout import Fanout
from kvproto.rpc import control_pb2 as rpc

CLOCK_OFF_NS: Final = 500_000_000
"""Nothing in the protocol compares clocks of two machines, but people compare their logs."""
_Why: TypeAlias = tuple[str, rpc.Finding.Level.ValueType, str]
CERTIFICATE_DAYS: Final = 7
"""As long before its end a certificate should be renewed."""
ROUND_TRIP_SLOW_NS: Final = 200_000_000
_OK, _NOTE, _SLOW, _BROKEN = rpc.Finding.OK, rpc.Finding.NOTE, rpc.Finding.SLOW, rpc.Finding.BROKEN
_SWITCH_REMEDIES: Final = {
    "connecting": "start `kvcast switch` (or continue it: is it frozen?), or correct switch.address",
    "degraded": "the switch has stopped answering: is it frozen or its machine overloaded? start it again",
    "programming": "the controller's log says what the switch refuses",
}


def findings(seen: Observations) -> list[rpc.Finding]:
    """In the order in which they should be read."""
    return [
        *_management(seen),
        *_versions(seen),
        *_clocks(seen),
        *_racks(seen),
        *_switch(seen),
        *_subnets(seen),
        *_datagrams(seen),
        *_groups(seen),
        *_puts(seen),
        *_reads(seen),
        *_casts(seen),
        *_fills(seen),
        *_serves(seen),
        *_security(seen),
    ]


def _finding(
    check: str, path: str, found: str, level: rpc.Finding.Level.ValueType = _OK, remedy: str = ""
) -> rpc.Finding:
    return rpc.Finding(check=check, path=path, found=found, level=level, remedy=remedy)


# ---------------------------------------------------------------------------------------------- nodes


def _management(seen: Observations) -> Iterator[rpc.Finding]:
    for name, why in sorted(seen.absent.items()):
        remedy = f"is kvcast-agent running on {name}, and controller.address there right? its log says what it tries"
        yield _finding("management", f"controller -> {name}", why, _BROKEN, remedy)
    if not seen.nodes:
        if not seen.absent:
            yield _finding(
                "management", "controller", "no node is attached", _BROKEN, "start kvcast-agent on the nodes"
            )
        return
    slow = [node for node in seen.nodes.values() if node.round_trip_ns > ROUND_TRIP_SLOW_NS]
    for node in slow:
        found = f"answers after {node.round_trip_ns / 1e6:.0f} ms"
        remedy = "its machine is overloaded, or the management network loses packets"
        yield _finding("management", f"controller -> {node.name}", found, _SLOW, remedy)
    if not slow:
        longest_ns = max(node.round_trip_ns for node in seen.nodes.values())
        yield _finding("management", _nodes(seen), f"answer within {longest_ns / 1e6:.1f} ms")


def _versions(seen: Observations) -> Iterator[rpc.Finding]:
    own = seen.surroundings.version
    others = {node.name: node.version for node in seen.nodes.values() if node.version != own}
    for name, version in sorted(others.items()):
        remedy = f"install {own} on {name} (or what it has everywhere): releases may not understand each other"
        yield _finding("versions", name, f"{version or 'unknown'}, the controller {own}", _SLOW, remedy)
    asked_by = seen.surroundings.asked_by
    if asked_by and asked_by != own:
        remedy = "install the controller's version here"
        yield _finding("versions", "this command", f"{asked_by}, the controller {own}", _SLOW, remedy)
    if seen.nodes and not others:
        yield _finding("versions", _nodes(seen), own)


def _clocks(seen: Observations) -> Iterator[rpc.Finding]:
    off = {
        node.name: node.clock_off_ns
        for node in seen.nodes.values()
        if abs(node.clock_off_ns) > CLOCK_OFF_NS + node.round_trip_ns
    }
    for name, off_ns in sorted(off.items()):
        found = f"{abs(off_ns) / 1e9:.1f} s {'ahead' if off_ns > 0 else 'behind'}"
        yield _finding(
            "clocks", name, found, _SLOW, f"run an NTP client on {name}: logs and figures do not fit together"
        )
    if seen.nodes and not off:
        largest_ns = max(abs(node.clock_off_ns) + node.round_trip_ns // 2 for node in seen.nodes.values())
        yield _finding("clocks", _nodes(seen), f"within {largest_ns / 1e6:.0f} ms of the controller's")


# ---------------------------------------------------------------------------------------------- switch and addresses


def _racks(seen: Observations) -> Iterator[rpc.Finding]:
    """Where nodes stand, if any said so."""
    named = {rack: names for rack, names in sorted(seen.racks.items()) if rack}
    if not named:
        return
    yield _finding("racks", "all nodes", ", ".join(f"{rack} ({len(names)})" for rack, names in named.items()))
    if unnamed := seen.racks.get(""):
        remedy = "set rack in agent.yaml: nodes without one count as one more rack"
        yield _finding("racks", ", ".join(sorted(unnamed)), "no rack", _NOTE, remedy)


def _switch(seen: Observations) -> Iterator[rpc.Finding]:
    path = "controller -> switch"
    if seen.fanout is not Fanout.SWITCH:
        why = f": {seen.fanout_why}" if seen.fanout_why else ""
        yield _finding("fan-out", "all nodes", f"{seen.fanout.name.lower()}{why}")
        return
    if seen.switch_state == "absent":
        yield _finding("switch", path, "none configured", _NOTE, "without a kvcast switch all reads are unicast")
        return
    if seen.switch_state != "ready":
        found = f"{seen.surroundings.switch}: {seen.switch_state}"
        yield _finding(
            "switch", path, found, _BROKEN, _SWITCH_REMEDIES.get(seen.switch_state, "see the controller's log")
        )
        return
    yield _finding("switch", path, "ready")
    for name, why in sorted(seen.without_member.items()):
        if (node := seen.nodes.get(name)) is not None and ":" in node.data_ip:
            remedy = f"all its chunks are read; an IPv4 address beside {node.data_ip} lets it take part in casts"
            yield _finding("switch", f"switch -> {name}", "no IPv4", _NOTE, remedy)
            continue
        remedy = (
            f"{name}'s cable, and nodes.{name}.port in controller.yaml if it is there; until then no cast reaches it"
        )
        yield _finding("switch", f"switch -> {name}", why, _BROKEN, remedy)


def _subnets(seen: Observations) -> Iterator[rpc.Finding]:
    subnets = {name: subnet for name, node in seen.nodes.items() if (subnet := _subnet(node)) is not None}
    common, alike = Counter(subnets.values()).most_common(1)[0] if subnets else (None, 0)
    for name, subnet in sorted(subnets.items()):
        node = seen.nodes[name]
        if alike > 1 and subnet != common:
            found = f"{node.facts.interface} is {node.data_ip}/{node.facts.prefix_bits}, the others are in {common}"
            remedy = f"correct data.interface in {name}'s agent.yaml, or the interface's address"
            yield _finding("addresses", name, found, _BROKEN, remedy)
        elif node.facts.routes:
            remedy = "casts would share the network of management: use an interface towards the switch if there is one"
            yield _finding("addresses", name, f"{node.facts.interface} has the default route", _NOTE, remedy)
    twice = [address for address, count in Counter(node.data_ip for node in seen.nodes.values()).items() if count > 1]
    for address in sorted(twice):
        names = " and ".join(sorted(node.name for node in seen.nodes.values() if node.data_ip == address))
        yield _finding("addresses", names, f"both have {address}", _BROKEN, "give each node an address of its own")
    needed = seen.packet_bytes
    for name, node in sorted(seen.nodes.items()):
        if seen.has_small_mtu(name):
            own = node.facts.interface
            found = f"{own} has MTU {node.facts.mtu_bytes}; {needed} needed for segments of {seen.segment_bytes}"
            yield _finding("MTU", name, found, _BROKEN, f"on {name}: ip link set {own} mtu 9000")


def _subnet(node: NodeSeen) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    if not node.facts.prefix_bits:
        return None
    return ipaddress.ip_network(f"{node.data_ip}/{node.facts.prefix_bits}", strict=False)


# ---------------------------------------------------------------------------------------------- paths


def _datagrams(seen: Observations) -> Iterator[rpc.Finding]:
    if not seen.small.tried:
        return
    for words, paths in blame(seen.small.failed, seen.small.tried):
        yield _finding("data", words, *_why_nothing_arrived(seen, words, paths))
    cut = set(seen.small.failed)
    small_mtu = {name for name in seen.nodes if seen.has_small_mtu(name)}
    large = Tries(seen.large.tried - cut, {path: why for path, why in seen.large.failed.items() if path not in cut})
    explained = {path for path in large.failed if small_mtu & set(path)}
    for words, paths in blame(large.failed, large.tried):
        if set(paths) <= explained:
            continue  # the finding on the interface's MTU says it
        found = f"packets of {seen.packet_bytes} bytes are lost, small ones pass"
        remedy = "set MTU 9000 on the ports of the switch on this path, too, or use smaller segments"
        yield _finding("MTU", words, found, _BROKEN, remedy)
    if not cut:
        yield _finding("data", _paths(seen.small), "UDP 4791 passes")
    if large.tried and not large.failed and not cut:
        yield _finding("MTU", _paths(large), f"packets of {seen.packet_bytes} bytes pass")


def _groups(seen: Observations) -> Iterator[rpc.Finding]:
    if seen.groups is None:
        return
    if problem := seen.groups.problem(standing=False):
        remedy = "correct that on the switch, or set fabric.fanout: auto, which takes relays until it is"
        yield _finding("groups", "all nodes", problem, _BROKEN, remedy)
    else:
        yield _finding("groups", "all nodes", seen.groups.words)


def _why_nothing_arrived(seen: Observations, words: str, paths: list[Path]) -> _Why:
    said = {seen.unsent.get(path, "") for path in paths} - {""}
    reasons = sorted(why for why in said if not why.startswith("EMSGSIZE"))
    if reasons:
        remedy = "the sender's system refuses: its firewall, or a missing route to the data network"
        return f"not sent: {reasons[0]}", _BROKEN, remedy
    if any(seen.reads.works(path) or seen.reads.works(path[::-1]) for path in paths):
        return "UDP 4791 does not pass, TCP does", _BROKEN, "let a firewall on the path pass UDP 4791 and 4793"
    if words == "all nodes":
        remedy = "does the switch run and forward? are the data interfaces those that are cabled to it?"
        return "no node reaches another", _BROKEN, remedy
    if words.endswith(" <-> all others"):
        name = words.partition(" ")[0]
        interface = seen.nodes[name].facts.interface or "the data interface"
        remedy = f"{name}'s cable, {interface} and its port of the switch, a firewall"
        return "nothing passes", _BROKEN, remedy
    return "nothing passes", _BROKEN, "a firewall or a filter between these: ping it on the data network"


def _puts(seen: Observations) -> Iterator[rpc.Finding]:
    remedy = "the agent's pool is full of pinned chunks, or too small"
    yield from _of_nodes("put", seen.puts, "64 KiB put", remedy)


def _reads(seen: Observations) -> Iterator[rpc.Finding]:
    reads = seen.reads
    unexplained = {path: why for path, why in reads.failed.items() if not seen.is_cut(path)}
    for words, paths in blame(unexplained, reads.tried):
        reason = Counter(unexplained[path] for path in paths).most_common(1)[0][0]
        remedy = "does a firewall let TCP pass to data.read_port (4790) of the first?"
        yield _finding("read", words, reason, _BROKEN, remedy)
    if reads.tried and not reads.failed:
        yield _finding("read", _paths(reads), "64 KiB read and compared")
    if seen.unfinished:
        yield _finding("read", "", f"not tried: {seen.unfinished}", _NOTE, "mend what is broken and try again")


def _casts(seen: Observations) -> Iterator[rpc.Finding]:
    casts = seen.casts
    if not casts.tried:
        if seen.switch_state == "ready" and seen.nodes:
            remedy = "a cast has two readers: it takes three nodes between which datagrams pass"
            yield _finding("cast", _nodes(seen), "not tried", _NOTE, remedy)
        return
    missed = seen.casts_missed()
    for words, paths in blame(missed, casts.tried):
        reason = Counter(missed[path] for path in paths).most_common(1)[0][0]
        remedy = "does the network pass the multicast group (fabric.group)? kvcast top shows where nodes are"
        if all(path in seen.came_otherwise for path in paths):
            remedy += "; nodes that are very busy come too late for a cast: try again when they are not"
        yield _finding("cast", words, reason, _BROKEN, remedy)
    if not missed:
        yield _finding("cast", _paths(casts), "cast to all others at once and compared")


def _fills(seen: Observations) -> Iterator[rpc.Finding]:
    remedy = "the logs of controller and agent; drops by reason in the controller's metrics"
    if seen.no_room:
        found = f"not tried, the switch has no room: {seen.no_room}"
        yield _finding("fill", "switch", found, _NOTE, "unpin something from the switch to have it tried")
    yield from _of_nodes("fill", seen.fills, "64 KiB filled into the switch", remedy, "{} -> switch")


def _serves(seen: Observations) -> Iterator[rpc.Finding]:
    remedy = "as for casts to this node; drops by reason in the controller's metrics"
    yield from _of_nodes("serve", seen.serves, "64 KiB served by the switch", remedy, "switch -> {}")


def _of_nodes(
    check: str, problems: Mapping[str, str], good: str, remedy: str, path: str = "{}"
) -> Iterator[rpc.Finding]:
    bad = {name: why for name, why in problems.items() if why}
    for name, why in sorted(bad.items()):
        yield _finding(check, path.format(name), why.removeprefix(f"{name}: "), _BROKEN, remedy)
    if problems and not bad:
        yield _finding(check, path.format(f"{len(problems)} nodes"), good)


# ---------------------------------------------------------------------------------------------- security


def _security(seen: Observations) -> Iterator[rpc.Finding]:
    surroundings = seen.surroundings
    yield from _certificates(seen)
    if surroundings.security != "insecure":
        words = "by TLS" if surroundings.security == "tls" else "on loopback alone"
        yield _finding("security", "controller", f"control channel and P4Runtime {words}")
        return
    networks = {subnet for node in seen.nodes.values() if (subnet := _subnet(node)) is not None}
    remedy = "use certificates: kvcast pki; until then keep the management network private"
    for what, endpoint in (("control channel", surroundings.listen), ("P4Runtime", surroundings.switch)):
        host = endpoint.rpartition(":")[0].strip("[]")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            continue  # a name, or nothing
        if address.is_unspecified or any(address in network for network in networks):
            found = f"{what} at {endpoint} without TLS, also on the data network"
            yield _finding("security", "controller", found, _SLOW, remedy)
    found = "control channel or P4Runtime without TLS: neither encrypted nor authenticated"
    yield _finding("security", "controller", found, _NOTE, remedy)


def _certificates(seen: Observations) -> Iterator[rpc.Finding]:
    said = ((node.name, node.facts.certificate_ends_s) for node in seen.nodes.values())
    ends_s: dict[str, float] = {name: end_s for name, end_s in said if end_s}
    if seen.surroundings.certificate_ends_s:
        ends_s["controller"] = seen.surroundings.certificate_ends_s
    left_days = {name: (end_s - seen.surroundings.unix_ns / 1e9) / 86_400 for name, end_s in ends_s.items()}
    for name, days in sorted(left_days.items()):
        remedy = f"renew it: kvcast pki --renew, or your authority's way, and put the files in place on {name}"
        if days <= 0:
            yield _finding("certificates", name, "expired: its next connection fails", _BROKEN, remedy)
        elif days < CERTIFICATE_DAYS:
            yield _finding("certificates", name, f"good for {days:.1f} more days", _SLOW, remedy)
    if left_days and min(left_days.values()) >= CERTIFICATE_DAYS:
        yield _finding("certificates", f"{len(left_days)} of them", f"good for {min(left_days.values()):.0f} more days")


def _nodes(seen: Observations) -> str:
    return f"{len(seen.nodes)} node{'' if len(seen.nodes) == 1 else 's'}"


def _paths(tries: Tries) -> str:
    return f"{len(tries.tried)} paths"
