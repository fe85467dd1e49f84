"""What `deploy/` holds fits the program: commands, metrics, configuration; judged by each tool where it is there."""

from __future__ import annotations

import configparser
import copy
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

import controlplane.config
import hostagent.config
import kvcast
from controlplane.core.switch.target import OrbitTraffic, SwitchCounters
from controlplane.election.election_config import KubernetesConfig
from controlplane.metrics import CoreCollector
from hostagent.memory.keeping import INDEX_FILE, POOL_FILE
from kvcast.arguments import Parser
from kvcast.commands import switch
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


# ---------------------------------------------------------------------- the chart

ALL_KINDS = (
    "ConfigMap DaemonSet Deployment NetworkPolicy PodDisruptionBudget PodMonitor Role RoleBinding Service"
    " ServiceAccount ServiceMonitor StatefulSet"
)
PLAIN = {"serviceMonitor": {"enabled": False}}
FULL = {
    "nodes": {"n1": 1, "n2": 2},
    "switch": {"deploy": True, "options": ["-i", "1@eth1", "-i", "2@eth2"]},
    "networkPolicy": {"agents": ["10.0.0.0/24"]},
    "serviceMonitor": {"enabled": True},
    "agent": {"nodeSelector": {"pool": "kv"}},
}
INSECURE = {"tls": {"enabled": False}, "insecure": True}
NO_SWITCH = {
    **INSECURE,
    "switch": {"target": "none"},
    "networkPolicy": {"enabled": False},
    "controller": {"replicas": 1},
}


def values(changes: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = copy.deepcopy(yaml.safe_load((CHART / "values.yaml").read_text()))
    for name, change in changes.items():
        found[name] = {**found[name], **change} if isinstance(change, Mapping) else change
    return found


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Documents of the chart with these values: by helm, else by Go's own templates."""
    folder = tmp_path_factory.mktemp("chart")
    if shutil.which("helm"):

        def with_helm(changes: Mapping[str, Any]) -> list[dict[str, Any]]:
            (folder / "values.yaml").write_text(yaml.safe_dump(values(changes)))
            argv = [
                "helm",
                "template",
                "kv",
                str(CHART),
                "--namespace",
                "pools",
                "--values",
                str(folder / "values.yaml"),
            ]
            return documents(subprocess.check_output(argv, text=True))

        return with_helm
    needs("go")
    program = folder / "render"
    environment = {"GOCACHE": str(folder / "cache"), "GO111MODULE": "off", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    source = Path(__file__).with_name("render.go")
    subprocess.run(["go", "build", "-o", str(program), str(source)], env=environment, check=True)

    def with_go(changes: Mapping[str, Any]) -> list[dict[str, Any]]:
        facts = {
            "Values": values(changes),
            "Release": {"Name": "kv", "Namespace": "pools"},
            "Chart": {"AppVersion": yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]},
        }
        return documents(subprocess.check_output([str(program), str(CHART)], input=json.dumps(facts), text=True))

    return with_go


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        (
            PLAIN,
            "ConfigMap DaemonSet NetworkPolicy PodDisruptionBudget Role RoleBinding Service ServiceAccount StatefulSet",
        ),
        (
            FULL,
            ALL_KINDS,
        ),
        (NO_SWITCH, "ConfigMap DaemonSet PodDisruptionBudget Role RoleBinding Service ServiceAccount StatefulSet"),
    ],
    ids=["plain", "full", "no_switch"],
)
def test_the_daemons_take_what_the_chart_writes(render: Any, changes: dict[str, Any], kinds: str) -> None:
    made = {document["kind"]: document for document in render(changes)}
    assert sorted(made) == kinds.split()
    files = made["ConfigMap"]["data"]
    agent = hostagent.config.parse(yaml.safe_load(files["agent.yaml"]))
    controller = controlplane.config.parse(yaml.safe_load(files["controller.yaml"]), Path())
    asked = values(changes)
    assert len(agent.controllers) == asked["controller"]["replicas"] == made["StatefulSet"]["spec"]["replicas"]
    assert agent.controllers[0] == "kv-controller-0.kv-controller.pools.svc:4800"
    assert dict(controller.core.ports) == asked["nodes"]
    secure = asked["tls"]["enabled"]
    assert (agent.security, controller.security) == (("tls", "tls") if secure else ("insecure", "insecure"))
    assert (agent.pool.size_bytes, controller.switch.target) == (asked["agent"]["poolBytes"], asked["switch"]["target"])


def test_pods_find_each_other_and_run_what_images_have(render: Any) -> None:
    made = {document["kind"]: document for document in render(FULL)}
    for kind, component in (("DaemonSet", "agent"), ("StatefulSet", "controller"), ("Deployment", "switch")):
        spec = made[kind]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        (container,) = spec["template"]["spec"]["containers"]
        assert container["image"] == f"kvcast-{component}:{kvcast.__version__}"
        rights = container["securityContext"]
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
        assert rights["runAsUser"] == (0 if component == "switch" else 4750)
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        # A standby is not ready, and a rolling update would wait for it.
        assert ("readinessProbe" in container) == (component != "controller")
        mounted = {volume["name"] for volume in container["volumeMounts"]}
        assert {volume["name"] for volume in spec["template"]["spec"]["volumes"]} == mounted
        assert "tls" in mounted
    assert made["Service"]["metadata"]["name"] == made["StatefulSet"]["spec"]["serviceName"]
    arguments = made["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:4] == ["--segment-bytes", "4096", "--grpc", "10.0.0.1:9559"]
    assert arguments[-4:] == FULL["switch"]["options"]
    parser = Parser(prog="kvcast switch")
    switch.add_arguments(parser)
    parser.parse_args(arguments)


def test_controllers_may_do_with_their_lease_and_their_state_what_they_do(render: Any) -> None:
    made = {document["kind"]: document for document in render(FULL)}
    election = controlplane.config.parse(yaml.safe_load(made["ConfigMap"]["data"]["controller.yaml"]), Path()).election
    assert (election.by, election.kubernetes) == ("kubernetes", KubernetesConfig("", "kv-controller"))
    grants = {(*rule["resources"], *rule["verbs"], *rule.get("resourceNames", [])) for rule in made["Role"]["rules"]}
    assert grants == {
        ("leases", "create"),
        ("leases", "get", "update", "kv-controller"),
        ("configmaps", "create"),
        ("configmaps", "get", "update", "kv-controller-state"),
    }
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"]
    accounts = {pod["serviceAccountName"], made["ServiceAccount"]["metadata"]["name"]}
    (subject,) = made["RoleBinding"]["subjects"]
    assert accounts == {subject["name"]} == {made["RoleBinding"]["roleRef"]["name"]}
    assert subject["namespace"] == "pools"


def test_jobs_have_the_name_by_which_alerts_know_them(render: Any) -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    (jobs,) = re.findall(r'job=~"(.*?)"', rules["KvcastTargetDown"])
    made = render(FULL)
    monitors = [one for one in made if one["kind"] in ("PodMonitor", "ServiceMonitor")]
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        watched = [one["metadata"] for one in made if one["kind"] == "Service"]
        if monitor["kind"] == "PodMonitor":
            watched = [one["spec"]["template"]["metadata"] for one in made if "template" in one.get("spec", {})]
        names = [one["labels"][monitor["spec"]["jobLabel"]] for one in watched if wanted <= one["labels"].items()]
        assert names and all(re.fullmatch(jobs, name) for name in names), monitor["metadata"]["name"]
    assert monitors


def test_security_has_to_be_chosen(render: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="no jsonschema in this environment: make setup brings it")
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert not jsonschema.Draft7Validator(schema).is_valid(values({"tls": {"enabled": False}}))
    with pytest.raises(subprocess.CalledProcessError):
        render({"tls": {"enabled": False}})


def test_the_chart_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == kvcast.__version__


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        (PLAIN, ""),
        (FULL, ""),
        (NO_SWITCH, ""),
        (INSECURE, ""),
        ({"agent": {"poolBytes": 5}}, "poolBytes"),
        ({"switch": {"target": "asic"}}, "target"),
        ({"nodes": {"n1": 600}}, "nodes"),
        ({"controller": {"replica": 2}}, "controller"),
    ],
)
def test_the_schema_takes_values_and_names_wrong_ones(changes: dict[str, Any], wrong: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="no jsonschema in this environment: make setup brings it")
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    found = [
        ".".join(map(str, error.path)) for error in jsonschema.Draft7Validator(schema).iter_errors(values(changes))
    ]
    assert bool(found) == bool(wrong)
    assert all(wrong in place for place in found)
