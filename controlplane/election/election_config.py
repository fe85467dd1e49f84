"""The section `election` of controller.yaml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvdaemon import checks
from kvdaemon.errors import ConfigError
from kvdaemon.settings import Section
from kvdaemon.tls_settings import TlsSettings, is_loopback, take_tls

LEASE_MS_DEFAULT = 3000
"""With a look of agents and of those on standby in between, another controller leads within 5 s."""
_LEASE_MS_MIN = 2000
"""etcd grants no less."""
_NAME_BYTES_MAX = 253


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """Who a controller is to an etcd that asks for passwords."""

    name: str
    password_file: Path
    """Read whenever a token is asked for; a last line's end does not count."""


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """How to reach etcd."""

    endpoints: tuple[str, ...]
    prefix: str
    tls: TlsSettings | Path | None
    """Path: of the authorities' certificates, and this side shows none. None: plainly."""
    user: EtcdUser | None = None


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """Which objects of the API server."""

    namespace: str
    """Empty: the pod's own."""
    lease: str


@dataclass(frozen=True, slots=True)
class ElectionConfig:
    """Who elects."""

    by: str
    """switch, etcd, kubernetes, none."""
    lease_ms: int
    name: str
    """Of this candidate, for people; empty: the host's."""
    etcd: EtcdConfig | None = None
    kubernetes: KubernetesConfig | None = None


def take_election(section: Section, folder: Path, *, with_switch: bool, insecure: bool) -> ElectionConfig:
    """The section; relative paths start at `folder`. Raises ConfigError."""
    kinds = checks.one_of(("switch", "etcd", "kubernetes", "none"))
    by = section.take("by", kinds, "switch" if with_switch else "none")
    if by == "switch" and not with_switch:
        raise ConfigError("election.by: switch needs switch.target; without a switch it is etcd, kubernetes or none")
    if by == "none" and with_switch:
        raise ConfigError("election.by: none is for a network without a kvcast switch: a switch elects by itself")
    lease_ms = section.take("lease_ms", checks.whole(_LEASE_MS_MIN, 60_000), LEASE_MS_DEFAULT)
    name = section.take("name", _name, "")
    etcd, kubernetes = _etcd(section.section("etcd"), folder), _kubernetes(section.section("kubernetes"))
    if by == "etcd":
        if not etcd.endpoints:
            raise ConfigError("election.etcd.endpoints is missing: where do etcd's servers listen?")
        far = [one for one in etcd.endpoints if not is_loopback(one)]
        if far and etcd.tls is None and not insecure:
            raise ConfigError(
                f"election.etcd.endpoints: {far[0]} is not this machine's own: give election.etcd.cert, key and ca,"
                " with a user ca alone, or write insecure: true"
            )
    return ElectionConfig(
        by, lease_ms, name, etcd if by == "etcd" else None, kubernetes if by == "kubernetes" else None
    )


def _etcd(section: Section, folder: Path) -> EtcdConfig:
    none: tuple[str, ...] = ()
    endpoints = section.take("endpoints", _endpoints, none)
    prefix = section.take("prefix", _prefix, "/kvcast")
    user, password_file = section.take("user", _name, ""), section.take("password_file", _path_in(folder), None)
    if bool(user) != (password_file is not None):
        raise ConfigError("election.etcd.user and password_file go together")
    if password_file is None:
        return EtcdConfig(endpoints, prefix, take_tls(section, folder))
    login = EtcdUser(user, password_file)
    ca = section.take("ca", _path_in(folder), None)
    if section.take("cert", checks.text, None) is None and section.take("key", checks.text, None) is None:
        section.done()
        return EtcdConfig(endpoints, prefix, ca, login)
    return EtcdConfig(endpoints, prefix, take_tls(section, folder), login)


def _kubernetes(section: Section) -> KubernetesConfig:
    return KubernetesConfig(section.take("namespace", _name, ""), section.take("lease", _name, "kvcast-controller"))


def _endpoints(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{value!r} is not a list of HOST:PORT")
    check: Callable[[object], str] = checks.endpoint
    return tuple(map(check, value))


def _prefix(value: object) -> str:
    return checks.text(value).rstrip("/")


def _path_in(folder: Path) -> Callable[[object], Path]:
    return lambda value: folder / checks.text(value)


def _name(value: object) -> str:
    name = checks.text(value)
    if not name.isprintable() or " " in name or "/" in name or not 0 < len(name.encode()) <= _NAME_BYTES_MAX:
        raise ValueError(f"{name[:_NAME_BYTES_MAX]!r} is not a name")
    return name
