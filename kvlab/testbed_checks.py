"""A machine that runs the testbed, the demo and the tests. Without root or Mininet they run over loopback datagrams."""

from __future__ import annotations

import importlib.util
import os
import shutil

from bmv2_testbed.network.namespaces import can_unshare
from bmv2_testbed.network.wired import have_mininet
from hostagent.config import AgentConfig
from kvcast.doctor.findings import Finding, Level, judged

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool"}
_OPTIONAL = {
    "redis-server": "apt install redis-server, for bench incast --peer redis",
    "p4c-bm2-ss": "build p4c, for --target bmv2",
    "simple_switch_grpc": "build bmv2, for --target bmv2",
}
_MODULES = ("matplotlib",)


def examine(config: AgentConfig | None) -> list[Finding]:
    """The agent's configuration does not matter here: the testbed writes its own."""
    findings = [_root(), _mininet()]
    findings += [_tool(tool, Level.SLOW, f"apt install {package}, or --no-root") for tool, package in _TOOLS.items()]
    findings += [_tool(tool, Level.NOTE, remedy) for tool, remedy in _OPTIONAL.items()]
    findings += [_module(name) for name in _MODULES]
    return findings


def _root() -> Finding:
    root = os.geteuid() == 0
    allowed = root and can_unshare()
    found = "allowed" if allowed else "root, but not allowed" if root else "not root"
    remedy = "run as root (in a container: with CAP_SYS_ADMIN), or --no-root"
    return judged("namespaces", found, "allowed", allowed, Level.SLOW, remedy)


def _mininet() -> Finding:
    good = have_mininet()
    return judged("mininet", _presence(good), "there", good, Level.SLOW, "apt install mininet, or --no-root")


def _tool(tool: str, level: Level, remedy: str) -> Finding:
    path = shutil.which(tool)
    return judged(tool, path or "not on PATH", "on PATH", path is not None, level, remedy)


def _module(name: str) -> Finding:
    good = importlib.util.find_spec(name) is not None
    return judged(name, _presence(good), "there", good, Level.MISSING, "pip install 'kvcast-lab[plan]'")


def _presence(there: bool) -> str:
    return "there" if there else "not installed"
