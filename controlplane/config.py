"""controller.yaml. docs/controlplane.md has the table of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from controlplane.ids import SwitchPort
from controlplane.limits import BITMAP_GROUPS_MAX
from controlplane.pool import PoolRules
from controlplane.settings import ConfigError, Section
from controlplane.switch.codec import V1ModelCodec
from controlplane.switch.entries import FabricEntry
from controlplane.switch.p4runtime import P4RuntimeOptions
from controlplane.switch.tofino import RECIRCULATION_PORT, OrbitOptions, TofinoCodec, frame_bytes
from kvproto.tiers.push import PushParameters
from kvproto.value import ValueParameters

__all__ = ["Config", "ConfigError", "load"]

_MS = 1_000_000
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class FabricConfig:
    entry: FabricEntry
    qkey: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """`target` none: no switch, and `reach` and `codec` are None."""

    target: str
    reach: P4RuntimeOptions | None
    codec: V1ModelCodec | None
    flood_ports: tuple[SwitchPort, ...]
    reconcile_ns: int
    groups_max: int
    """Groups by bitmap, on a Tofino."""


@dataclass(frozen=True, slots=True)
class MembershipConfig:
    heartbeat_ns: int
    copies_grace_ns: int
    member_grace_ns: int
    settle_ns: int


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a controller is told."""

    listen: str
    metrics: str
    """Empty: off."""
    ready_file: Path | None
    log_level: str
    ports: Mapping[str, SwitchPort]
    switch: SwitchConfig
    fabric: FabricConfig
    values: ValueParameters
    rules: PoolRules
    pushes: PushParameters
    fill_timeout_ms: int
    transfer_timeout_ms: int
    membership: MembershipConfig


def load(path: Path) -> Config:
    """Read and check a file. Raises ConfigError with one line."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: not UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return parse(values, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(values: object, folder: Path) -> Config:
    """Check what was read; relative paths are taken from `folder`. Raises ConfigError."""
    top = Section(values, "")
    listen = top.endpoint("listen", "127.0.0.1:4800")
    metrics = top.text("metrics", "127.0.0.1:9470")
    if metrics:
        top.endpoint("metrics", metrics)
    ready_file = top.text("ready_file")
    log_level = top.choice("log_level", "info", ("debug", "info", "warning", "error"))
    ports = _ports(top.section("nodes"))
    fabric = _fabric(top.section("fabric"))
    switch = _switch(top.section("switch"), folder, fabric.segment_bytes)
    values_, rules, fill_timeout_ms, transfer_timeout_ms = _policy(top.section("policy"))
    pushes = _push(top.section("push"))
    membership = _membership(top.section("membership"))
    top.done()
    return Config(
        listen=listen,
        metrics=metrics,
        ready_file=Path(ready_file) if ready_file else None,
        log_level=log_level,
        ports=ports,
        switch=switch,
        fabric=fabric,
        values=values_,
        rules=rules,
        pushes=pushes,
        fill_timeout_ms=fill_timeout_ms,
        transfer_timeout_ms=transfer_timeout_ms,
        membership=membership,
    )


def _ports(nodes: Section) -> dict[str, SwitchPort]:
    ports: dict[str, SwitchPort] = {}
    for name, value in nodes.items():
        node = Section(value, f"nodes.{name}")
        port = SwitchPort(node.whole("port", 0, 1, 510))
        node.done()
        other = next((one for one, taken in ports.items() if taken == port), None)
        if other is not None:
            raise ConfigError(f"nodes.{name}.port: {port} is {other}'s already")
        ports[name] = port
    return ports


def _switch(section: Section, folder: Path, segment_bytes: int) -> SwitchConfig:
    target = section.choice("target", "none", ("none", "p4switch", "bmv2", "tofino"))
    address = section.text("address")
    options = P4RuntimeOptions(
        address=section.endpoint("address", "127.0.0.1:9559"),
        device_id=section.whole("device_id", 1, 0, 2**64 - 1),
        election_id=section.whole("election_id", 10, 1, 2**63 - 1),
        p4info=_file(section, "p4info", folder),
        program=_file(section, "program", folder),
        reconnect_s=section.whole("reconnect_ms", 500, 10, 60_000) / 1000,
    )
    flood_ports = tuple(SwitchPort(port) for port in section.ports("flood_ports"))
    reconcile_ns = section.whole("reconcile_ms", 2000, 50, 3_600_000) * _MS
    groups_max = section.whole("groups_max", BITMAP_GROUPS_MAX, 0, 0xFFFF)
    orbit = _orbit(section, target == "tofino", segment_bytes)
    section.done()
    if target == "none":
        return SwitchConfig(target, None, None, (), reconcile_ns, groups_max)
    if address is None:
        raise ConfigError(f"switch.address is missing: where does the {target} listen for P4Runtime?")
    if (options.p4info is None) != (options.program is None):
        raise ConfigError("switch.p4info and switch.program go together: give both to push a program, or neither")
    codec = V1ModelCodec() if orbit is None else TofinoCodec(orbit)
    return SwitchConfig(target, options, codec, flood_ports, reconcile_ns, groups_max)


def _orbit(section: Section, tofino: bool, segment_bytes: int) -> OrbitOptions | None:
    """Cached segments circulate in a Tofino and nowhere else."""
    bytes_max = section.whole("orbit_bytes", 0, 0, 2**40)
    port = SwitchPort(section.whole("recirculation_port", RECIRCULATION_PORT, 1, 511))
    frame = frame_bytes(segment_bytes)
    if not tofino:
        if bytes_max:
            raise ConfigError("switch.orbit_bytes goes with target tofino: elsewhere cached segments do not circulate")
        return None
    if not bytes_max:
        raise ConfigError(
            "switch.orbit_bytes is missing: how many bytes of the switch's packet buffer may cached segments fill?"
        )
    if bytes_max < frame:
        raise ConfigError(f"switch.orbit_bytes: {bytes_max} is less than one segment with its headers, {frame} bytes")
    return OrbitOptions(bytes_max, segment_bytes, port)


def _file(section: Section, key: str, folder: Path) -> Path | None:
    text = section.text(key)
    if text is None:
        return None
    path = folder / text
    if not path.is_file():
        raise ConfigError(f"switch.{key}: there is no file {path}")
    return path


def _fabric(section: Section) -> FabricConfig:
    group_ip = section.address("group", "239.75.86.1")
    if not 224 <= group_ip[0] <= 239:
        raise ConfigError("fabric.group: not a multicast address (224.0.0.0 to 239.255.255.255)")
    # RFC 1112: the low 23 bits of the group behind 01:00:5e.
    group_mac = b"\x01\x00\x5e" + bytes([group_ip[1] & 0x7F]) + group_ip[2:]
    segment_bytes = section.whole("segment_bytes", 4096, 256, 8192)
    if segment_bytes % 4:
        raise ConfigError(f"fabric.segment_bytes: {segment_bytes} is not a multiple of 4")
    entry = FabricEntry(
        group_mac=group_mac,
        group_ip=group_ip,
        pool_mac=section.mac("pool_mac", "02:4b:56:00:ff:fe"),
        pool_ip=section.address("pool", "10.75.255.254"),
        from_switch_dscp=section.whole("from_switch_dscp", 0x2A, 0, 63),
        interest_ttl_us=section.whole("interest_ttl_ms", 2000, 50, 3_600_000) * 1000,
        heat_window_us=section.whole("heat_window_ms", 1000, 1, 3_600_000) * 1000,
        heat_gets=section.whole("heat_gets", 64, 1, 2**32 - 1),
    )
    qkey = section.whole("qkey", 0x11111111, 0, 2**32 - 1)
    section.done()
    return FabricConfig(entry, qkey, segment_bytes)


def _policy(section: Section) -> tuple[ValueParameters, PoolRules, int, int]:
    values = ValueParameters(
        half_life_s=section.number("half_life_s", 300.0, 0.1, 1e7),
        second_touch_s=section.number("second_touch_s", 60.0, 0.0, 1e7),
    )
    rules = PoolRules(
        admission=section.flag("admission", True),
        spill=section.flag("spill", True),
        fills_at_once=section.whole("fills_at_once", 8, 1, 1024),
        fills_per_holder=section.whole("fills_per_holder", 2, 1, 1024),
    )
    fill_timeout_ms = section.whole("fill_timeout_ms", 10_000, 10, 3_600_000)
    transfer_timeout_ms = section.whole("transfer_timeout_ms", 60_000, 10, 3_600_000)
    section.done()
    return values, rules, fill_timeout_ms, transfer_timeout_ms


def _push(section: Section) -> PushParameters:
    default = PushParameters()
    pushes = PushParameters(
        enabled=section.flag("enabled", default.enabled),
        window_ns=section.whole("window_ms", default.window_ns // _MS, 1, 3_600_000) * _MS,
        horizon_ns=section.whole("horizon_ms", default.horizon_ns // _MS, 1, 3_600_000) * _MS,
        use_min=section.number("use_min", default.use_min, 0.0, 1.0),
        evidence_min=section.whole("evidence_min", default.evidence_min, 0, 1_000_000),
    )
    section.done()
    return pushes


def _membership(section: Section) -> MembershipConfig:
    membership = MembershipConfig(
        heartbeat_ns=section.whole("heartbeat_ms", 1000, 10, 60_000) * _MS,
        copies_grace_ns=section.whole("copies_grace_ms", 2000, 0, 3_600_000) * _MS,
        member_grace_ns=section.whole("member_grace_ms", 60_000, 0, 3_600_000) * _MS,
        settle_ns=section.whole("settle_ms", 3_000, 0, 60_000) * _MS,
    )
    section.done()
    if membership.member_grace_ns < membership.copies_grace_ns:
        raise ConfigError("membership.member_grace_ms is below copies_grace_ms: a member outlives its copies")
    return membership
