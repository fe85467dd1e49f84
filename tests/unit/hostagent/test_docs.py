"""docs/agent.md lists every key of the configuration with its default, and every metric."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_harness import MIB, cluster

from hostagent import config
from hostagent.disk.config import DiskConfig
from hostagent.metrics import PREFIX
from tests.reference_tables import differences, named, rows, settings

FRAMES = {"switch": "127.0.0.1:1", "local": "127.0.0.1:2", "mac": "02:00:00:00:00:01"}


def test_every_key_is_documented_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults: dict[str, object] = {}

    class Listening(config._Section):
        def take(self, key: str, check: Callable[[object], config.T], default: config.T) -> config.T:
            defaults[self._name(key)] = default
            return super().take(key, check, default)

        def need(self, key: str, check: Callable[[object], config.T]) -> config.T:
            defaults[self._name(key)] = None
            return super().need(key, check)

    monkeypatch.setattr(config, "_Section", Listening)
    config.parse({"data": {"transport": "frames", "address": "10.0.0.1", "frames": FRAMES}})
    assert defaults.pop("node") == socket.gethostname()
    documented = settings("agent.md")
    assert documented.pop("node") == "host name"
    assert differences(documented, defaults) == []


def test_every_metric_is_documented(tmp_path: Path) -> None:
    with cluster(1, disk=DiskConfig(str(tmp_path / "disk"), 4 * MIB, direct=False)) as made:
        families = list(made.agents[0].metrics.registry.collect())
    exposed = {f"{one.name}{'_total' if one.type == 'counter' else ''}".removeprefix(f"{PREFIX}_") for one in families}
    documented = [name for names, *_ in rows("agent.md", "Metrics") for name in named(names)]
    assert sorted(documented) == sorted(exposed)
