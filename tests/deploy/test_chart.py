"""The chart as helm renders it: Kubernetes takes it, the daemons take what it writes, and its page is true."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

import controlplane.config
import hostagent.config
import kvcast
from controlplane.election.election_config import KubernetesConfig
from hostagent.cold.cold_options import SecretPlace
from hostagent.config import NODE_VARIABLE
from kvcast.arguments import Parser
from kvcast.cli import load, make_parser
from kvcast.commands import switch
from kvpolicy.tiers.form_costs import FormChoice

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "kvcast"
PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"
GROUP = 4750

Values: TypeAlias = dict[str, Any]
Document: TypeAlias = dict[str, Any]
Render: TypeAlias = Callable[[Values], list[Document]]

PLAIN: Values = {}
FULL: Values = {
    "nodes": {"n1": 1, "n2": 2},
    "switch": {"deploy": True, "options": ["-i", "1@eth1", "-i", "2@eth2"]},
    "networkPolicy": {"agents": ["10.0.0.0/24"], "metrics": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
    "serviceMonitor": {"enabled": True},
    "agent": {
        "nodeSelector": {"pool": "kv"},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-node-critical",
        "sysctls": {"net.core.rmem_max": 16777216, "net/ipv4/conf/eth1.100/accept_local": "1"},
        "disk": {"hostPath": "/mnt/nvme/kvcast", "sizeBytes": 1 << 40},
        "cold": {"scheme": "s3", "options": {"bucket": "kv"}, "secrets": {"access_key_id": {"environment": "KEY"}}},
        "coldSecret": "cold-store",
        "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "cold-store", "key": "id"}}}],
        "extraVolumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "kv"}}],
        "extraVolumeMounts": [{"name": "shared", "mountPath": "/mnt/shared"}],
        "extraConfig": {"wire": {"form": "auto"}, "api": {"write_region": "64MiB"}, "pool": {"prefault": False}},
    },
    "keeper": {"enabled": True},
    "controller": {
        "priorityClassName": "high",
        "nodeSelector": {"role": "infra"},
        "tolerations": [{"operator": "Exists"}],
        "extraConfig": {"policy": {"spill": False}, "remote_cost": True},
    },
}
INSECURE: Values = {"tls": {"enabled": False}, "insecure": True}
NO_SWITCH: Values = {
    **INSECURE,
    "switch": {"target": "none"},
    "networkPolicy": {"enabled": False},
    "controller": {"replicas": 1},
}
GROUPS: Values = {
    "agent": {"poolBytes": 103079215104, "tolerations": [{"operator": "Exists"}]},
    "agentGroups": {
        "h100": {"nodeSelector": {"gpu": "h100"}, "poolBytes": 1 << 40, "hugePages": "required"},
        "l4": {"nodeSelector": {"gpu": "l4"}, "interface": "ens1", "extraConfig": {"data": {"transport": "sockets"}}},
    },
    "keeper": {"enabled": True},
}
SR_IOV: Values = {
    "agent": {
        "interface": "net1",
        "network": {"host": False, "attachment": "networks/kvcast-data"},
        "devices": {"intel.com/sriov_rdma": 1, "rdma/hca_shared_devices_a": 1},
    },
    "networkPolicy": {"agents": ["10.0.0.0/24"]},
    "tls": {"agentVolume": {"csi": {"driver": "csi.cert-manager.io", "readOnly": True}}},
}
CASES = {
    "plain": PLAIN,
    "full": FULL,
    "insecure": INSECURE,
    "no_switch": NO_SWITCH,
    "groups": GROUPS,
    "sr_iov": SR_IOV,
    "hosts_rdma": {"agent": {"devices": {"rdma/hca": 1}, "hugePages": "required"}},
}
every_case = pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())


def helm(*words: str) -> str:
    """What it prints; fails with what it complains of."""
    if shutil.which("helm") is None:
        pytest.skip("no helm on PATH: tools/setup_helm.sh brings it")
    done = subprocess.run(["helm", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def written(folder: Path, changes: Values) -> str:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(changes))
    return str(path)


def rendered(folder: Path, changes: Values, chart: Path = CHART) -> list[Document]:
    text = helm("template", "kv", str(chart), "--namespace", "pools", "--values", written(folder, changes))
    return [document for document in yaml.safe_load_all(text) if document]


@pytest.fixture
def render(tmp_path: Path) -> Render:
    return lambda changes: rendered(tmp_path, changes)


def settings(changes: Values) -> Values:
    """All values where these are changed."""

    def merge(into: Values, other: Mapping[str, Any]) -> Values:
        for name, change in other.items():
            into[name] = merge(into.get(name) or {}, change) if isinstance(change, Mapping) else change
        return into

    return merge(copy.deepcopy(yaml.safe_load((CHART / "values.yaml").read_text())), changes)


def of_kind(made: list[Document], kind: str, name: str = "") -> Document:
    """The one of this kind whose name has this end."""
    (found,) = [one for one in made if one["kind"] == kind and one["metadata"]["name"].endswith(name)]
    return found


def pod(document: Document) -> Document:
    found: Document = document["spec"]["template"]["spec"]
    return found


# ---------------------------------------------------------------------- whoever takes it


@every_case
def test_helm_finds_nothing_to_complain_of(tmp_path: Path, changes: Values) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm(
        "lint", "--strict", str(CHART), "--values", written(tmp_path, changes)
    )


@every_case
def test_kubernetes_takes_every_object(render: Render, changes: Values) -> None:
    """By the schemas of its API server, with no unknown field; those of the monitors are an operator's."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here: make setup brings it")
    (oldest,) = re.findall(r">=(\d+\.\d+)\.", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    checked = 0
    for document in render(changes):
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):
            for version in (oldest, "1.31", kubernetes.latest_version()):
                kubernetes.validate(document, version, strict=True)
                checked += 1
    assert checked >= 24


def test_the_schemas_would_find_what_is_wrong() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here: make setup brings it")
    engine = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "engine.yaml").read_text())
    engine["spec"]["hostNetworks"] = True
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(engine, "1.31", strict=True)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"agent": {"poolBytes": 5}}, "poolBytes"),
        ({"agentGroups": {"a": {"poolBytes": 5}}}, "poolBytes"),
        ({"agentGroups": {"a": {"segmentBytes": 4096}}}, "segmentBytes"),
        ({"agentGroups": {"A b": {}}}, "agentGroups"),
        ({"agent": {"network": {"host": False}}}, "attachment"),
        ({"agent": {"disk": {"hostPath": "/mnt/nvme"}}}, "sizeBytes"),
        ({"agent": {"sysctls": {"net.core.rmem_max; reboot": 1}}}, "sysctls"),
        ({"agent": {"sysctls": {"net.core.rmem_max": "1; reboot"}}}, "sysctls"),
        ({"agent": {"hugePages": True}}, "hugePages"),
        ({"switch": {"target": "asic"}}, "target"),
        ({"nodes": {"n1": 600}}, "nodes"),
        ({"controller": {"replica": 2}}, "controller"),
        ({"networkPolicy": {"metrics": [{}]}}, "networkPolicy"),
        ({"tls": {"enabled": False}}, "tls.enabled"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, changes: Values, wrong: str) -> None:
    with pytest.raises(AssertionError) as caught:
        rendered(tmp_path, changes)
    assert "don't meet the specifications of the schema" in str(caught.value)
    assert wrong in str(caught.value)


def test_the_chart_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == kvcast.__version__


# ---------------------------------------------------------------------- what the daemons get


@every_case
def test_the_daemons_take_what_the_chart_writes(render: Render, changes: Values) -> None:
    made, asked = render(changes), settings(changes)
    files = of_kind(made, "ConfigMap")["data"]
    controller = controlplane.config.parse(yaml.safe_load(files["controller.yaml"]), Path())
    assert dict(controller.core.ports) == asked["nodes"]
    assert controller.election.kubernetes == KubernetesConfig("", "kv-controller")
    assert controller.switch.target == asked["switch"]["target"]
    secure = "tls" if asked["tls"]["enabled"] else "insecure"
    assert controller.security == secure
    for group in asked["agentGroups"] or [""]:
        agent = hostagent.config.parse(yaml.safe_load(files[f"agent{'-' if group else ''}{group}.yaml"]))
        own = {**asked["agent"], **asked["agentGroups"].get(group, {})}
        assert agent.security == secure
        assert len(agent.controllers) == asked["controller"]["replicas"] == replicas(made)
        assert agent.controllers[0] == "kv-controller-0.kv-controller.pools.svc:4800"
        assert (agent.pool.size_bytes, agent.pool.huge_pages) == (own["poolBytes"], own["hugePages"])
        assert agent.data.interface == own["interface"]


def replicas(made: list[Document]) -> int:
    count: int = of_kind(made, "StatefulSet")["spec"]["replicas"]
    return count


def test_what_else_the_daemons_can_do_is_said_in_values(render: Render) -> None:
    files = of_kind(render(FULL), "ConfigMap")["data"]
    agent = hostagent.config.parse(yaml.safe_load(files["agent.yaml"]))
    assert agent.disk is not None
    assert (agent.disk.path, agent.disk.size_bytes) == ("/var/lib/kvcast-disk", 1 << 40)
    assert agent.cold is not None
    assert agent.cold.secrets == {"access_key_id": SecretPlace(variable="KEY")}
    assert (agent.wire.form, agent.write_region_bytes, agent.pool.prefault) == (FormChoice.AUTO, 64 << 20, False)
    assert agent.pool.keeper == "/run/kvcast-keeper/keeper.sock", "what is merged into a section leaves the rest of it"
    controller = controlplane.config.parse(yaml.safe_load(files["controller.yaml"]), Path())
    assert (controller.core.rules.spill, controller.remote_cost) == (False, True)


def test_pods_find_each_other_and_run_what_images_have(render: Render) -> None:
    made = render(FULL)
    for kind, component in (("DaemonSet", "agent"), ("StatefulSet", "controller"), ("Deployment", "switch")):
        document = of_kind(made, kind, component)
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (container,) = pod(document)["containers"]
        assert container["image"] == f"kvcast-{component}:{kvcast.__version__}"
        rights = container["securityContext"]
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
        assert rights["runAsUser"] == (0 if component == "switch" else GROUP)
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        # A standby is not ready, and a rolling update would wait for it.
        assert ("readinessProbe" in container) == (component != "controller")
        mounted = {volume["name"] for volume in container["volumeMounts"]}
        assert {volume["name"] for volume in pod(document)["volumes"]} == mounted
        assert "tls" in mounted
    assert of_kind(made, "Service")["metadata"]["name"] == of_kind(made, "StatefulSet")["spec"]["serviceName"]
    arguments = pod(of_kind(made, "Deployment"))["containers"][0]["args"]
    assert arguments[:4] == ["--segment-bytes", "4096", "--grpc", "10.0.0.1:9559"]
    assert arguments[-4:] == FULL["switch"]["options"]
    parser = Parser(prog="kvcast switch")
    switch.add_arguments(parser)
    parser.parse_args(arguments)


def test_a_change_of_what_a_daemon_reads_restarts_its_pods_alone(render: Render) -> None:
    def sums(changes: Values) -> dict[str, str]:
        return {
            one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for one in render(changes)
            if one["kind"] in ("DaemonSet", "StatefulSet")
        }

    before = sums(PLAIN)
    for changes, other in (
        ({"agent": {"extraConfig": {"log_level": "debug"}}}, {"kv-agent"}),
        ({"controller": {"extraConfig": {"log_level": "debug"}}}, {"kv-controller"}),
    ):
        assert {name for name, sum_ in sums(changes).items() if sum_ != before[name]} == other


def test_groups_of_nodes_are_daemonsets_that_share_no_pod(render: Render) -> None:
    made = render(GROUPS)
    seen = []
    for group, own in GROUPS["agentGroups"].items():
        agent, keeper = of_kind(made, "DaemonSet", f"agent-{group}"), of_kind(made, "DaemonSet", f"keeper-{group}")
        for one in (agent, keeper):
            assert pod(one)["nodeSelector"] == own["nodeSelector"]
            assert pod(one)["tolerations"] == [{"operator": "Exists"}], "what a group does not say is `agent`'s"
        (container,) = pod(agent)["containers"]
        assert container["args"] == ["--config", f"/etc/kvcast/agent-{group}.yaml"]
        seen.append(agent["spec"]["selector"]["matchLabels"]["kvcast/group"])
    assert seen == ["h100", "l4"]
    (h100,), (l4,) = (pod(of_kind(made, "DaemonSet", f"agent-{group}"))["containers"] for group in seen)
    assert h100["resources"]["limits"] == {"memory": str(1 << 30), "hugepages-2Mi": str(1 << 40)}
    assert l4["resources"]["limits"] == {"memory": str(103079215104 + (1 << 30))}
    assert h100["startupProbe"]["failureThreshold"] * h100["startupProbe"]["periodSeconds"] >= 1024
    config = yaml.safe_load(of_kind(made, "ConfigMap")["data"]["agent-l4.yaml"])
    assert config["data"] == {"interface": "ens1", "segment_bytes": 4096, "transport": "sockets"}


def test_settings_of_the_host_are_written_as_they_are_meant(render: Render) -> None:
    containers = pod(of_kind(render(FULL), "DaemonSet", "agent"))["initContainers"]
    (setting,) = [one for one in containers if one["name"] == "sysctls"]
    assert setting["command"][2].splitlines() == [
        "echo 16777216 > /proc/sys/net/core/rmem_max",
        "echo 1 > /proc/sys/net/ipv4/conf/eth1.100/accept_local",
    ]
    assert [one["name"] for one in containers if one["securityContext"].get("privileged")] == ["sysctls"]
    plain = pod(of_kind(render(PLAIN), "DaemonSet", "agent"))["initContainers"]
    assert not any(one["securityContext"].get("privileged") for one in plain)


def test_beside_the_hosts_network_there_is_one_of_the_pods_own(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pod(of_kind(render(PLAIN), "DaemonSet", "agent"))["hostNetwork"]
    made = render(SR_IOV)
    agent = of_kind(made, "DaemonSet", "agent")
    assert "hostNetwork" not in pod(agent)
    networks = json.loads(agent["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    assert networks == [{"namespace": "networks", "name": "kvcast-data", "interface": "net1"}]
    (container,) = pod(agent)["containers"]
    for name, count in SR_IOV["agent"]["devices"].items():
        assert container["resources"]["limits"][name] == count
    assert container["env"] == [{"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    config = yaml.safe_load(of_kind(made, "ConfigMap")["data"]["agent.yaml"])
    monkeypatch.setenv(NODE_VARIABLE, "node-7.example")
    assert hostagent.config.parse(config).node == "node-7.example"
    (volume,) = [one for one in pod(agent)["volumes"] if one["name"] == "tls"]
    assert volume["csi"]["driver"] == "csi.cert-manager.io"


def test_a_keeper_is_where_its_agent_looks_and_upgrades_spare_it(render: Render) -> None:
    made = render(FULL)
    keeper, agent = of_kind(made, "DaemonSet", "keeper"), of_kind(made, "DaemonSet", "agent")
    assert keeper["spec"]["updateStrategy"] == {"type": "OnDelete"}
    (container,) = pod(keeper)["containers"]
    program, name, *arguments = container["command"]
    parser = Parser(prog="kvcast keeper")
    load(name).add_arguments(parser)
    parsed = parser.parse_args(arguments)
    config = hostagent.config.parse(yaml.safe_load(of_kind(made, "ConfigMap")["data"]["agent.yaml"]))
    assert (program, str(parsed.socket)) == ("kvcast", config.pool.keeper)
    (own,) = container["volumeMounts"]
    assert own in pod(agent)["containers"][0]["volumeMounts"]
    for one in (keeper, agent):
        (volume,) = [volume for volume in pod(one)["volumes"] if volume["name"] == own["name"]]
        assert volume["hostPath"]["path"] == "/run/kvcast-keeper", "engines mount /run/kvcast, and must not reach it"
    assert container["securityContext"]["runAsUser"] == GROUP, "it serves processes of its own user"
    assert not [one for one in render(PLAIN) if one["metadata"]["name"].endswith("keeper")]


# ---------------------------------------------------------------------- who may do what


def test_controllers_may_do_with_their_lease_and_their_state_what_they_do(render: Render) -> None:
    made = render(FULL)
    asked = controlplane.config.parse(yaml.safe_load(of_kind(made, "ConfigMap")["data"]["controller.yaml"]), Path())
    assert asked.election.kubernetes is not None
    lease = asked.election.kubernetes.lease
    rules = {
        (*rule["resources"], *rule["verbs"], *rule.get("resourceNames", [])) for rule in of_kind(made, "Role")["rules"]
    }
    assert rules == {
        ("leases", "create"),
        ("leases", "get", "update", lease),
        ("configmaps", "create"),
        ("configmaps", "get", "update", f"{lease}-state"),
    }
    controller = pod(of_kind(made, "StatefulSet"))
    assert controller["automountServiceAccountToken"]
    binding = of_kind(made, "RoleBinding")
    (subject,) = binding["subjects"]
    accounts = {controller["serviceAccountName"], of_kind(made, "ServiceAccount")["metadata"]["name"]}
    assert accounts == {subject["name"]} == {binding["roleRef"]["name"]}
    assert subject["namespace"] == "pools"


def admitted(policy: Document, port: int) -> list[Document] | None:
    """Peers that reach a port; None: all."""
    (rule,) = [one for one in policy["spec"]["ingress"] if {"port": port} in one["ports"]]
    peers: list[Document] | None = rule.get("from")
    return peers


def test_by_default_agents_reach_controllers_and_pods_elsewhere_reach_no_pages(render: Render) -> None:
    made = render(PLAIN)
    policy = of_kind(made, "NetworkPolicy")
    assert admitted(policy, 4800) is None, "agents use the nodes' addresses, which nobody knows here"
    assert admitted(policy, 9470) == [{"podSelector": {}}]
    controllers = of_kind(made, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= controllers.items()


def test_addresses_narrow_who_reaches_controllers_and_pods_of_agents_always_do(render: Render) -> None:
    made = render(SR_IOV)
    peers = admitted(of_kind(made, "NetworkPolicy"), 4800)
    assert peers is not None
    assert {"ipBlock": {"cidr": "10.0.0.0/24"}} in peers
    (labels,) = [peer["podSelector"]["matchLabels"] for peer in peers if "podSelector" in peer]
    assert labels.items() <= of_kind(made, "DaemonSet", "agent")["spec"]["template"]["metadata"]["labels"].items()


def test_jobs_have_the_name_by_which_alerts_know_them(render: Render) -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
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


# ---------------------------------------------------------------------- what people are told


def notes(folder: Path, changes: Values) -> str:
    """What helm says after an installation, which `helm template` keeps to itself."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    said = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "NOTES.txt").unlink()
    (chart / "templates" / "notes.yaml").write_text(
        '{{- define "notes" }}'
        + said
        + '{{ end -}}\nkind: Notes\nmetadata: {name: notes}\nsaid: {{ include "notes" . | quote }}\n'
    )
    text: str = of_kind(rendered(folder, changes, chart), "Notes")["said"]
    return text


@every_case
def test_the_notes_say_what_is_true(tmp_path: Path, changes: Values) -> None:
    said, made = notes(tmp_path, changes), rendered(tmp_path, changes)
    agents = {
        one["metadata"]["name"] for one in made if one["kind"] == "DaemonSet" and "-agent" in one["metadata"]["name"]
    }
    assert set(re.findall(r"^  (\S+-agent\S*), on nodes", said, re.MULTILINE)) == agents
    commands = [
        line.partition("-- ")[2] or line.strip()
        for line in said.splitlines()
        if "kvcast top" in line and line[:2] == "  "
    ]
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "kvcast"
        parsed = make_parser().parse_args(arguments)
        secure = settings(changes)["tls"]["enabled"]
        assert bool(parsed.tls_cert) is secure, "the certificate that it needs is named"
    assert ("operator" in said) is settings(changes)["tls"]["enabled"]
    assert ("is learned" in said) is (settings(changes)["switch"]["target"] != "none")
    assert f"group {GROUP}" in said


def test_the_engine_that_is_shown_finds_its_agent(render: Render) -> None:
    engine = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "engine.yaml").read_text())
    kubernetes = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here: make setup brings it")
    for version in ("1.25", kubernetes.latest_version()):
        kubernetes.validate(engine, version, strict=True)
    assert engine["spec"]["securityContext"]["supplementalGroups"] == [GROUP]
    agent = pod(of_kind(render(PLAIN), "DaemonSet", "agent"))
    (theirs,) = [one["hostPath"]["path"] for one in agent["volumes"] if one["name"] == "socket"]
    (own,) = engine["spec"]["volumes"]
    assert own["hostPath"]["path"] == theirs
    (container,) = engine["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    connector = json.loads(container["args"][-1])
    socket = connector["kv_connector_extra_config"]["socket"]
    config = hostagent.config.parse(yaml.safe_load(of_kind(render(PLAIN), "ConfigMap")["data"]["agent.yaml"]))
    assert (mount["mountPath"], socket) == (str(Path(socket).parent), config.api_socket)


def test_the_page_shows_values_that_the_chart_takes(render: Render) -> None:
    shown = re.findall(
        r"^<!-- shown: values of the chart[^\n]*-->\n\n((?:    [^\n]*\n|\n)+)", PAGE.read_text(), re.MULTILINE
    )
    assert shown
    for block in shown:
        made = render(yaml.safe_load(block))
        assert of_kind(made, "StatefulSet")
