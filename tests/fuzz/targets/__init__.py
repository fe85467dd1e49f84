"""All fuzz targets, by name. Each is loaded when it is asked for: some bring a good part of the product with them."""

from __future__ import annotations

import importlib

from tests.fuzz.target import Target

_TARGETS = {
    "agent": "agent.Agent",
    "codecs": "codecs.Codecs",
    "configurations": "configurations.Configurations",
    "controller": "controller.Controller",
    "datagrams": "datagrams.Datagrams",
    "local-api": "local_api.LocalApi",
    "local-messages": "local_messages.LocalMessages",
    "lone-gets": "lone_gets.EnginesAndPeers",
    "p4-names": "p4_names.P4Names",
    "p4-sources": "p4_sources.P4Sources",
    "p4runtime": "switch.P4Runtime",
    "packets": "switch.Packets",
    "reads-answered": "reads.ReadsAnswered",
    "reads-asked": "reads.ReadsAsked",
    "reads-native": "reads.ReadsAskedInC",
    "relays": "relays.Relays",
    "rtnetlink": "rtnetlink.Rtnetlink",
    "traces": "traces.Traces",
}
NAMES = tuple(_TARGETS)
NATIVE = frozenset(
    {"codecs", "datagrams", "local-api", "lone-gets", "p4runtime", "packets", "reads-answered", "reads-native"}
)
"""Targets that run code in C: under sanitizers where the compiler has them."""


def made_by(name: str) -> type[Target]:
    """The class of a target. Raises KeyError for a name that is none."""
    module, _, kind = _TARGETS[name].partition(".")
    made: type[Target] = getattr(importlib.import_module(f"tests.fuzz.targets.{module}"), kind)
    return made
