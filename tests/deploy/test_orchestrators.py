"""Recipes for orchestrators: each mounts the agents' folder and gives its engine settings that the adapters take.

Schemas are the projects' own and not here: `tools/check_orchestrators.py` compares with clones of them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvclient.engines.settings import parse_settings, parse_store_settings

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "deploy" / "orchestrators").glob("*.yaml"))
PAGE = ROOT / "docs" / "reference" / "orchestrators.md"


def objects(value: Any) -> list[dict[str, Any]]:
    """All mappings of a recipe, and those that stand as JSON in its texts."""
    if isinstance(value, dict):
        return [value, *(one for each in value.values() for one in objects(each))]
    if isinstance(value, list):
        return [one for each in value for one in objects(each)]
    found = re.search(r"\{.*\}", value, re.DOTALL) if isinstance(value, str) else None
    return objects(json.loads(found[0])) if found else []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_complete(recipe: Path) -> None:
    found = objects(yaml.safe_load(recipe.read_text()))
    assert {"path": "/run/kvcast", "type": "Directory"} in found, "the host's folder, which is there when an agent was"
    assert {"name": "kvcast", "mountPath": "/run/kvcast"} in found
    connectors = [one for one in found if one.get("kv_connector") == "KvcastConnector"]
    backends = [one for one in found if one.get("backend_name") == "kvcast"]
    assert len(connectors + backends) == 1
    for one in connectors:
        assert parse_settings(one["kv_connector_extra_config"], {}).socket == "/run/kvcast/agent.sock"
    for one in backends:
        assert parse_store_settings(one["kvcast"], {}).socket == "/run/kvcast/agent.sock"
    assert recipe.name in PAGE.read_text()


def test_vllms_recipes_say_the_same() -> None:
    said = [
        one
        for recipe in [*RECIPES, ROOT / "deploy" / "kubernetes" / "engine.yaml"]
        for one in objects(yaml.safe_load(recipe.read_text()))
        if one.get("kv_connector")
    ]
    assert len(said) == 4
    assert all(one == said[0] for one in said)
