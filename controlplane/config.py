"""controller.yaml. docs/reference/controller.md has the table of keys."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.core.ids import SwitchPort
from controlplane.core.limits import (
    BITMAP_GROUPS_MAX,
    NAMESPACE_BYTES_MAX,
    PUSHES_AT_ONCE_UNICAST,
    SWITCH_PORT_MAX,
)
from controlplane.core.nodes import ASCENDING, Graces
from controlplane.core.options import CoreOptions, FabricParameters, PortLimits, SwitchCacheRules
from controlplane.core.switch.bitmap_groups import MEMBER_ORDER
from controlplane.core.switch.entries import FabricEntry
from controlplane.election.election_config import ElectionConfig, take_election
from controlplane.index_service import Model
from controlplane.kept_state import FILE_NAME
from controlplane.p4runtime.codec import V1ModelCodec
from controlplane.p4runtime.p4runtime_target import P4RuntimeOptions
from controlplane.p4runtime.tofino import RECIRCULATION_PORT, OrbitOptions, TofinoCodec, frame_bytes
from kvchunk.ids import DIGEST_BYTES
from kvdaemon import checks, settings
from kvdaemon.errors import ConfigError
from kvdaemon.log import LOG_FORMATS
from kvdaemon.settings import Section
from kvdaemon.tls_settings import TlsSettings, demand_tls, is_loopback, take_tls
from kvpolicy.tiers.push import PushParameters
from kvpolicy.value import ValueParameters
from kvproto.blocks import TRIAL
from kvproto.cells import CELLS_MAX, Cell, Cells
from kvproto.fanout import Fanout
from kvproto.grants import PATTERNS_MAX
from kvproto.integrity import Integrity

AUTO = "auto"
FANOUTS = ("switch", "multicast", "relay", AUTO)
_MS = 1_000_000
"""Nanoseconds."""
_HOUR_MS = 3_600_000
_PER_S_MAX = 10**12


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """How to reach the switch. `target` none: no switch, and `reach` and `codec` are None."""

    target: str
    reach: P4RuntimeOptions | None = None
    codec: V1ModelCodec | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a controller."""

    listen: str
    metrics: str
    """Empty: off."""
    tls: TlsSettings | None
    """None: agents, operators and this controller speak plainly."""
    insecure: bool
    """The file says that speaking plainly with other machines is meant."""
    ready_file: Path | None
    log_level: str
    log_format: str
    switch: SwitchConfig
    election: ElectionConfig
    core: CoreOptions
    """But for what the daemon knows of a start: incarnation, secret, seals."""
    remote_cost: bool
    """Other machines may ask what chunks would cost, and where they are."""
    models: Mapping[str, Model]
    """By the names that routers give them."""
    expelled: Path | None
    """Names nodes that are put out, for operators to edit; None: there is no such file."""
    state: Path | None
    """Where operators' state is kept for a start at which no agent knows it; None: nowhere on this machine."""

    @property
    def security(self) -> str:
        """tls, loopback (no TLS, and nobody else can listen in), or insecure (no TLS, and somebody can)."""
        plain = [self.listen] if self.tls is None else []
        if self.switch.reach is not None and self.switch.reach.tls is None:
            plain.append(self.switch.reach.address)
        if not all(map(is_loopback, plain)):
            return "insecure"
        return "loopback" if self.tls is None else "tls"


def load(path: Path) -> Config:
    """Read and check a file. Raises ConfigError with one line."""
    return settings.load(path, lambda values: parse(values, path.parent))


def parse(values: object, folder: Path) -> Config:
    """Check the values of a file; relative paths are taken from `folder`. Raises ConfigError."""
    top = Section(values)
    tls = take_tls(top.section("tls"), folder)
    fabric, switch = _fabric(top.section("fabric")), top.section("switch")
    policy, membership = top.section("policy"), top.section("membership")
    target = switch.take("target", checks.one_of(("none", "p4switch", "bmv2", "tofino")), "none")
    insecure = top.take("insecure", checks.flag, False)
    election = take_election(top.section("election"), folder, with_switch=target != "none", insecure=insecure)
    if fabric.is_auto and target != "none":
        fabric = replace(fabric, fanout=Fanout.SWITCH, is_auto=False)  # the switch floods groups that it does not know
    if fabric.fanout is not Fanout.SWITCH and target != "none":
        raise ConfigError(
            f"fabric.fanout: {fabric.fanout.name.lower()} goes with switch.target: none;"
            " behind a kvcast switch leave it out"
        )
    core = CoreOptions(
        fabric=fabric,
        graces=_graces(membership),
        incarnation=0,
        with_switch=target != "none",
        values=_values(policy),
        rules=_rules(policy),
        pushes=_push(top.section("push"), with_switch=target != "none"),
        ports=_ports(top.section("nodes")),
        flood_ports=switch.take("flood_ports", _switch_ports, ()),
        is_p4switch=target == "p4switch",
        member_order=MEMBER_ORDER if target == "tofino" else ASCENDING,
        bitmap_groups_max=switch.take("groups_max", checks.whole(0, 0xFFFF), BITMAP_GROUPS_MAX),
        limits=_limits(switch, fabric.segment_bytes),
        salt_interval_ns=switch.take("salt_interval_ms", checks.whole(0, 24 * _HOUR_MS), 600_000) * _MS,
        check_switch_ns=switch.take("reconcile_ms", checks.whole(50, _HOUR_MS), 2000) * _MS,
        fill_timeout_ms=policy.take("fill_timeout_ms", checks.whole(10, _HOUR_MS), 10_000),
        transfer_timeout_ms=policy.take("transfer_timeout_ms", checks.whole(10, _HOUR_MS), 60_000),
        silence_ms=0 if election.by == "none" else election.lease_ms,
        read_token_ms=top.take("read_token_ms", checks.whole(1000, _HOUR_MS), 600_000),
        namespaces=_namespaces(top.take("namespaces", _lists, None)),
        cells=_cells(top.take("cell", _name_of_cell, ""), top.section("cells")),
        settle_ns=membership.take("settle_ms", checks.whole(0, 60_000), 3000) * _MS,
    )
    config = Config(
        listen=top.take("listen", checks.endpoint, "127.0.0.1:4800"),
        metrics=top.take("metrics", _metrics, "127.0.0.1:9470"),
        tls=tls,
        insecure=insecure,
        ready_file=top.take("ready_file", checks.optional_path, None),
        log_level=top.take("log_level", checks.one_of(checks.LOG_LEVELS), "info"),
        log_format=top.take("log_format", checks.one_of(LOG_FORMATS), "text"),
        switch=_switch(target, switch, folder, fabric.segment_bytes, tls),
        election=election,
        core=core,
        remote_cost=top.take("remote_cost", checks.flag, False),
        models=_models(top.section("models")),
        expelled=top.take("expelled", _path_in(folder), None),
        state=top.take("state", _path_in(folder), _state_of_service()),
    )
    top.done()
    demand_tls("listen", config.listen, tls, insecure=config.insecure)
    if config.switch.reach is not None:
        reach = config.switch.reach
        demand_tls("switch.address", reach.address, reach.tls, insecure=config.insecure)
    return config


def _ports(nodes: Section) -> dict[str, SwitchPort]:
    owners: dict[SwitchPort, str] = {}
    for name, node in nodes.sections().items():
        port = node.need("port", _node_port)
        if port in owners:
            raise ConfigError(f"nodes.{name}.port: {port} is {owners[port]}'s already")
        owners[port] = name
    return {name: port for port, name in owners.items()}


def _cells(own: str, section: Section) -> Cells:
    cells: dict[str, Cell] = {}
    none: tuple[str, ...] = ()
    for name, one in section.sections().items():
        weight = one.take("weight", checks.number(0, 1e6), 1.0)
        try:
            cells[name] = Cell(_name_of_cell(name), weight, one.take("controllers", _controllers, none))
        except ValueError as error:
            raise ConfigError(f"cells: {error}") from None
    if len(cells) > CELLS_MAX:
        raise ConfigError(f"cells: {len(cells)} of them, {CELLS_MAX} at most")
    if cells and own not in cells:
        raise ConfigError(f"cell: {own!r} is not among cells: say which of them this controller is of")
    for name, cell in cells.items():
        if name != own and not cell.controllers:
            raise ConfigError(f"cells.{name}.controllers is missing: whom are its nodes and routers to ask?")
    if cells and not any(cell.weight for cell in cells.values()):
        raise ConfigError("cells: none of them weighs anything")
    return Cells(own, cells)


def _models(models: Section) -> dict[str, Model]:
    return {
        name: Model(model.need("namespace", _digest), model.need("chunk_tokens", checks.whole(1, 1 << 20)))
        for name, model in models.sections().items()
    }


def _namespaces(lists: Mapping[str, tuple[str, ...]] | None) -> Mapping[str, tuple[str, ...]]:
    lists = lists or {}
    if len(lists) > PATTERNS_MAX:
        raise ConfigError(f"namespaces: {len(lists)} patterns, {PATTERNS_MAX} at most: beginnings with * take less")
    for pattern in lists:
        if not pattern or len(pattern.encode()) > NAMESPACE_BYTES_MAX or "*" in pattern[:-1]:
            raise ConfigError(f"namespaces: {pattern!r} is not a namespace, or the beginning of one with * behind it")
    return lists


def _switch(target: str, section: Section, folder: Path, segment_bytes: int, own: TlsSettings | None) -> SwitchConfig:
    address = section.take("address", checks.endpoint, None)
    p4info = section.take("p4info", _file_in(folder), None)
    program = section.take("program", _file_in(folder), None)
    device_id = section.take("device_id", checks.whole(0, 2**64 - 1), 1)
    election_id = section.take("election_id", checks.whole(1, 2**63 - 1), 10)
    reconnect_ms = section.take("reconnect_ms", checks.whole(10, 60_000), 500)
    answer_ms = section.take("answer_ms", checks.whole(10, 60_000), 5000)
    orbit_bytes = section.take("orbit_bytes", checks.whole(0, 2**40), 0)
    recirculation_port = section.take("recirculation_port", _recirculation_port, RECIRCULATION_PORT)
    by_tls = section.take("tls", checks.flag, None)
    ca = section.take("ca", _file_in(folder), None)
    server_name = section.take("server_name", checks.text, "")
    section.done()
    if orbit_bytes and target != "tofino":
        raise ConfigError("switch.orbit_bytes needs switch.target: tofino; on other targets no segments circulate")
    if target == "none":
        return SwitchConfig(target)
    if address is None:
        raise ConfigError(f"switch.address is missing: where does the {target} listen for P4Runtime?")
    if (p4info is None) != (program is None):
        raise ConfigError("switch.p4info and switch.program go together: give both to push a program, or neither")
    reach = P4RuntimeOptions(
        address=address,
        device_id=device_id,
        election_id=election_id,
        p4info=p4info,
        program=program,
        reconnect_s=reconnect_ms / 1000,
        answer_s=answer_ms / 1000,
        tls=_switch_tls(address, by_tls, ca, own),
        server_name=server_name,
    )
    codec = V1ModelCodec()
    if target == "tofino":
        codec = TofinoCodec(_orbit(orbit_bytes, segment_bytes, recirculation_port))
    return SwitchConfig(target, reach, codec)


def _limits(section: Section, segment_bytes: int) -> PortLimits | None:
    """From the rate of a port, unless the file says a limit itself; None: a port may cause anything."""
    derived = PortLimits.of_rate(section.take("port_rate", checks.rate, 100_000_000_000), segment_bytes)
    limits = PortLimits(
        section.take("joins_per_s", checks.whole(1, _PER_S_MAX), derived.joins_per_s),
        section.take("gets_per_s", checks.whole(1, _PER_S_MAX), derived.gets_per_s),
        section.take("segments_per_s", checks.whole(1, _PER_S_MAX), derived.segments_per_s),
    )
    return limits if section.take("meters", checks.flag, True) else None


def _switch_tls(address: str, asked: bool | None, ca: Path | None, own: TlsSettings | None) -> TlsSettings | None:
    """By TLS where the controller has certificates and the switch is another machine, unless the file says it."""
    if asked is None:
        asked = own is not None and not is_loopback(address)
    if not asked:
        return None
    if own is None:
        raise ConfigError("switch.tls needs the controller's own certificate: the section tls")
    return TlsSettings(own.cert, own.key, ca or own.ca)


def _orbit(bytes_max: int, segment_bytes: int, port: SwitchPort) -> OrbitOptions:
    """Cached segments circulate in a Tofino and nowhere else."""
    frame = frame_bytes(segment_bytes)
    if not bytes_max:
        raise ConfigError(
            "switch.orbit_bytes is missing: how many bytes of the switch's packet buffer may cached segments fill?"
        )
    if bytes_max < frame:
        raise ConfigError(f"switch.orbit_bytes: {bytes_max} is less than one segment with its headers, {frame} bytes")
    return OrbitOptions(bytes_max, segment_bytes, port)


def _fabric(section: Section) -> FabricParameters:
    group_ip = _packed(section.take("group", checks.multicast, "239.75.86.1"))
    # RFC 1112: the low 23 bits of the group behind 01:00:5e.
    group_mac = b"\x01\x00\x5e" + bytes([group_ip[1] & 0x7F]) + group_ip[2:]
    entry = FabricEntry(
        group_mac=group_mac,
        group_ip=group_ip,
        pool_mac=section.take("pool_mac", checks.mac, bytes.fromhex("024b5600fffe")),
        pool_ip=_packed(section.take("pool", checks.ipv4, "10.75.255.254")),
        from_switch_dscp=section.take("from_switch_dscp", checks.whole(0, 63), 0x2A),
        interest_ttl_us=section.take("interest_ttl_ms", checks.whole(50, _HOUR_MS), 2000) * 1000,
        heat_window_us=section.take("heat_window_ms", checks.whole(1, _HOUR_MS), 1000) * 1000,
        heat_gets=section.take("heat_gets", checks.whole(1, 2**32 - 1), 64),
    )
    qkey = section.take("qkey", checks.whole(0, 2**32 - 1), 0x11111111)
    integrity = section.take("integrity", checks.one_of(tuple(one.value for one in Integrity)), Integrity.BLAKE3.value)
    segment_bytes = section.take("segment_bytes", _segment_bytes, 4096)
    fanout = section.take("fanout", checks.one_of(FANOUTS), FANOUTS[0])
    last_ip = int.from_bytes(group_ip, "big") + TRIAL
    if fanout in (Fanout.MULTICAST.name.lower(), AUTO) and (group_ip[:3] == b"\xe0\x00\x00" or last_ip >> 28 != 0xE):
        # RFC 5771: what is sent to 224.0.0.0/24 no switch filters, and behind 239.255.255.255 is no group.
        raise ConfigError(
            f"fabric.group: with {fanout} it and the {TRIAL} addresses after it are groups: take one from 224.0.1.0 to"
            " 239.255.255.127, 129 away from that of any other cluster"
        )
    return FabricParameters(
        entry,
        qkey,
        segment_bytes=segment_bytes,
        integrity=Integrity(integrity),
        fanout=Fanout.RELAY if fanout == AUTO else Fanout[fanout.upper()],
        is_auto=fanout == AUTO,
        unasked_weight=section.take("unasked_weight", checks.number(0, 1000), 0.1),
    )


def _values(policy: Section) -> ValueParameters:
    return ValueParameters(
        half_life_s=policy.take("half_life_s", checks.number(0.1, 1e7), 300.0),
        second_touch_s=policy.take("second_touch_s", checks.number(0, 1e7), 60.0),
    )


def _rules(policy: Section) -> SwitchCacheRules:
    return SwitchCacheRules(
        admission=policy.take("admission", checks.flag, True),
        spill=policy.take("spill", checks.flag, True),
        price_fills=policy.take("price_fills", checks.flag, True),
        fills_at_once=policy.take("fills_at_once", checks.whole(1, 1024), 8),
        fills_per_holder=policy.take("fills_per_holder", checks.whole(1, 1024), 2),
    )


def _push(section: Section, *, with_switch: bool) -> PushParameters:
    default = PushParameters()
    return PushParameters(
        enabled=section.take("enabled", checks.flag, default.enabled),
        nodes_at_once=0 if with_switch else PUSHES_AT_ONCE_UNICAST,
        window_ns=section.take("window_ms", checks.whole(1, _HOUR_MS), default.window_ns // _MS) * _MS,
        horizon_ns=section.take("horizon_ms", checks.whole(1, _HOUR_MS), default.horizon_ns // _MS) * _MS,
        use_min=section.take("use_min", checks.number(0, 1), default.use_min),
        evidence_min=section.take("evidence_min", checks.whole(0, 1_000_000), default.evidence_min),
    )


def _graces(section: Section) -> Graces:
    graces = Graces(
        section.take("heartbeat_ms", checks.whole(10, 60_000), 1000) * _MS,
        section.take("copies_grace_ms", checks.whole(0, _HOUR_MS), 2000) * _MS,
        section.take("member_grace_ms", checks.whole(0, _HOUR_MS), 60_000) * _MS,
    )
    if graces.member_ns < graces.copies_ns:
        raise ConfigError("membership.member_grace_ms is below copies_grace_ms: a member outlives its copies")
    return graces


# -- values


def _lists(value: object) -> Mapping[str, tuple[str, ...]] | None:
    """Lists of names by name."""
    if not isinstance(value, dict) or not all(isinstance(names, list) for names in value.values()):
        raise ValueError("not a mapping of patterns to lists of nodes")
    return {str(pattern): tuple(str(name) for name in names) for pattern, names in value.items()}


def _digest(value: object) -> str:
    digest = checks.text(value).lower()
    if len(digest) != 2 * DIGEST_BYTES or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"{digest[:80]!r} is not {2 * DIGEST_BYTES} hex digits, as engines print them")
    return digest


def _name_of_cell(value: object) -> str:
    """As agents name theirs."""
    name = str(value)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError(f"{name[:80]!r} is not a name of letters, digits, '.', '_' and '-', 64 at most")
    return name


def _controllers(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list of HOST:PORT")
    return tuple(map(checks.endpoint, value))


def _metrics(value: object) -> str:
    """HOST:PORT; "" is off."""
    return "" if value == "" else checks.endpoint(value)


def _node_port(value: object) -> SwitchPort:
    return SwitchPort(checks.whole(1, SWITCH_PORT_MAX)(value))


def _recirculation_port(value: object) -> SwitchPort:
    return SwitchPort(checks.whole(1, 511)(value))


def _switch_ports(value: object) -> tuple[SwitchPort, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list of switch ports")
    return tuple(map(_node_port, value))


def _segment_bytes(value: object) -> int:
    size_bytes = checks.whole(256, 8192)(value)
    if size_bytes % 4:
        raise ValueError(f"{size_bytes} is not a multiple of 4")
    return size_bytes


def _file_in(folder: Path) -> Callable[[object], Path]:
    """Files that are there; relative paths start at `folder`."""

    def check(value: object) -> Path:
        path = folder / checks.text(value)
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        return path

    return check


def _path_in(folder: Path) -> Callable[[object], Path]:
    """Files that need not be there; relative paths start at `folder`."""
    return lambda value: folder / checks.text(value)


def _state_of_service() -> Path | None:
    """In the folder that the service manager has made for this service (systemd's StateDirectory=), if there is one."""
    folders = os.environ.get("STATE_DIRECTORY", "")
    return Path(folders.partition(":")[0]) / FILE_NAME if folders else None


def _packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed
