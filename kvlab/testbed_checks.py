"""A machine that runs the testbed, the demo and the tests. All of it is in namespaces, of root's or of a user's own."""

from __future__ import annotations

import shutil

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network.namespaces import entry
from bmv2_testbed.network.wired import have_mininet
from hostagent.config import AgentConfig
from kvcast.doctor.findings import Finding, Level, judged
from p4switch.bmv2.names import tool_of_bmv2

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool"}
_OPTIONAL = {"redis-server": "apt install redis-server, for bench incast --peer redis"}
_OF_BMV2 = {"p4c-bm2-ss": "build p4c, for --target bmv2", "simple_switch_grpc": "build bmv2, for --target bmv2"}


def examine(config: AgentConfig | None) -> list[Finding]:
    """The agent's configuration does not matter here: the testbed writes its own."""
    findings = [_namespaces(), _mininet()]
    findings += [
        _tool(tool, shutil.which(tool), Level.MISSING, f"apt install {package}") for tool, package in _TOOLS.items()
    ]
    findings += [_tool(tool, shutil.which(tool), Level.NOTE, remedy) for tool, remedy in _OPTIONAL.items()]
    findings += [_tool(tool, tool_of_bmv2(tool), Level.NOTE, remedy) for tool, remedy in _OF_BMV2.items()]
    return findings


def _namespaces() -> Finding:
    try:
        words = entry()
    except TestbedError as error:
        remedy = "run as root (in a container: with CAP_SYS_ADMIN), or raise user.max_user_namespaces"
        return Finding("namespaces", str(error), "allowed", Level.MISSING, remedy)
    return Finding("namespaces", "allowed in a user namespace" if words else "allowed", "allowed")


def _mininet() -> Finding:
    good = have_mininet()
    return judged("mininet", _presence(good), "there", good, Level.MISSING, "apt install mininet")


def _tool(tool: str, path: str | None, level: Level, remedy: str) -> Finding:
    return judged(tool, path or "not on PATH", "on PATH", path is not None, level, remedy)


def _presence(there: bool) -> str:
    return "there" if there else "not installed"
