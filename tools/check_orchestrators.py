"""Checks deploy/orchestrators against what the projects themselves publish: schemas of values and of custom resources.

    tools/check_orchestrators.py FOLDER

FOLDER has git repositories of the projects, bare or not, anywhere below: production-stack, kserve, aibrix, ome. A
resource's fields are checked strictly: what a schema does not name, Kubernetes would drop in silence.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

RECIPES = Path(__file__).parents[1] / "deploy" / "orchestrators"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a recipe's schema is."""

    repository: str
    path: str


SOURCES = {
    "production-stack.yaml": Source("production-stack", "helm/values.schema.json"),
    "kserve.yaml": Source("kserve", "config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml"),
    "aibrix.yaml": Source("aibrix", "config/crd/orchestration/orchestration.aibrix.ai_stormservices.yaml"),
    "ome.yaml": Source("ome", "config/crd/full/ome.io_servingruntimes.yaml"),
}


class MissingError(Exception):
    """One line: which project or file is not there."""


def repository(folder: Path, name: str) -> Path:
    """Of a project. Raises MissingError."""
    for each in sorted(folder.glob("**/HEAD"), key=lambda path: len(path.parts)):
        remote = "+" in each.parent.parent.name
        if name in (each.parent.name, each.parent.parent.name) or (
            remote and each.parent.parent.name.endswith(f"+{name}")
        ):
            return each.parent
    raise MissingError(f"no git repository of {name} below {folder}: clone it there")


def git(where: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", where, *words], check=True, capture_output=True, text=True).stdout


def schema_of(source: Source, text: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """For jsonschema. Raises MissingError for a version that the project has not."""
    if source.path.endswith(".json"):
        return dict(json.loads(text))
    definition = yaml.safe_load(text)
    version = recipe["apiVersion"].rpartition("/")[2]
    for each in definition["spec"]["versions"]:
        if each["name"] == version:
            return strict(each["schema"]["openAPIV3Schema"])
    raise MissingError(f"{source.repository} has no {version} of {recipe['kind']}")


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, refusing what a cluster would drop."""
    made = {
        name: strict(value) if isinstance(value, dict) and name != "properties" else value
        for name, value in schema.items()
    }
    if "properties" in schema:
        made["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in schema:
            made["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


def faults(folder: Path) -> Iterator[str]:
    """What is wrong, a line each; prints which commit each recipe was compared with."""
    for name, source in SOURCES.items():
        recipe = yaml.safe_load((RECIPES / name).read_text())
        where = repository(folder, source.repository)
        schema = schema_of(source, git(where, "show", f"HEAD:{source.path}"), recipe)
        print(f"{name}: {source.repository} {git(where, 'log', '-1', '--format=%h %cs').strip()}")
        # An object's metadata is Kubernetes' own.
        schema.get("properties", {}).get("metadata", {}).pop("additionalProperties", None)
        for error in jsonschema.Draft7Validator(schema).iter_errors(recipe):
            yield f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"


def main() -> int:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    try:
        found = list(faults(Path(sys.argv[1])))
    except MissingError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(found) or "all right")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
