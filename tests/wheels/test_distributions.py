"""What the wheels hold, and that each works alone and all together, away from the checkout."""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvproto import __version__
from tests.ports import free_port
from tests.wheels.conftest import ROOT, Installed
from tools import count_lines
from tools.native_build import OBJECTS

pytestmark = pytest.mark.wheels

TREES = {
    "kvcast": {name: name for name in ("kvcodec", "kvpolicy", "kvdaemon", "controlplane", "hostagent", "kvcast")},
    "kvcast_lab": {name: name for name in ("bmv2_testbed", "kvlab", "kvsim", "planner")},
    "kvcast_client": {"client/src/kvchunk": "kvchunk", "client/src/kvclient": "kvclient"},
    "kvproto": {"kvproto/src/kvproto": "kvproto", "p4": "kvproto/p4_programs"},
    "p4switch": {"p4switch/src/p4switch": "p4switch"},
}
"""Folders of the checkout in each wheel, and where they are there."""
NUMPY_ONLY = """
import importlib, importlib.metadata, pkgutil, kvchunk, kvclient

others = {dist.metadata["Name"] for dist in importlib.metadata.distributions()} - {"pip", "setuptools"}
assert others == {"kvcast-client", "numpy"}, others
for package in (kvchunk, kvclient):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            print(module.name, error.name.partition(".")[0])
"""
ENGINES_OWN = ("torch", "vllm", "prometheus_client", "sglang", "lmcache", "ucm")
"""What engines are, or bring."""
USER = """
from kvclient import AgentClient, AgentUnavailableError, ChunkKey, KvIdentity, PutOutcome, Status, prefix_keys


def share(socket: str, tokens: list[int], kv: bytes) -> tuple[PutOutcome, Status]:
    keys: list[ChunkKey] = prefix_keys(KvIdentity(model="m", chunk_tokens=4), tokens)
    with AgentClient(socket) as agent:
        stored: PutOutcome = agent.put(keys[0], None, kv)
        with agent.fetch(keys[:1], deadline_s=1.0) as got:
            sizes = [view.nbytes for view in got.views]
            assert sum(sizes) == len(kv)
            return stored, got.outcome
"""
PUT = """
import sys
from kvclient import AgentClient, KvIdentity, prefix_keys
(key,) = prefix_keys(KvIdentity(model="m", chunk_tokens=4), [1, 2, 3, 4])
with AgentClient(sys.argv[1]) as agent:
    print(agent.put(key, None, bytes(range(256)) * 4096))
"""
SHIPPED = """
import hostagent, kvcodec, sys
from hostagent.native.library import datapath
from kvcodec.native import native_loops
print([one is not None for one in (datapath(), native_loops())])
assert "p4switch.build" not in sys.modules
"""
FETCH = """
import sys, time
from kvclient import AgentClient, KvIdentity, Where, prefix_keys
keys = prefix_keys(KvIdentity(model="m", chunk_tokens=4), [1, 2, 3, 4])
with AgentClient(sys.argv[1]) as agent:
    until_s = time.monotonic() + 30
    while agent.contains(keys) == [Where.NOWHERE]:
        assert time.monotonic() < until_s, "the directory never told of the chunk"
    with agent.fetch(keys, deadline_s=20.0) as got:
        print(got.outcome, bytes(got.views[0]) == bytes(range(256)) * 4096)
"""


@pytest.mark.parametrize("distribution", TREES)
def test_a_wheel_has_every_file_of_its_packages(distribution: str, wheels: dict[str, Path]) -> None:
    packed = set(zipfile.ZipFile(wheels[distribution]).namelist())
    for folder, place in TREES[distribution].items():
        tracked = subprocess.check_output(["git", "ls-files", folder], cwd=ROOT, text=True).splitlines()
        assert {f"{place}{name.removeprefix(folder)}" for name in tracked} <= packed
        assert folder == "p4" or f"{place}/py.typed" in packed
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)
    assert not {name for name in packed if name.startswith(("p4/", "tests/", "tools/"))}


@dataclass(frozen=True, slots=True)
class Elf:
    """A shared object, as binutils see it."""

    machine: str
    asks: tuple[tuple[int, int], ...]
    """Versions of glibc whose symbols it wants."""
    needs: tuple[str, ...]
    """Libraries."""


def elf_of(path: Path) -> Elf:
    text = subprocess.check_output(["objdump", "-T", "-p", str(path)], text=True)
    asks = {(int(one), int(other)) for one, other in re.findall(r"GLIBC_(\d+)\.(\d+)", text)}
    machine = re.search(r"file format elf64-(\S+)", text)
    assert machine is not None
    return Elf(machine[1], tuple(sorted(asks)), tuple(re.findall(r"NEEDED +(\S+)", text)))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs binutils")
def test_the_wheels_platform_is_what_its_shared_objects_ask_for(wheels: dict[str, Path], tmp_path: Path) -> None:
    """The tag says the oldest glibc; nothing but glibc is linked to."""
    wheel = zipfile.ZipFile(wheels["kvcast"])
    found = [elf_of(Path(wheel.extract(made.path, tmp_path))) for made in OBJECTS]
    major, minor = max(version for one in found for version in one.asks)
    assert wheels["kvcast"].name.endswith(f"-py3-none-manylinux_{major}_{minor}_{platform.machine()}.whl")
    assert {one.machine for one in found} == {platform.machine().replace("_", "-")}
    assert {library for one in found for library in one.needs} == {"libc.so.6"}
    assert not [name for name in wheel.namelist() if name.endswith(".so") and name not in {one.path for one in OBJECTS}]


def test_an_agents_c_needs_no_compiler_and_no_cache(everything: Installed) -> None:
    environment = {**everything.environment, "PATH": "/nowhere", "CC": "/nowhere/cc"}
    cache = Path(environment["XDG_CACHE_HOME"])
    before = sorted(cache.rglob("*")) if cache.exists() else []
    argv = [everything.python, "-c", SHIPPED]
    done = subprocess.run(argv, cwd=everything.folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[True, True]\n"), done.stderr
    assert (sorted(cache.rglob("*")) if cache.exists() else []) == before


def test_the_client_needs_numpy_and_its_engines_modules_nothing_but_the_engine(client_only: Installed) -> None:
    missing = dict(line.split() for line in client_only.say(client_only.python, "-c", NUMPY_ONLY).splitlines())
    engine = {name for name, module in missing.items() if module in ENGINES_OWN}
    assert "kvclient.engines.vllm.connector" in engine
    assert all(name.startswith("kvclient.engines.") for name in engine)
    assert set(missing) == engine


def test_an_engines_wheel_has_no_protocol_machine_and_no_stub(wheels: dict[str, Path]) -> None:
    packed = zipfile.ZipFile(wheels["kvcast_client"]).namelist()
    assert {name.split("/")[0] for name in packed if ".dist-info/" not in name} == {"kvchunk", "kvclient"}
    assert not [name for name in packed if "_pb2" in name or name.endswith(".proto")]


def test_no_wheel_is_above_its_limit_of_lines(wheels: dict[str, Path]) -> None:
    lines = count_lines.of_wheels(wheels.values())
    assert lines.keys() >= count_lines.DISTRIBUTIONS.keys()
    assert count_lines.above_limits(lines, count_lines.WHEEL_LINES_MAX) == []


def test_the_labs_wheel_of_a_checkout_is_that_of_its_sdist(wheels: dict[str, Path], tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*argv, "--wheel-dir", str(tmp_path), str(ROOT / "lab")], check=True)
    (built,) = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(built).namelist()) == sorted(zipfile.ZipFile(wheels["kvcast_lab"]).namelist())


def test_a_users_lines_pass_a_strict_type_check(client_only: Installed) -> None:
    program = client_only.folder / "user.py"
    program.write_text(USER)
    argv = [sys.executable, "-m", "mypy", "--strict", "--python-executable", client_only.python, str(program)]
    done = subprocess.run(argv, cwd=client_only.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_commands_of_the_lab_say_what_to_install(no_lab: Installed) -> None:
    for words in ("demo", "bench incast", "testbed up", "plan", "demo-vllm", "demo-pd"):
        done = no_lab.run(no_lab.command("kvcast"), *words.split())
        said = f"kvcast {words.split()[0]}: needs kvcast-lab: pip install kvcast-lab\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    found = json.loads(no_lab.run(no_lab.command("kvcast"), "doctor", "--json").stdout)
    assert {one["topic"] for one in found} == {"agent", "switch"}


def test_commands_without_extras(everything: Installed) -> None:
    kvcast = everything.command("kvcast")
    for name in ("kvcast", "kvcast-agent", "kvcast-controller", "kvcast-switch", "p4switch"):
        assert everything.say(everything.command(name), "--version").split()[1] == __version__
    plan = (kvcast, "plan", "--requests", "100", "--no-sweep", "--jobs", "1")
    assert "small chat trace" in everything.say(*plan)
    everything.say(*plan, "--out", "report")
    assert list((everything.folder / "report").glob("*.svg")), "the README's command needs no extra for its pictures"
    (everything.folder / "trace.jsonl.zst").write_bytes(b"")
    done = everything.run(kvcast, "plan", "--trace", "trace.jsonl.zst")
    assert done.stderr.splitlines()[-1] == "kvcast plan: the trace has no requests"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="p4switch needs a C compiler")
def test_a_switch_a_controller_and_two_agents_share_a_chunk(no_lab: Installed) -> None:
    with ExitStack() as stack:
        sockets, controller = start_cluster(no_lab, stack)
        assert no_lab.say(no_lab.python, "-c", PUT, sockets[0]) == "STORED\n"
        assert no_lab.say(no_lab.python, "-c", FETCH, sockets[1]) == "OK True\n"
        until_s = time.monotonic() + 30
        while (listed := listing(no_lab, controller)) != [(1 << 20, ["n1", "n2"])]:
            assert time.monotonic() < until_s, listed
        top = json.loads(no_lab.say(no_lab.command("kvcast"), "top", "--json", "--controller", controller))
        assert top["status"]["switch"]["state"] == "ready"


def listing(installed: Installed, controller: str) -> list[tuple[int, list[str]]]:
    """Size and holders of each chunk, as `kvcast ls` has them."""
    listed = json.loads(installed.say(installed.command("kvcast"), "ls", "--json", "--controller", controller))
    return [(chunk["size_bytes"], sorted(chunk["holders"])) for chunk in listed]


def start_cluster(installed: Installed, stack: ExitStack) -> tuple[list[str], str]:
    """`kvcast switch`, kvcast-controller and two of kvcast-agent on loopback; the agents' sockets, the controller."""
    udp = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    p4runtime, controller = (f"127.0.0.1:{free_port()}" for _ in range(2))
    switch = [installed.command("kvcast"), "switch", "--grpc", p4runtime]
    for port in (1, 2):
        switch += ["-i", f"{port}@udp:{udp[port - 1]},{udp[port + 1]}"]
    stack.enter_context(running(installed, switch, "listening on "))
    config = installed.folder / "controller.yaml"
    config.write_text(
        f"listen: {controller}\nmetrics: ''\nnodes: {{n1: {{port: 1}}, n2: {{port: 2}}}}\n"
        f"switch: {{target: p4switch, address: '{p4runtime}', flood_ports: [1, 2]}}\n"
        "fabric: {pool_mac: '02:4b:56:00:ff:fe'}\n"
    )
    argv = [installed.command("kvcast-controller"), "--config", str(config)]
    stack.enter_context(running(installed, argv, "kvcast-controller ready"))
    sockets = []
    for number in (1, 2):
        api, config = installed.folder / f"n{number}.sock", installed.folder / f"n{number}.yaml"
        config.write_text(
            f"node: n{number}\npool: {{size: 16MiB}}\napi: {{socket: {api}}}\nhttp: {{port: 0}}\n"
            f"controller: {{address: '{controller}'}}\n"
            f"data: {{transport: sockets, address: 127.77.2.{number}, read_port: 0}}\n"
        )
        argv = [installed.command("kvcast-agent"), "--config", str(config)]
        stack.enter_context(running(installed, argv, "kvcast-agent ready"))
        sockets.append(str(api))
    return sockets, controller


@contextmanager
def running(installed: Installed, argv: list[str], says: str) -> Iterator[None]:
    """A daemon that has said its line; ended politely, which must leave status 0."""
    log = installed.folder / f"{Path(argv[0]).name}-{time.monotonic_ns()}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            argv, cwd=installed.folder, env=installed.environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith(says), line + log.read_text()
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
        process.communicate()
