"""docs/reference/agent.md lists every key of the configuration with its default, and every metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostagent.cold.cold_options import ColdConfig
from hostagent.config import parse
from hostagent.disk.disk_options import DiskConfig
from hostagent.tier_metrics import PREFIX
from kvpolicy.tiers.form_costs import FormChoice
from tests.reference_tables import asked_keys, differences, named, rows, settings
from tests.unit.hostagent.agent_harness import MIB, cluster
from tests.unit.hostagent.cold_harness import BrokenStore


def test_every_key_is_documented_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = asked_keys(monkeypatch)
    parse({"data": {"address": "10.0.0.1"}})
    assert defaults.pop("node") is None
    documented = settings("reference/agent.md")
    assert documented.pop("node") == "`$KVCAST_NODE`, else host name"
    assert differences(documented, defaults) == []


def test_every_metric_is_documented(tmp_path: Path) -> None:
    cold = ColdConfig("none")
    disk = DiskConfig(str(tmp_path / "disk"), 4 * MIB, direct=False)
    with cluster(1, disk=disk, cold=cold, store=BrokenStore(), wire=FormChoice.LOSSLESS) as made:
        made.agents[0].metrics.watch_certificate(lambda: 1.0)
        families = list(made.agents[0].metrics.registry.collect())
    exposed = {f"{one.name}{'_total' if one.type == 'counter' else ''}".removeprefix(f"{PREFIX}_") for one in families}
    documented = [name for names, *_ in rows("reference/agent.md", "Metrics") for name in named(names)]
    assert sorted(documented) == sorted(exposed)
