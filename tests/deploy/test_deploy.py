"""What `deploy/` holds fits the program: commands, metrics, configuration; judged by each tool where it is there."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import Metric

import controlplane.config
from controlplane.core.switch.target import OrbitTraffic, SwitchCounters
from controlplane.metrics import CoreCollector
from hostagent.pool_opening import INDEX_FILE, POOL_FILE
from p4switch.doorkeeper import DESCRIPTORS_MAX
from tests.unit.controlplane.helpers import Scene
from tests.unit.hostagent.agent_harness import cluster

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "kvcast"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
METRIC = re.compile(r"\bkvcast_\w+")


def commands() -> set[str]:
    """What the distribution installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["scripts"])


def needs(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on this machine")


# ---------------------------------------------------------------------- systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_what_is_installed_and_waits_until_it_is_ready(path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["User"] == "kvcast"
    assert int(service["LimitNOFILE"]) == DESCRIPTORS_MAX, "else silent connections leave none to others"
    binary = service["ExecStart"].split()[0]
    assert binary.startswith("/opt/kvcast/bin/")
    assert binary.rpartition("/")[2] in commands()


def test_the_agents_unit_keeps_the_files_that_the_agent_hands_over() -> None:
    unit = (DEPLOY / "systemd" / "kvcast-agent.service").read_text()
    assert re.findall(r"^FileDescriptorStoreMax=(\d+)$", unit, re.MULTILINE) == [str(len({POOL_FILE, INDEX_FILE}))]


def test_the_controllers_unit_has_a_place_for_what_operators_set(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = (DEPLOY / "systemd" / "kvcast-controller.service").read_text()
    (folder,) = re.findall(r"^StateDirectory=(\S+)$", unit, re.MULTILINE)
    monkeypatch.setenv("STATE_DIRECTORY", f"/var/lib/{folder}")  # systemd says it so
    state = controlplane.config.parse({}, Path("/etc/kvcast")).state
    assert state == Path("/var/lib/kvcast-controller/operator-state.json")
    assert str(state.parent) in (DEPLOY.parent / "docs" / "how-to" / "certificates.md").read_text()


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    needs("systemd-analyze")
    for path in UNITS:
        text = re.sub(r"/opt/kvcast/bin/[\w-]+", sys.executable, path.read_text())
        (tmp_path / path.name).write_text(text)
    argv = ["systemd-analyze", "verify", *(str(tmp_path / path.name) for path in UNITS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------------- containers


def test_each_image_ends_in_a_command_that_is_installed() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE) == ["agent", "controller", "switch"]
    entries = [json.loads(entry) for entry in re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)]
    assert {entry[0] for entry in entries} <= commands()
    assert len(entries) == 3
    # A name would not do: Kubernetes' runAsNonRoot looks at the number.
    assert set(re.findall(r"^USER (\S+)$", text, re.MULTILINE)) == {"4750:4750", "root"}
    # What `make wheelhouse` downloads is for the Python of the images.
    (version,) = set(re.findall(r"^FROM python:([0-9.]+)-", text, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert f"--python-version {version} " in makefile
    (wheelhouse,) = re.findall(r"dist/kvcast-\*\.whl\)\[([\w,]+)\]", makefile)
    installed = set(re.findall(r"'kvcast\[(\w+)\]'", text))
    assert installed == set(wheelhouse.split(",")), "it would lack packages that the images install"
    # Nothing is fetched while an image is built.
    assert not re.search(r"https?://|apt-get|pip install(?!.*--no-index)", text)


# ---------------------------------------------------------------------- metrics


@pytest.fixture(scope="module")
def series() -> set[str]:
    """Names of all time series that agent and controller expose."""
    counters = SwitchCounters({"reason": 1}, OrbitTraffic({"event": 1}, 0, 0))
    families = list(CoreCollector(Scene().core, lambda: counters, lambda: 1.0).collect())
    with cluster(1) as made:
        made.agents[0].metrics.watch_certificate(lambda: 1.0)
        families += made.agents[0].metrics.registry.collect()
    return {name for family in families for name in series_of(family)}


def series_of(family: Metric) -> set[str]:
    if family.type == "histogram":
        return {f"{family.name}_{suffix}" for suffix in ("bucket", "count", "sum")}
    return {f"{family.name}_total" if family.type == "counter" else family.name}


def test_alerts_ask_for_metrics_that_there_are(series: set[str]) -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    asked = {name for rule in rules for name in METRIC.findall(rule["expr"])}
    assert asked
    assert asked - series == set()
    assert all(rule["labels"]["severity"] in ("warning", "critical") for rule in rules)


ALERTED_OTHERWISE = {
    "kvcast_agent_cold_failed_total": "kvcast_agent_outage_seconds",
    "kvcast_agent_disk_failed_total": "kvcast_agent_outage_seconds",
    "kvcast_agent_fill_packets_failed_total": "kvcast_agent_outage_seconds",
}
"""What fails in a part whose outage is watched as a whole."""


def test_what_fails_silently_has_an_alert(series: set[str]) -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    asked = {name for group in groups for rule in group["rules"] for name in METRIC.findall(rule["expr"])}
    failures = {name for name in series if re.search("_(failed|failures|errors|drops|gone)(_total)?$", name)}
    assert {"kvcast_agent_reads_failed_total", "kvcast_controller_switch_drops_total"} <= failures
    assert {ALERTED_OTHERWISE.get(name, name) for name in failures} <= asked


def test_every_alert_has_its_section_of_the_runbook() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    sections = re.findall(r"^## (\w+)$", (DEPLOY / "prometheus" / "RUNBOOK.md").read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in rules] == sections
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"deploy/prometheus/RUNBOOK.md#{rule['alert'].lower()}"


def test_promtool_takes_the_alerts_and_their_tests_hold() -> None:
    needs("promtool")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_asks_for_metrics_that_there_are(series: set[str]) -> None:
    panels = json.loads((DEPLOY / "grafana" / "kvcast.json").read_text())["panels"]
    for panel in panels:
        asked = {name for target in panel["targets"] for name in METRIC.findall(target["expr"])}
        assert asked, panel["title"]
        assert asked - series == set(), panel["title"]
        assert panel["description"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
