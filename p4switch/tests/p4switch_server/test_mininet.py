"""The nodes for Mininet, by its own `mn` and with hosts that reach each other. Needs root and Mininet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p4switch.bmv2 import names
from p4switch.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PYTHON = "/usr/bin/python3"
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mn") is None, reason="needs root and Mininet"),
]


def page_program() -> str:
    """The program of the tutorial, which floods to group 1."""
    text = (DOCS / "tutorial.md").read_text()
    return text.split("```p4\n", 1)[1].split("```", 1)[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, and with the commands that Mininet's Python has to find."""
    folder = tmp_path_factory.mktemp("mininet")
    (folder / "l2.p4").write_text(page_program())
    names.write([str(folder / "bin")])
    return folder


def in_own_namespaces(place: Path, *words: str, tools: str = "bin") -> str:
    """What Mininet prints, in a network and a space of processes that end with it. `tools`: the folder of `place` that
    its switches come from."""
    inner = 'ip link set lo up && mount -t sysfs sysfs /sys && exec "$@"'
    done = subprocess.run(
        [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            inner,
            "sh",
            *words,
        ],
        cwd=place,
        env=os.environ | {"PATH": f"{place / tools}:{os.environ['PATH']}", "TMPDIR": str(place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    logs = "".join(log.read_text() for log in place.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{logs}"
    return done.stdout


def custom_file(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["mininet"]) == 0
    return capsys.readouterr().out.strip()


def test_hosts_reach_each_other_through_a_program(place: Path, capsys: pytest.CaptureFixture[str]):
    switch = "p4switch,program=l2.p4,options=--flood-group 1"
    words = ["--custom", custom_file(capsys), "--topo", "star,3", "--switch", switch, "--controller", "none"]
    assert "0% dropped (6/6 received)" in in_own_namespaces(
        place, PYTHON, shutil.which("mn") or "", *words, "--test", "pingall"
    )


def test_the_node_for_bmv2_runs_what_has_its_name(place: Path, capsys: pytest.CaptureFixture[str]):
    """Here that is p4switch: what is shown is the command line."""
    subprocess.run([place / "bin" / "p4c-bm2-ss", "-o", "l2.json", "l2.p4"], cwd=place, check=True)
    words = ["--custom", custom_file(capsys), "--topo", "star,2", "--switch", "bmv2,program=l2.json"]
    words += ["--controller", f"p4,command={place / 'flood'}"]
    (place / "flood").write_text(
        "#!/bin/sh\nset -- ${P4RUNTIME#*=}\n"
        'printf "mc_mgrp_create 1\\nmc_node_create 0 1 2\\nmc_node_associate 1 0\\n" |'
        " simple_switch_CLI --grpc ${1%/*} --device-id ${1#*/} > flooded 2>&1\n"
    )
    (place / "flood").chmod(0o755)
    script = place / "wait.cli"
    script.write_text("sh while ! grep -q handle flooded 2>/dev/null; do sleep 0.1; done\nh1 ping -c 3 h2\n")
    said = in_own_namespaces(place, PYTHON, shutil.which("mn") or "", *words, "--post", str(script), "--test", "none")
    assert "3 packets transmitted" in said and " 0% packet loss" in said, said


PUSH = """
import asyncio, os, pathlib, finsy as fy
address, device = os.environ["P4RUNTIME"].partition("=")[2].rsplit("/", 1)
blobs = {"p4info": pathlib.Path("pushed.p4info.txtpb"), "p4blob": pathlib.Path("pushed.json")}
async def main():
    async with fy.Switch("s1", address, fy.SwitchOptions(device_id=int(device), **blobs)) as switch:
        await switch.insert([fy.P4MulticastGroupEntry(1, replicas=((1, 1), (2, 1)))])
asyncio.run(main())
pathlib.Path("pushed").touch()
"""


@pytest.mark.parametrize("tools", ["bin", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_a_controller_programs_the_switch(place: Path, capsys: pytest.CaptureFixture[str], tools: str):
    """By P4Runtime, what p4c has compiled: p4switch by those names, and the real ones where they are."""
    if tools == "bmv2":
        (place / tools).mkdir()
        for name in ("p4c-bm2-ss", "simple_switch_grpc"):
            found = names.tool_of_bmv2(name)
            if found is None:
                pytest.skip(f"{name} is not on PATH")
            (place / tools / name).symlink_to(found)
    output = ["-o", "pushed.json", "--p4runtime-files", "pushed.p4info.txtpb"]
    subprocess.run([place / tools / "p4c-bm2-ss", *output, "l2.p4"], cwd=place, check=True)
    (place / "push.py").write_text(PUSH)
    (place / "pushed").unlink(missing_ok=True)
    words = ["--custom", custom_file(capsys), "--topo", "star,2", "--switch", "bmv2,program=pushed.json"]
    words += ["--controller", f"p4,command={sys.executable} {place / 'push.py'}"]
    script = place / "pushed.cli"
    script.write_text("sh while ! test -e pushed; do sleep 0.1; done\nh1 ping -c 3 h2\n")
    said = in_own_namespaces(
        place, PYTHON, shutil.which("mn") or "", *words, "--post", str(script), "--test", "none", tools=tools
    )
    assert "3 packets transmitted" in said and " 0% packet loss" in said, said


def test_a_switch_that_cannot_start_says_why(place: Path, capsys: pytest.CaptureFixture[str]):
    (place / "wrong.p4").write_text("header h { bit<8> a }\n")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from functools import partial; from mininet.net import Mininet; from mininet_nodes import P4SwitchNode, Star\n"
        "net = Mininet(topo=Star(hosts=2), switch=partial(P4SwitchNode, program='wrong.p4'), controller=None)\n"
        "try:\n    net.start()\nexcept SystemExit: print('ended')\n"
    )
    said = in_own_namespaces(place, PYTHON, "-c", script, str(Path(custom_file(capsys)).parent))
    assert "s1 did not start" in said and "wrong.p4:1:" in said and said.rstrip().endswith("ended")
