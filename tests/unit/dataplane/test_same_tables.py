"""Programs for different architectures show a control plane the same tables: names, ids, keys, actions, parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

P4 = Path(__file__).resolve().parents[3] / "p4"
TOFINO_ONLY_ACTIONS = {"to_bitmap", "to_two_bitmaps"}


@dataclass(frozen=True)
class Table:
    id: str
    keys: tuple[str, ...]
    actions: frozenset[tuple[str, str, str]]
    """(name, id, parameters)."""


def source(program: Path, seen: set[Path] | None = None) -> str:
    """The program with its own includes, without comments."""
    seen = set() if seen is None else seen
    if program in seen:
        return ""
    seen.add(program)
    lines = []
    for line in program.read_text().splitlines():
        include = re.match(r'#include "(.+)"', line)
        lines.append(source((program.parent / include[1]).resolve(), seen) if include else line.split("//")[0])
    return "\n".join(lines)


def tables(program: Path) -> dict[str, Table]:
    text = source(program)
    actions = {
        name: (name, identity, re.sub(r"\s+", " ", parameters))
        for identity, name, parameters in re.findall(r"@id\((\w+)\)\s*action (\w+)\(((?:[^()]|\(\d+\))*)\)", text)
    }
    found = {}
    for identity, name, body in re.findall(r"@id\((\w+)\)\s*table (\w+) \{(.*?)\n    \}", text, re.DOTALL):
        keys = tuple(re.findall(r'(\w+ @name\("\w+"\))', body))
        named = re.search(r"actions = \{(.*?)\}", body)
        assert named is not None, name
        uses = frozenset(actions[action.split()[-1]] for action in named[1].split(";") if action.strip())
        found[name] = Table(identity, keys, uses)
    return found


V1MODEL = tables(P4 / "v1model" / "kvcast.p4")
TNA = tables(P4 / "tna" / "kvcast.p4")


def test_the_tables_are_those_of_the_reference() -> None:
    assert set(V1MODEL) == {
        *("fabric", "port_member", "kv_cache", "replicate", "dmac", "egress_member"),
        *("station", "source", "address", "request_limit", "segment_limit", "salt"),
    }
    assert V1MODEL["kv_cache"].keys == ('exact @name("key")',)
    assert ("serving", "0x01000303", "@id(1) slot_t base_slot, @id(2) bit<32> segments") in V1MODEL["kv_cache"].actions


@pytest.mark.parametrize("name", sorted(V1MODEL))
def test_tofino_has_the_same_table(name: str) -> None:
    ours = TNA[name]
    assert (ours.id, ours.keys) == (V1MODEL[name].id, V1MODEL[name].keys)
    assert V1MODEL[name].actions <= ours.actions
    assert {action for action, *_ in ours.actions - V1MODEL[name].actions} <= TOFINO_ONLY_ACTIONS


def test_what_is_common_stands_once() -> None:
    """No file of one architecture has a control that the other one, or p4/include, has word for word."""
    bodies: dict[str, Path] = {}
    for path in sorted(P4.rglob("*.p4")):
        for control in re.findall(r"^control \w+.*?^}", path.read_text(), re.DOTALL | re.MULTILINE):
            assert control not in bodies, f"{path} repeats {bodies[control]}: {control.splitlines()[0]}"
            bodies[control] = path
