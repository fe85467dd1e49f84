"""The agent's configuration file: YAML, every key known, every mistake one clear line.

Owns names, defaults and ranges. Looks at nothing on the system but names of users and groups: the transport finds out
whether an interface exists.
"""

from __future__ import annotations

import grp
import mmap
import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hostagent import limits
from hostagent.api.access import Access
from hostagent.api.tenancy import TenantTerms
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.cold_settings import FORMS, take_cold
from hostagent.disk.disk_options import DiskConfig
from hostagent.tracing import TracingConfig
from kvdaemon import checks, settings
from kvdaemon.errors import ConfigError
from kvdaemon.log import LOG_FORMATS
from kvdaemon.settings import Section
from kvdaemon.tls_settings import TlsSettings, demand_tls, is_loopback, take_tls
from kvpolicy.tiers.form_costs import FormChoice
from kvpolicy.tiers.merging import WAIT_MAX_S
from kvproto.integrity import Integrity
from kvproto.limits import RAILS_MAX
from kvproto.session.read_window import READ_WINDOW_MIN_BYTES

TRANSPORTS = ("auto", "verbs", "sockets")
HUGE_PAGES = ("auto", "never", "required")


API_SOCKET = "/run/kvcast/agent.sock"
"""Where engines find the agent, unless the configuration says otherwise."""
NODE_VARIABLE = "KVCAST_NODE"
"""The node's name where the host's is not it: in a pod with a network of its own."""
RACK_VARIABLE = "KVCAST_RACK"
"""The node's rack where its file names none: from a label of its pod, for example."""


@dataclass(frozen=True, slots=True)
class WireConfig:
    """The section `wire` of the agent's configuration."""

    form: FormChoice = FormChoice.RAW
    """RAW unless an operator asks for more: where processors are busy, decoding takes longer than the gate expects."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The network of the data."""

    transport: str = "auto"
    """One of TRANSPORTS. auto: verbs where the data interface has RDMA, else sockets."""
    interface: str = ""
    """Of the first rail."""
    address: str = ""
    rails: tuple[str, ...] = ()
    """Interfaces of further rails: `data.interfaces` without the first."""
    group: str = "239.75.86.1"
    pool_address: str = "10.75.255.254"
    qkey: int = 0x11111111
    from_switch_dscp: int = 0x2A
    segment_bytes: int = 4096
    integrity: Integrity | None = None
    """How chunks have to be digested; None: as the controller says, without one by BLAKE3."""
    cast_port: int = 4791
    control_port: int = 4793
    read_port: int = 4790
    receive_buffer_bytes: int = 8 * limits.MIB
    switch_port: int = 0
    rdma_device: str = ""
    """Only this RDMA device; empty: the one with the address."""
    rdma_read_window_bytes: int = limits.VERBS_READ_WINDOW_BYTES
    """Most bytes of RDMA READs in flight from one peer; below that the window follows the delay (`ReadWindow`)."""
    rdma_region_bytes: int = 1024 * limits.MIB
    """`rdma.region_bytes`: the pool is registered with an RDMA NIC in regions of at most so many; some NICs refuse more
    than 2 GiB in one, and several threads register several."""
    link_rate_bit_s: int | None = None
    """`gate.link_rate`, what its link carries before anything has been measured; None: as the kernel reports it. With
    rails: what each does."""

    def each_rail(self) -> tuple[DataConfig, ...]:
        """One for each rail, as if there were no others."""
        first = replace(self, rails=())
        return first, *(replace(first, interface=name, address="") for name in self.rails)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The `pool` section."""

    size_bytes: int = 256 * limits.MIB
    prefault: bool = True
    huge_pages: str = "auto"
    """One of HUGE_PAGES. auto: where there is RDMA, and enough of them are free."""
    keep: bool = True
    """Have the service manager, or a keeper, keep it over a restart of the agent, where it does that."""
    keeper: str = ""
    """Socket of a `kvcast keeper`; empty: the service manager keeps it."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All of it, checked."""

    node: str
    data: DataConfig
    pool: PoolConfig
    cell: str = ""
    """Part of the cluster that this node is of (`kvproto.cells`); empty: whichever its controllers are of."""
    rack: str = ""
    """Nodes of one rack reach each other by its switch alone; empty: all that name none are in one."""
    controllers: tuple[str, ...] = ()
    """host:port of the controller and of its standbys; empty: none, local chunks only."""
    tls: TlsSettings | None = None
    """None: this agent and the controllers speak plainly."""
    insecure: bool = False
    """The file says that speaking plainly with other machines is meant."""
    api_socket: str = API_SOCKET
    api_access: Access = field(default_factory=Access)
    write_region_wanted_bytes: int | None = None
    """See `write_region_bytes`; None: the file does not say."""
    tenants: Mapping[str, TenantTerms] = field(default_factory=dict)
    """By name."""
    http: tuple[str, int] = ("127.0.0.1", 9475)
    remote_cost: bool = False
    """Other machines may ask what chunks would cost."""
    ready_file: Path | None = None
    log_level: str = "info"
    log_format: str = "text"
    disk: DiskConfig | None = None
    """None: no disk tier."""
    cold: ColdConfig | None = None
    """None: no cold store."""
    wire: WireConfig = field(default_factory=WireConfig)
    relay_share: float = 1.0
    """`relay.uplink_share`: of what comes by relays, this part is passed on at most."""
    chooses_way: bool = True
    """`gate.choose_way`: chunks that several want are read by each where that was measured to end sooner."""
    tracing: TracingConfig | None = None
    """None: no traces."""
    merge_wait_max_s: float = WAIT_MAX_S
    """How much later an engine may get chunks that are being computed, to spare the requests behind it."""
    replica_bytes: int | None = None
    """Of what is known of other nodes' chunks, those that this node's engines ask for; 0: the whole directory, however
    large; None: the whole directory, as long as it has no more chunks than a node may follow."""

    @property
    def write_region_bytes(self) -> int:
        """Memory that each connection of an engine may use to hand over chunks; no chunk put can be larger."""
        return self.write_region_wanted_bytes or min(self.pool.size_bytes, limits.WRITE_REGION_BYTES_DEFAULT)

    @property
    def security(self) -> str:
        """tls, loopback (no TLS, and nobody else can listen in), or insecure (no TLS, and somebody can)."""
        if self.tls is not None:
            return "tls"
        return "loopback" if all(map(is_loopback, self.controllers)) else "insecure"


def load(path: Path) -> AgentConfig:
    """Read and check a file. Raises ConfigError."""
    return settings.load(path, lambda values: parse(values, path.parent))


def parse(values: object, folder: Path = Path()) -> AgentConfig:
    """Check the values of a file; certificates' relative paths start at `folder`. Raises ConfigError naming the key."""
    top = Section(values)
    http, api, gate = top.section("http"), top.section("api"), top.section("gate")
    controller = top.section("controller")
    auto: int | str = "auto"
    replica = controller.take("replica_bytes", _replica, auto)
    config = AgentConfig(
        node=top.take("node", _name, None) or _from_environment(NODE_VARIABLE) or socket.gethostname(),
        data=_data(top.section("data"), gate.take("link_rate", checks.rate, None), top.section("rdma")),
        pool=_pool(top.section("pool")),
        cell=top.take("cell", _name, ""),
        rack=top.take("rack", _name, "") or _from_environment(RACK_VARIABLE),
        controllers=controller.take("address", _controllers, ()),
        replica_bytes=replica if isinstance(replica, int) else None,
        tls=take_tls(top.section("tls"), folder),
        insecure=top.take("insecure", checks.flag, False),
        api_socket=api.take("socket", _socket_path, API_SOCKET),
        api_access=_access(api),
        write_region_wanted_bytes=api.take("write_region", _write_region, None),
        tenants=_tenants(top.section("tenants")),
        http=(http.take("address", checks.ipv4, "127.0.0.1"), http.take("port", checks.whole(0, 65535), 9475)),
        remote_cost=http.take("remote_cost", checks.flag, False),
        ready_file=top.take("ready_file", checks.optional_path, None),
        log_level=top.take("log_level", checks.one_of(checks.LOG_LEVELS), "info"),
        log_format=top.take("log_format", checks.one_of(LOG_FORMATS), "text"),
        disk=_disk(top.section("disk")),
        cold=take_cold(top.section("cold")),
        wire=_wire(top.section("wire")),
        relay_share=top.section("relay").take("uplink_share", checks.number(0, 1), 1.0),
        tracing=_tracing(top.section("tracing")),
        chooses_way=gate.take("choose_way", checks.flag, True),
        merge_wait_max_s=gate.take("merge_wait_max", checks.number(0, 60), WAIT_MAX_S),
    )
    top.done()
    for address in config.controllers:
        demand_tls("controller.address", address, config.tls, insecure=config.insecure)
    return config


def _replica(value: object) -> int | str:
    """`auto`, a size, or 0."""
    return "auto" if value == "auto" else 0 if value == 0 and value is not False else checks.size(value)


def _from_environment(variable: str) -> str:
    """A name that the file does not say; empty: nor does the environment."""
    try:
        named = os.environ.get(variable, "")
        return _name(named) if named else ""
    except ValueError as error:
        raise ConfigError(f"{variable} in the environment: {error}") from None


def _access(section: Section) -> Access:
    default = Access()
    return Access(
        section.take("mode", _mode, default.mode),
        section.take("group", _group, None),
        section.take("users", _ids("users", _user), default.users),
    )


def _tenants(section: Section) -> dict[str, TenantTerms]:
    tenants: dict[str, TenantTerms] = {}
    for name, tenant in section.sections().items():
        try:
            _name(name)
        except ValueError as error:
            raise ConfigError(f"tenants: {error}") from None
        default = TenantTerms()
        terms = tenants[name] = TenantTerms(
            tenant.take("users", _ids("users", _user), default.users),
            tenant.take("groups", _ids("groups", _group), default.groups),
            tenant.take("weight", checks.number(0.001, 1000), default.weight),
            tenant.take("connections", checks.whole(1, limits.API_CONNECTIONS_MAX), default.connections_max),
            tenant.take("requests_per_s", checks.number(0, 1e9), default.requests_per_s),
            tenant.take("namespace", _namespace, default.namespace),
        )
        if not terms.users and not terms.groups:
            raise ConfigError(f"tenants.{name}: it has no members: set users or groups")
    return tenants


def _namespace(value: object) -> str:
    """The first part of the namespaces of its chunks."""
    return "" if value == "" else _name(value)


def _ids(what: str, id_of: Callable[[object], int]) -> Callable[[object], frozenset[int]]:
    """Checks a list of users or groups of this machine, by names or numbers."""

    def check(value: object) -> frozenset[int]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is not a list of {what}")
        return frozenset(map(id_of, value))

    return check


def _mode(value: object) -> int:
    """Permissions of the socket, as chmod(1) takes them in octal."""
    text = f"{value:o}" if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or set(text) - set("01234567"):
        raise ValueError(f"{value!r} is not a mode like 0660")
    mode = int(text, 8)
    if mode & ~0o777 or not mode & 0o600 == 0o600:
        raise ValueError(f"{text} is not a mode like 0660: the agent itself needs 0600, and 0777 is the most")
    return mode


def _group(value: object) -> int:
    return _id(value, "group", lambda name: grp.getgrnam(name).gr_gid)


def _user(value: object) -> int:
    return _id(value, "user", lambda name: pwd.getpwnam(name).pw_uid)


def _id(value: object, what: str, id_of: Callable[[str], int]) -> int:
    """The number of a user or group of this machine, by name or number."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31:
        return value
    try:
        return id_of(str(value))
    except KeyError:
        raise ValueError(f"this machine has no {what} {value!r}") from None


def _data(section: Section, link_rate_bit_s: int | None, rdma: Section) -> DataConfig:
    default = DataConfig()
    section.refuse("native", "the data path in C comes with kvcast, and is the only one; leave the key out")
    section.refuse("frames", "testbeds use namespaces, and agents the kernel's sockets or RDMA")
    interface = section.take("interface", checks.text, default.interface)
    nothing: tuple[str, ...] = ()
    interfaces = section.take("interfaces", _interfaces, nothing) or (interface,)
    if interface not in ("", interfaces[0]):
        raise ConfigError(f"data.interface {interface} is not the first of data.interfaces: leave it out")
    config = DataConfig(
        transport=section.take("transport", checks.one_of(TRANSPORTS), default.transport),
        interface=interfaces[0],
        address=section.take("address", checks.ip, default.address),
        rails=interfaces[1:],
        group=section.take("group", checks.multicast, default.group),
        pool_address=section.take("pool_address", checks.ipv4, default.pool_address),
        qkey=section.take("qkey", checks.whole(0, 0xFFFF_FFFF), default.qkey),
        from_switch_dscp=section.take("from_switch_dscp", checks.whole(0, 63), default.from_switch_dscp),
        segment_bytes=section.take("segment_bytes", _segment_bytes, default.segment_bytes),
        integrity=section.take("integrity", _integrity, default.integrity),
        cast_port=section.take("cast_port", checks.whole(1, 65535), default.cast_port),
        control_port=section.take("control_port", checks.whole(1, 65535), default.control_port),
        read_port=section.take("read_port", checks.whole(0, 65535), default.read_port),
        receive_buffer_bytes=section.take("receive_buffer", checks.size, default.receive_buffer_bytes),
        switch_port=section.take("switch_port", checks.whole(0, limits.SWITCH_PORT_MAX), default.switch_port),
        rdma_device=section.take("rdma_device", checks.text, default.rdma_device),
        rdma_read_window_bytes=section.take("rdma_read_window", _read_window, default.rdma_read_window_bytes),
        rdma_region_bytes=rdma.take("region_bytes", _region_bytes, default.rdma_region_bytes),
        link_rate_bit_s=link_rate_bit_s,
    )
    section.done()
    if not config.address and not config.interface:
        raise ConfigError("data.address is missing: give the node's address on the data network, or data.interface")
    return config


def _interfaces(value: object) -> tuple[str, ...]:
    names = tuple(map(checks.text, value)) if isinstance(value, list) else ()
    if not 1 <= len(set(names)) == len(names) <= RAILS_MAX or not all(names):
        raise ValueError(f"{value!r} is not a list of 1 to {RAILS_MAX} different interfaces, one a rail")
    return names


def _region_bytes(value: object) -> int:
    size_bytes = checks.size(value)
    if size_bytes < limits.RDMA_REGION_BYTES_MIN:
        raise ValueError(f"{value!r} is less than {limits.RDMA_REGION_BYTES_MIN >> 20} MiB")
    return size_bytes


def _pool(section: Section) -> PoolConfig:
    default = PoolConfig()
    return PoolConfig(
        size_bytes=section.take("size", _pool_bytes, default.size_bytes),
        prefault=section.take("prefault", checks.flag, default.prefault),
        huge_pages=section.take("huge_pages", checks.one_of(HUGE_PAGES), default.huge_pages),
        keep=section.take("keep", checks.flag, default.keep),
        keeper=section.take("keeper", _socket_path, default.keeper),
    )


def _disk(section: Section) -> DiskConfig | None:
    path = section.take("path", checks.text, "")
    size_bytes = section.take("size", _disk_bytes, 0)
    default = DiskConfig(path, size_bytes)
    config = DiskConfig(
        path,
        size_bytes,
        direct=section.take("direct", checks.flag, default.direct),
        read_threads=section.take("read_threads", checks.whole(1, 64), default.read_threads),
        sync_s=section.take("sync_s", checks.number(0, 86_400), default.sync_s),
        write_bytes_per_s=section.take("write_rate", checks.size, default.write_bytes_per_s),
        promote=section.take("promote", checks.flag, default.promote),
        flush_s=section.take("flush_s", checks.number(0, 86_400), default.flush_s),
        form=FormChoice(section.take("form", checks.one_of(FORMS), default.form.value)),
    )
    section.done()
    if bool(path) != bool(size_bytes):
        raise ConfigError(
            "disk.path and disk.size go together: give a folder and how much of it may be used, or neither"
        )
    return config if path else None


def _wire(section: Section) -> WireConfig:
    config = WireConfig(FormChoice(section.take("form", checks.one_of(FORMS), WireConfig().form.value)))
    section.done()
    return config


def _tracing(section: Section) -> TracingConfig | None:
    endpoint = section.take("endpoint", _collector, "")
    ratio = section.take("sample_ratio", checks.number(0, 1), TracingConfig(endpoint).sample_ratio)
    section.done()
    if not endpoint:
        return None
    return TracingConfig(endpoint, ratio)


# ---------------------------------------------------------------------- values


def _name(value: object) -> str:
    name = str(value)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError(f"{name!r} is not a name of letters, digits, '.', '_' and '-', 64 at most")
    return name


def _whole_blocks(block_bytes: int, least: int, most: int, *, between: str) -> Callable[[object], int]:
    """Checks a size; `between` says `least` and `most`."""

    def check(value: object) -> int:
        size_bytes = checks.size(value)
        if not least <= size_bytes <= most or size_bytes % block_bytes:
            raise ValueError(f"{value!r} is not a multiple of {block_bytes} bytes from {between}")
        return size_bytes

    return check


_pool_bytes = _whole_blocks(
    limits.EXTENT_ALIGN_BYTES, limits.POOL_BYTES_MIN, limits.POOL_BYTES_MAX, between="1MiB to 16TiB"
)
_write_region = _whole_blocks(
    mmap.PAGESIZE, limits.WRITE_REGION_BYTES_MIN, limits.POOL_BYTES_MAX, between="1MiB to 16TiB"
)
_disk_bytes = _whole_blocks(
    limits.EXTENT_ALIGN_BYTES, limits.DISK_BYTES_MIN, limits.DISK_BYTES_MAX, between="1MiB to 256TiB"
)
_segment_bytes = _whole_blocks(4, 64, 8192, between="64 to 8192")


def _integrity(value: object) -> Integrity | None:
    name = checks.one_of(("auto", *(one.value for one in Integrity)))(value)
    return None if name == "auto" else Integrity(name)


def _read_window(value: object) -> int:
    size_bytes = checks.size(value)
    if size_bytes < READ_WINDOW_MIN_BYTES:
        raise ValueError(f"{value!r} is less than the {READ_WINDOW_MIN_BYTES} bytes that reads need in flight")
    return size_bytes


def _collector(value: object) -> str:
    """URL of an OTLP collector; "" is none."""
    if value == "":
        return ""
    url = checks.text(value)
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is not http://HOST:PORT or https://HOST:PORT (OTLP over gRPC, usually port 4317)")
    checks.host_port(rest, port_min=1)
    return url


def _controllers(value: object) -> tuple[str, ...]:
    """One HOST:PORT or a list of them; "" is none."""
    if value == "":
        return ()
    if isinstance(value, str) and "," in value:
        raise ValueError(f"{value!r} names several controllers: write a list, [{', '.join(value.split(','))}]")
    addresses = value if isinstance(value, list) else [value]
    for address in addresses:
        checks.host_port(address, port_min=1)
    if len(set(addresses)) < len(addresses):
        raise ValueError("names an address twice")
    return tuple(addresses)


def _socket_path(value: object) -> str:
    path = checks.text(value)
    if not path or len(os.fsencode(path)) > 100:
        raise ValueError(f"{value!r} is not a path of at most 100 bytes (the kernel's limit for sockets is 107)")
    return path
