"""p4lang/tutorials' own runner, as it is, starts p4switch by bmv2's names, and its hosts reach each other.

Needs root, Mininet, and the sources (Apache-2.0) where P4_TUTORIALS says: a clone of github.com/p4lang/tutorials.
The runner's Python is P4_TUTORIALS_PYTHON: it needs `pip install p4runtime 'protobuf<3.21' grpcio psutil scapy`.
ecn and mri need iperf.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from p4switch.bmv2 import names

SOURCES = os.environ.get("P4_TUTORIALS", "")
PYTHON = os.environ.get("P4_TUTORIALS_PYTHON", "")
MININET = next(iter(Path("/usr/lib/python3/dist-packages").glob("mininet")), None)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (SOURCES and PYTHON), reason="no P4_TUTORIALS=clone of p4lang/tutorials, or no Python for it"
    ),
    pytest.mark.skipif(os.geteuid() != 0 or MININET is None, reason="needs root and Mininet"),
]

P4CONFIG = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
file = descriptor_pb2.FileDescriptorProto(name="p4/tmp/p4config.proto", package="p4.tmp", syntax="proto3")
message, field = file.message_type.add(name="P4DeviceConfig"), descriptor_pb2.FieldDescriptorProto
message.field.add(name="reassign", number=1, type=field.TYPE_BOOL, label=field.LABEL_OPTIONAL)
message.field.add(name="device_data", number=3, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
pool = descriptor_pool.Default()
pool.Add(file)
P4DeviceConfig = message_factory.MessageFactory().GetPrototype(pool.FindMessageTypeByName("p4.tmp.P4DeviceConfig"))
"""
"""The message that bmv2's build brings for Python and no package does."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """`typed`: at Mininet's prompt; `shows`: what is printed then; `program`: which one the runner gets."""

    name: str
    topology: str
    typed: tuple[str, ...]
    shows: tuple[str, ...]
    program: str = ""


REACHED = "0% dropped"
FOUND = "a packet met the queue"


def congested(shows: str) -> tuple[str, ...]:
    """As the exercise tells: a stream of twice the link's rate, beside it packets of which h2 prints `shows`."""
    return (
        "pingall",
        f"h2 {PYTHON} receive.py > h2.log 2>&1 &",
        "h22 iperf -s -u > /dev/null &",
        "h11 iperf -c 10.0.2.22 -t 20 -u > /dev/null &",
        f"h1 {PYTHON} send.py 10.0.2.2 hello 15",
        f"sh grep -q '{shows}' h2.log && echo {FOUND}",
    )


EXERCISES = [
    Exercise("basic", "pod-topo/topology.json", ("pingall",), (REACHED,)),
    Exercise(
        "basic_tunnel",
        "topology.json",
        ("pingall", "sh simple_switch_CLI --thrift-port 9090 < commands"),
        (REACHED, "TABLE ENTRIES", "MyIngress.myTunnel_forward"),
    ),
    Exercise("calc", "topology.json", ("h1 sh -c 'echo 2+3 | python3 calc.py'",), ("5",)),
    Exercise("ecn", "topology.json", congested(r"tos *= 0x3"), (REACHED, FOUND)),
    Exercise("firewall", "pod-topo/topology.json", ("h1 ping -c 1 h3",), (" 0% packet loss",), "basic"),
    Exercise("link_monitor", "pod-topo/topology.json", ("pingall",), (REACHED,)),
    Exercise("load_balance", "topology.json", ("h1 ping -c 1 h1",), (" 0% packet loss",)),
    Exercise("mri", "topology.json", congested(r"qdepth *= [1-9]"), (REACHED, FOUND)),
    # Its group leaves out the port of h4, which is what it teaches.
    Exercise("multicast", "sig-topo/topology.json", ("pingall",), ("h1 -> h2 h3 X", "h4 -> h1 h2 h3")),
    Exercise("qos", "topology.json", ("pingall",), (REACHED,)),
    Exercise("source_routing", "topology.json", ("h1 ifconfig",), ("10.0.1.1",)),
    Exercise("p4runtime", "topology.json", ("h1 ifconfig",), ("10.0.1.1",)),
    Exercise("flowcache", "topology.json", ("h1 ifconfig",), ("10.0.1.1",)),
]


@pytest.fixture(scope="module")
def tutorials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with solutions in the place of exercises, commands, and modules for the runner."""
    folder = tmp_path_factory.mktemp("tutorials")
    shutil.copytree(SOURCES, folder / "tutorials", ignore=shutil.ignore_patterns(".git", "build", "logs", "pcaps"))
    for exercise in (folder / "tutorials" / "exercises").iterdir():
        for solution in exercise.glob("solution/*.p4"):
            shutil.copy(solution, exercise)
    (folder / "modules" / "p4" / "tmp").mkdir(parents=True)
    (folder / "modules" / "p4" / "__init__.py").write_text(
        "import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\n"
    )
    (folder / "modules" / "p4" / "tmp" / "__init__.py").touch()
    (folder / "modules" / "p4" / "tmp" / "p4config_pb2.py").write_text(P4CONFIG)
    assert MININET is not None
    (folder / "modules" / "mininet").symlink_to(MININET)
    names.write([str(folder / "bin")])
    return folder


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_an_exercise_runs_by_its_own_runner(exercise: Exercise, tutorials: Path):
    folder = tutorials / "tutorials" / "exercises" / exercise.name
    surroundings = os.environ | {
        "PATH": f"{tutorials / 'bin'}:{Path(PYTHON).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tutorials / "modules"),
    }
    (folder / "commands").write_text("table_dump myTunnel_exact\n")
    subprocess.run(["make", "build"], cwd=folder, env=surroundings, check=True, capture_output=True)
    program = exercise.program or next(folder.glob("*.p4")).stem
    runner = (
        f"{PYTHON} ../../utils/run_exercise.py -t {exercise.topology} -j build/{program}.json -b simple_switch_grpc"
    )
    # A namespace of its own: the runner's ports and interfaces are fixed, and end with it.
    alone = f"ip link set lo up && mount -t sysfs sysfs /sys && exec {runner}"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", alone],
        cwd=folder,
        env=surroundings,
        input="".join(f"{line}\n" for line in (*exercise.typed, "exit")),
        capture_output=True,
        text=True,
    )
    logs = "\n".join(log.read_text()[-2000:] for log in folder.glob("logs/s*.log"))
    said = done.stdout + done.stderr
    assert done.returncode == 0 and not [text for text in exercise.shows if text not in said], f"{said}\n{logs}"
    assert (folder / "pcaps" / "s1-eth1_in.pcap").exists()
