"""Configuration files of both daemons, as an operator (or a template that went wrong) writes them."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import yaml

import controlplane.config
import hostagent.config
from kvdaemon.errors import ConfigError
from tests.fuzz.target import Case, check

_AGENT: dict[str, Any] = {
    "node": "n1",
    "insecure": True,
    "data": {
        "transport": "sockets",
        "interface": "lo",
        "address": "127.0.0.1",
        "group": "239.75.86.1",
        "qkey": 0x11111111,
        "from_switch_dscp": 42,
        "segment_bytes": "4KiB",
        "read_port": 4790,
        "receive_buffer": "8MiB",
        "rdma_read_window": "16MiB",
    },
    "pool": {"size": "256MiB", "prefault": False, "huge_pages": "auto", "keep": True},
    "controller": {"address": ["127.0.0.1:4800", "[::1]:4800"]},
    "tls": {"certificate": "a.pem", "key": "a.key", "ca": "ca.pem", "trust_domain": "kvcast"},
    "api": {"socket": "/tmp/agent.sock", "mode": "0660", "group": "root", "users": ["root", 0]},
    "http": {"address": "127.0.0.1", "port": 9475},
    "ready_file": "/tmp/ready",
    "log_level": "info",
    "log_format": "json",
    "disk": {"path": "/tmp/disk", "size": "1GiB", "direct": True, "read_threads": 4, "sync_s": 1, "write_rate": "1GB"},
    "tracing": {"endpoint": "http://127.0.0.1:4317", "sample_ratio": 0.5},
    "gate": {"link_rate": "10Gbit/s", "merge_wait_max": 0.5},
}
_CONTROLLER: dict[str, Any] = {
    "listen": "127.0.0.1:4800",
    "metrics": "127.0.0.1:9470",
    "insecure": True,
    "nodes": {"n1": 1, "n2": 2},
    "switch": {
        "target": "p4switch",
        "address": "127.0.0.1:9559",
        "device_id": 1,
        "election_id": 10,
        "flood_ports": [1, 2],
        "reconcile_s": 30,
        "program": "kvcast.p4",
        "p4info": "kvcast.p4info",
        "reconnect_s": 0.5,
    },
    "fabric": {"group": "239.75.86.1", "qkey": 1, "segment_bytes": 4096, "pool_address": "10.75.255.254"},
    "policy": {"admission": True, "fill_timeout_ms": 1000, "heat_gets": 2},
    "push": {"enabled": True},
    "membership": {"heartbeat_ms": 1000, "copies_grace_s": 2, "member_grace_s": 60, "settle_ms": 50},
}
_STRANGE = [
    "",
    "x",
    -1,
    0,
    1,
    1 << 70,
    1e308,
    float("nan"),
    float("inf"),
    True,
    None,
    [],
    {},
    [[]],
    {"a": {}},
    "1e999",
    "999999999999999999999GiB",
    "-1KiB",
    "0x",
    "::",
    "1.2.3",
    "256.0.0.1",
    "[::1",
    "a" * 5000,
    "\x00",
    "é",
]


class Configurations:
    """One step: the text of a file. The first byte says whose it is."""

    name: ClassVar[str] = "configurations"
    checks: ClassVar[str] = "a configuration or ConfigError of one line, both daemons"
    limit_s: ClassVar[float] = 5.0
    words: ClassVar[tuple[bytes, ...]] = (
        b"*a",
        b"&a ",
        b"<<: ",
        b"!!python/object:os.system ",
        b"!!binary ",
        b"? ",
        b"- ",
        b": ",
        b"{",
        b"[",
        b"}",
        b"|\n",
        b"2024-13-01",
        b"0o777",
        b".inf",
        b".nan",
        b"~",
        b"1_000",
        b"12:30:45",
        b"\xff",
        b"\t",
        b"%YAML 9.9\n",
        b"---\n",
    )

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvcast-fuzz-")
        self._path = Path(self._folder.name) / "daemon.yaml"

    def fresh(self, random: Random) -> Case:
        whose = random.randrange(2)
        values = _changed(random, (_AGENT, _CONTROLLER)[whose])
        text = yaml.safe_dump(values, default_flow_style=random.choice((None, True, False)), allow_unicode=True)
        if random.random() < 0.02:
            text = random.choice("[{") * random.choice((50, 2000, 50_000))
        return [bytes((whose,)) + text.encode()]

    def run(self, case: Case) -> None:
        for step in case:
            load = (hostagent.config.load, controlplane.config.load)[step[0] % 2] if step else hostagent.config.load
            self._path.write_bytes(step[1:])
            try:
                load(self._path)
            except ConfigError as error:
                check("\n" not in str(error), "a ConfigError of several lines")
                check(len(str(error)) < 1000, f"a ConfigError of {len(str(error))} characters")

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._folder.cleanup()


def _changed(random: Random, values: dict[str, Any]) -> dict[str, Any]:
    """A copy with keys left out, renamed, or with other values; most of them as they were."""
    changed: dict[str, Any] = {}
    for key, value in values.items():
        chance = random.random()
        if chance < 0.1:
            continue
        if chance < 0.2:
            value = random.choice(_STRANGE)
        elif chance < 0.23:
            key = random.choice((key + "s", key.upper(), "", 7, None, True))
        elif isinstance(value, dict):
            value = _changed(random, value)
        changed[key] = value
    return changed
