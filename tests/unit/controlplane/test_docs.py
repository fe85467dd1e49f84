"""docs/reference/controller.md lists every key of the configuration with its default, every metric, every option."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.core.switch.target import OrbitTraffic, SwitchCounters
from controlplane.metrics import CoreCollector
from kvcast.cli import load
from tests.reference_tables import asked_keys, differences, named, rows, settings
from tests.unit.controlplane.helpers import Scene

PAGE = "reference/controller.md"
COMMON = {"--help", "--controller", "--json", "--tls-cert", "--tls-key", "--tls-ca"}


def test_every_key_is_documented_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = asked_keys(monkeypatch)
    switch = {"target": "tofino", "address": "127.0.0.1:1", "orbit_bytes": 100_000}
    cells = {"NAME": {"controllers": ["127.0.0.1:1"]}}
    models = {"NAME": {"namespace": "0" * 64, "chunk_tokens": 256}}
    parse({"nodes": {"NAME": {"port": 1}}, "switch": switch, "cell": "NAME", "cells": cells, "models": models}, Path())
    defaults["switch.orbit_bytes"] = None  # It has to be given, here.
    assert differences(settings(PAGE), defaults) == []


def test_every_metric_is_documented() -> None:
    scene = Scene()
    counters = SwitchCounters({"reason": 1}, OrbitTraffic({"event": 1}, 0, 0))
    families = list(CoreCollector(scene.core, lambda: counters, lambda: 1.0).collect())
    names = {f"{one.name}{'_total' if one.type == 'counter' else ''}" for one in families}
    exposed = {name.removeprefix("kvcast_controller_") for name in names}
    documented = [name for names, *_ in rows(PAGE, "Metrics") for name in named(names)]
    assert sorted(documented) == sorted(exposed)


@pytest.mark.parametrize("command", ["ls", "top", "warm", "pin", "unpin", "evict", "drain"])
def test_every_option_of_an_operators_command_is_documented(command: str) -> None:
    parser = argparse.ArgumentParser()
    load(command).add_arguments(parser)
    options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", parser.format_help()))
    (usage,) = (cells[0] for cells in rows(PAGE, "Operator's commands") if f"kvcast {command}" in cells[0])
    assert {name for name in options - COMMON if name not in usage} == set()
